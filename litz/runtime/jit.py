"""LLVM in the process: text in, function addresses out. No compiler, linker or file is involved."""

from __future__ import annotations

import ctypes
import struct
import threading
from functools import lru_cache
from typing import Any

from litz.compat import openmp_library, torch_library
from litz.errors import CompileError
from litz.target import Target

_building = threading.RLock()  # one compile at a time: LLVM's context is shared


@lru_cache(maxsize=1)
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # Kernels call OpenMP's runtime and SLEEF; both are loaded already, and now LLVM can see them.
    for path in (openmp_library(), torch_library()):
        if path is not None:
            llvm.load_library_permanently(path)
    return llvm


def _target_machine(cpu: str, features: str) -> Any:
    """A new one each time: the engine it is given to owns it from then on."""
    llvm = _llvm()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=2, codemodel="jitdefault"
    )


class Code:
    """Machine code, alive as long as this object is."""

    def __init__(self, text: str, target: Target, libraries: tuple[tuple[str, str], ...] = ()):
        llvm = _llvm()
        for name, source in libraries:
            _provide(name, source, target)
        with _building:
            machine = _target_machine(target.cpu, target.features)
            try:
                module = llvm.parse_assembly(text)
            except RuntimeError as error:
                raise CompileError(
                    f"LLVM refused the generated code: {error}", stage="build", excerpt=_around(text, str(error)),
                    hint="this is a defect of Litz; please report it with the program that caused it",
                ) from error  # fmt: skip
            module.triple = machine.triple
            module.data_layout = str(machine.target_data)
            _optimise(llvm, machine, module)
            built = machine.emit_object(module)
            _check_symbols(built, target)
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(built))
            self._engine.finalize_object()

    def function(self, name: str, prototype: Any) -> Any:
        return prototype(self._engine.get_function_address(name))

    def address(self, name: str) -> int:
        return self._engine.get_function_address(name)


def _check_symbols(built: bytes, target: Target) -> None:
    """Whether the process has all that the code calls: LLVM's linker ends the process where a symbol is missing."""
    missing = [name for name in undefined_symbols(built) if not _llvm().address_of_symbol(name)]
    if missing:
        raise CompileError(
            f"generated code for {target} calls {', '.join(missing)}, which this process does not have",
            stage="build",
            hint="this is a defect of Litz; please report it with the program and the versions of torch and the system",
        )


def undefined_symbols(built: bytes) -> list[str]:
    """The names that an object file (64-bit ELF) leaves to others."""
    if built[:5] != b"\x7fELF\x02":
        return []  # another system's format, whose own linker has to find out
    (sections_at,) = struct.unpack_from("<Q", built, 0x28)
    size, count = struct.unpack_from("<HH", built, 0x3A)
    # Of each section: name, type, flags, address, offset, size, link, info, alignment, size of an entry.
    sections = [struct.unpack_from("<IIQQQQIIQQ", built, sections_at + i * size) for i in range(count)]
    names = []
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        at, length, strings = section[4], section[5], sections[section[6]][4]
        for name, _, _, defined_in, _, _ in struct.iter_unpack("<IBBHQQ", built[at : at + length]):
            if name and defined_in == 0:
                start = strings + name
                names.append(built[start : built.index(b"\0", start)].decode())
    return names


_SYMBOL_TABLE = 2


def _optimise(llvm: Any, machine: Any, module: Any) -> None:
    # The text is vectorised and hoisted already: registers for the stack slots are all it lacks.
    options = llvm.create_pipeline_tuning_options(speed_level=0)
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.run(module, builder)


def _around(text: str, message: str) -> str:
    import re

    found = re.search(r":(\d+):\d+: error", message)
    lines = text.splitlines()
    if found is None:
        return "\n".join(lines[:20])
    at = int(found[1]) - 1
    return "\n".join(lines[max(0, at - 3) : at + 2])


HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


_provided: dict[str, Code] = {}


def _provide(name: str, source: str, target: Target) -> None:
    """Build a function of the machine once, and let every later module call it by name."""
    key = f"{name}@{target.cpu}{target.features}"
    with _building:  # two threads must not replace each other's: code that calls the first would lose it
        if key not in _provided:
            code = Code(source, target)
            _llvm().add_symbol(name, code.address(name))
            _provided[key] = code
