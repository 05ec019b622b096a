"""Build: the text of modules in, object code out, several at a time; of kernels for GPUs, PTX and machine code.

LLVM runs in the process, through llvmlite. Its Python interface lets one thread in at a time; below it, threads that
each have a context of their own do not meet, so a module is built by calls of the library itself. They leave Python's
own lock alone too: while modules are built, Python goes on.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, Union

from litz.codegen import machine_code
from litz.codegen.gpu_code import GpuCode
from litz.context import Lasting
from litz.errors import CompileError
from litz.source import source_digest
from litz.target import GpuTarget, Machine, Target

GPU_TRIPLE = "nvptx64-nvidia-cuda"
_Code = Union[bytes, GpuCode]


class Listed(NamedTuple):
    """Object code, and what it says."""

    code: bytes
    listing: str


class BuiltCode(NamedTuple):
    """Object files of the processor's, and kernels of the GPU's; why machine code of some is left to the driver.
    `listings`: what the object files say, to be read, where that was asked for."""

    objects: tuple[bytes, ...]
    kernels: tuple[GpuCode, ...]
    left_to_driver: tuple[str, ...] = ()
    listings: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def llvm() -> Any:
    """llvmlite's binding, ready for this machine."""
    import llvmlite.binding as binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()  # of the instructions that are written as such
    return binding


def target_machine(target: Machine, quickly: bool = False) -> Any:
    """A new one each time: an engine that it is given to owns it from then on. `quickly`: code is made in a fraction of
    the time, and is what matters little."""
    if isinstance(target, GpuTarget):
        binding = llvm()
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        gpu = binding.Target.from_triple(GPU_TRIPLE)
        return gpu.create_target_machine(cpu=target.cpu, features=target.features, opt=3)
    triple = llvm().Target.from_default_triple()
    # Code that may lie anywhere: the same object is loaded into this process or linked into a shared library.
    return triple.create_target_machine(
        cpu=target.cpu, features=target.features, opt=0 if quickly else 2, reloc="pic", codemodel="default"
    )


def build(modules: Sequence[str], target: Target, store: Lasting | None = None) -> tuple[bytes, ...]:
    """The object code of each module. What this process has built lately is not built again, nor what `store` has."""
    return Building(target, store).finish(modules).objects


class Building:
    """Modules on their way to object code, while others are still being written."""

    def __init__(self, target: Machine, store: Lasting | None = None, listed: bool = False):
        """`listed`: with what the processor's code says. It is all made anew then."""
        self._target, self._store, self._listed = target, store, listed and target.host_computes
        self._workers = ThreadPoolExecutor(_threads(), "litz-build")  # a thread starts when there is work for it
        self._begun: dict[str, Future[_Code | Listed]] = {}
        self._left_to_driver: dict[str, None] = {}  # reasons

    def begin(self, module: str) -> None:
        if module not in self._begun:
            on_device = module.startswith(f'target triple = "{GPU_TRIPLE}"')
            machine = self._target if on_device else self._target.host
            how = _How(machine, quickly=not on_device and not self._target.host_computes)
            if self._listed:
                self._begun[module] = self._workers.submit(_listed, module, how)
            else:
                self._begun[module] = self._workers.submit(_kept, module, how, self._store, self._left_to_driver)

    def finish(self, modules: Sequence[str]) -> BuiltCode:
        """The object code of these, in their order."""
        with self._workers:
            for module in modules:
                self.begin(module)
            made = [self._begun[module].result() for module in modules]
        listed = [one for one in made if isinstance(one, Listed)]
        return BuiltCode(
            tuple(code for code in made if isinstance(code, bytes)) + tuple(one.code for one in listed),
            tuple(code for code in made if isinstance(code, GpuCode)),
            tuple(self._left_to_driver),
            tuple(one.listing for one in listed),
        )


class _How(NamedTuple):
    """For which machine, and whether what matters is that it is done soon."""

    target: Machine
    quickly: bool = False

    def __str__(self) -> str:
        """What code depends on."""
        target = self.target
        told = f"{llvm().llvm_version_info} {target.cpu} {target.features} {self.quickly}"
        if isinstance(target, GpuTarget):
            told += f" {target.level} {machine_code.assembler_version()}"
        return told


def _kept(text: str, how: _How, store: Lasting | None, left_to_driver: dict[str, None]) -> _Code:
    maker = "" if store is None else source_digest()  # within a process, there is one
    key = blake2b(f"{maker}\n{how}\n{text}".encode(), digest_size=20).hexdigest()
    found = _LATELY.get(key)
    if found is None and store is not None:
        found = store.load("kernel", key)
    if not isinstance(found, (bytes, GpuCode)):
        found = object_of(text, *how)
        if isinstance(how.target, GpuTarget):
            found = _with_machine_code(found, how.target.level, left_to_driver)
        if store is not None:
            store.store("kernel", key, found)
    _LATELY.put(key, found)
    return found


def _with_machine_code(ptx: bytes, level: int, left_to_driver: dict[str, None]) -> GpuCode:
    try:
        return GpuCode(ptx, ((level, machine_code.cubin_of(ptx, level)),))
    except machine_code.NotAssembled as why:
        left_to_driver[str(why)] = None
        return GpuCode(ptx)


def _threads() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def object_of(text: str, target: Machine, quickly: bool = False) -> bytes:
    """The object code of one module; for a GPU, its PTX."""
    with _TOOLS.lent(_How(target, quickly)) as (machine, passes, builder):
        return _object_of(text, machine, passes, builder, is_object=not isinstance(target, GpuTarget))


def _listed(text: str, how: _How) -> Listed:
    """Both of one run through LLVM: the listing is put together to object code, which takes a tenth of making it."""
    with _TOOLS.lent(how) as (machine, passes, builder):
        listing = _object_of(text, machine, passes, builder, is_object=False).decode()
        lines = (line.replace("\\", "\\5C").replace('"', "\\22").replace("\t", " ") for line in listing.splitlines())
        assembly = "\n".join(f'module asm "{line}"' for line in lines)
        return Listed(_object_of(assembly, machine, passes, builder, is_object=True), listing)


def _object_of(text: str, machine: Any, passes: Any, builder: Any, is_object: bool) -> bytes:
    binding = llvm()
    lib = binding.ffi.lib
    context = binding.create_context()  # no other thread's
    with binding.ffi.OutputString() as message:
        module = _alone(lib.LLVMPY_ParseAssembly)(context, text.encode(), message)
        if message:
            raise _refused(text, str(message))
    module = binding.ModuleRef(module, context)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    passes = builder.getModulePassManager() if passes is None else passes
    _alone(lib.LLVMPY_RunNewModulePassManager)(passes, module, builder)
    with binding.ffi.OutputString() as message:
        memory = _alone(lib.LLVMPY_TargetMachineEmitToMemory)(machine, module, int(is_object), message)
        if not memory:
            raise _refused(text, str(message))
    try:
        return ctypes.string_at(lib.LLVMPY_GetBufferStart(memory), lib.LLVMPY_GetBufferSize(memory))
    finally:
        lib.LLVMPY_DisposeMemoryBuffer(memory)


def _alone(function: Any) -> Any:
    """A function of the library without the lock that llvmlite puts around each."""
    return getattr(function, "_cfn", function)


def _passes(binding: Any, machine: Any, thorough: bool) -> tuple[Any, Any]:
    if thorough:
        # The whole of LLVM's own choice, which the builder has anew for each module.
        builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
        return None, builder
    # The text is vectorised and hoisted already: registers for the stack slots are all it lacks.
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    return passes, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=0))


def _refused(text: str, message: str) -> CompileError:
    return CompileError(
        f"LLVM refused the generated code: {message}", stage="build", excerpt=_around(text, message),
        hint="this is a defect of Litz; please report it with the program that caused it",
    )  # fmt: skip


def _around(text: str, message: str) -> str:
    found = re.search(r":(\d+):\d+: error", message)
    lines = text.splitlines()
    if found is None:
        return "\n".join(lines[:20])
    at = int(found[1]) - 1
    return "\n".join(lines[max(0, at - 3) : at + 2])


class _Tools:
    """What turns text into object code: a machine, the passes, and what runs those. Each is one thread's at a time, and
    used again, since llvmlite does not give all of its memory back."""

    def __init__(self) -> None:
        self._idle: dict[_How, list[tuple[Any, Any, Any]]] = {}

    @contextmanager
    def lent(self, how: _How) -> Iterator[tuple[Any, Any, Any]]:
        idle = self._idle.setdefault(how, [])
        try:
            tools = idle.pop()
        except IndexError:
            machine = target_machine(*how)
            tools = (machine, *_passes(llvm(), machine, isinstance(how.target, GpuTarget)))
        try:
            yield tools
        finally:
            idle.append(tools)


_TOOLS = _Tools()


class _Recent:
    """Object code that was used lately, up to a number of bytes."""

    def __init__(self, most: int):
        self._most, self._bytes = most, 0
        self._objects: OrderedDict[str, _Code] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> _Code | None:
        with self._lock:
            return self._objects.get(key)

    def put(self, key: str, made: _Code) -> None:
        with self._lock:
            self._bytes += len(made) - len(self._objects.pop(key, b""))
            self._objects[key] = made
            while self._bytes > self._most:
                self._bytes -= len(self._objects.popitem(last=False)[1])


_LATELY = _Recent(4 << 20)


__all__ = ["Building", "BuiltCode", "build", "llvm", "object_of", "target_machine"]
