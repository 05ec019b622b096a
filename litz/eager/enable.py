"""`enable`: have calls of an operator go to generated code.

A kernel of the dispatcher is registered for the CPU (`write_door`): native code that compares the arguments with those
that there is code for. Where none fits, Python is asked: it compiles for these arguments, or calls torch's own kernel.
"""

from __future__ import annotations

import _thread
import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from litz.codegen.llvm.boxed import ATTEMPT, CONSTANTS, DOOR, MISSED, MOST, TABLE, Given, write_door
from litz.codegen.llvm.build import build
from litz.codegen.llvm.writer import Module
from litz.compat import torch_library
from litz.eager.compile import Boxed, compile_op, described, key_of, read
from litz.eager.schema import NotGiven, called, find, form_of, given, kinds
from litz.errors import LitzError, tell
from litz.options import Options
from litz.runtime.cache import cache_of
from litz.runtime.link import Code
from litz.target import detect

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64, ctypes.c_uint64)
_ATTEMPT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
# As torch numbers them; not all have generated code.
_DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 8: torch.complex32, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
    23: torch.float8_e5m2, 24: torch.float8_e4m3fn, 27: torch.uint16, 28: torch.uint32, 29: torch.uint64,
}  # fmt: skip


def enable(*names: str, options: Mapping[str, Any] | None = None) -> None:
    """Operators such as "aten::gelu" or "aten::mul.Tensor". What cannot be enabled is refused before any of it is."""
    chosen = Options.from_environment(options)
    key_of(chosen)
    for op in [find(name) for name in names]:
        if op.name() not in _ENABLED:
            _ENABLED[op.name()] = _Enabled(op, dict(options or {}), chosen)


def disable(*names: str) -> None:
    """torch's own kernels again; without names, for all operators."""
    for name in [find(name).name() for name in names] or list(_ENABLED):
        found = _ENABLED.pop(name, None)
        if found is not None:
            found.close()


def enabled() -> dict[str, int]:
    """The operators that are enabled, and for how many combinations of arguments there is code."""
    return {name: found.count for name, found in _ENABLED.items()}


class _Enabled:
    def __init__(self, op: torch._ops.OpOverload, stated: dict[str, Any], options: Options):
        import os

        self.op, self.stated, self.options = op, stated, options
        self.kinds = kinds(op)
        self.lock = threading.Lock()
        self.count = 0
        self.refused: set[tuple[Given, ...]] = set()
        self._codes: list[Any] = []  # what the table points into
        self._kernel = torch.library.get_kernel(op, "CPU")
        module = Module()
        write_door(module)
        target = detect(options.threads)
        self._door = Code(build([module.text()], target, cache_of(os.environ)), target)
        self._table = (ctypes.c_void_p * (MOST + 1)).from_address(self._door.address(TABLE))
        self._missed = _CALLBACK(self._ask)
        asked = ctypes.c_void_p.from_address(self._door.address(MISSED))
        asked.value = ctypes.cast(self._missed, ctypes.c_void_p).value
        self._known: set[tuple[Given, ...]] = set()
        self._read()
        self._library = _register(op, self._door.address(DOOR))

    def close(self) -> None:
        _shim().aoti_torch_delete_library_object(self._library)
        _RETIRED.append(self)  # another thread may be inside its code

    # -- code for arguments ------------------------------------------------------------------------
    def _read(self) -> None:
        """Whatever is there for this processor: the latest, and there is room for as many again."""
        description, wanted = described(self.op), key_of(self.options)
        for entry in [entry for entry in description.entries() if entry.made_for == wanted][-MOST // 2 :]:
            if entry.given not in self._known:
                boxed = read(description, entry)
                if boxed is not None:
                    self._add(boxed)

    def _add(self, boxed: Boxed) -> Any | None:
        """The attempt, at the end of the table, if there is room."""
        if self.count == MOST:
            return None
        code = Code(boxed.objects, boxed.target)
        if boxed.constants:
            table = (ctypes.c_void_p * len(boxed.constants)).from_address(code.address(CONSTANTS))
            table[:] = [tensor.data_ptr() for tensor in boxed.constants]
        attempt = code.function(ATTEMPT, _ATTEMPT)
        self._codes.append((code, boxed))
        self._known.add(boxed.given)
        self._table[self.count] = ctypes.cast(attempt, ctypes.c_void_p).value
        self.count += 1
        if self.count == MOST:
            tell(f"{self.op.name()} has been called with {MOST} combinations of arguments: others run as before")
        return attempt

    # -- arguments that there is no code for -------------------------------------------------------
    def _ask(self, stack: Any, count: int, results: int) -> int | None:
        """What the door asks last. An error's text, which it throws, or nothing. No exception may leave it."""
        try:
            return self._answer(stack)
        except KeyboardInterrupt:
            _thread.interrupt_main()  # it comes again, outside of torch's code
            return self._thrown("interrupted")
        except BaseException as error:
            return self._thrown(f"{type(error).__name__}: {error}")

    def _answer(self, stack: Any) -> int | None:
        """torch's own kernel comes first: what it refuses is not compiled, and what it returns is what code must
        return."""
        arguments = [self._unboxed(stack[i], *kind) for i, kind in enumerate(self.kinds)]
        found: list[torch.Tensor] = []
        text = None
        try:
            found = self._as_before(arguments)
        except Exception as error:
            text = str(error)
        attempt = self._compiled(arguments, found) if text is None else None
        if attempt is not None and attempt(ctypes.addressof(stack.contents)) == 0:
            return None
        for i, kind in enumerate(self.kinds):
            _let_go(stack[i], *kind)
        for i, tensor in enumerate(found):
            stack[i] = _handle_of(tensor)
        return None if text is None else self._thrown(text)

    @staticmethod
    def _thrown(text: str) -> int | None:
        _THREAD.thrown = ctypes.create_string_buffer(text.encode())  # alive until the door has thrown it
        return ctypes.addressof(_THREAD.thrown)

    def _compiled(self, arguments: Sequence[Any], results: Sequence[torch.Tensor]) -> Any | None:
        try:
            form = given(self.op, arguments)
        except NotGiven:
            return None
        if getattr(_THREAD, "compiles", False):
            return None  # the compiler computes with tensors, too
        with self.lock:
            if form in self._known or form in self.refused or self.count == MOST:
                return None
            try:
                boxed = self._compile(arguments)
                if boxed.results != tuple(form_of(tensor) for tensor in results):
                    raise LitzError("its results would have another form than torch's own")
                return self._add(boxed)
            except LitzError as error:
                if not self.refused:
                    tell(f"{self.op.name()} runs as before for some arguments: {error}")
                self.refused.add(form)
                return None

    def _compile(self, arguments: Sequence[Any]) -> Boxed:
        """In a thread of its own: this one is inside a call, with autograd and more switched off."""
        found: list[Any] = []

        def work() -> None:
            _THREAD.compiles = True
            try:
                positional, named = called(self.op, arguments)
                name = self.op.name().partition("::")
                compile_op(name[0], name[2], "cpu", self.op, positional, named, self.stated)
                description = described(self.op)
                form, wanted = given(self.op, arguments), key_of(self.options)
                (entry,) = [e for e in description.entries() if (e.given, e.made_for) == (form, wanted)]
                found.append(read(description, entry))
            except Exception as error:
                found.append(error if isinstance(error, LitzError) else LitzError(f"{type(error).__name__}: {error}"))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if isinstance(found[0], Boxed):
            return found[0]
        raise found[0] if isinstance(found[0], LitzError) else LitzError("its code was lost")

    def _as_before(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        positional, named = called(self.op, arguments)
        cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        found = self._kernel.call_boxed(cpu, *positional, **named)
        return list(found) if isinstance(found, (tuple, list)) else [found]

    def _unboxed(self, box: int, kind: str, optional: bool) -> Any:
        if optional:
            if not box:
                return None
            box = ctypes.c_uint64.from_address(box).value
        if kind == "tensor":
            return _tensor_of(box)
        if kind == "str":
            length, text = ctypes.c_size_t(), ctypes.c_void_p()
            _shim().torch_string_length(box, ctypes.byref(length))
            _shim().torch_string_c_str(box, ctypes.byref(text))
            return ctypes.string_at(text.value or 0, length.value).decode()
        if kind == "ints":
            return _numbers_of(box)
        signed = ctypes.c_int64(box).value
        if kind == "float":
            return ctypes.c_double.from_buffer(ctypes.c_uint64(box)).value
        if kind == "dtype":
            return _DTYPES[signed & 0xFFFFFFFF]
        return bool(signed & 0xFF) if kind == "bool" else signed


def _register(op: torch._ops.OpOverload, function: int) -> ctypes.c_void_p:
    namespace, _, name = op.name().partition("::")
    library = ctypes.c_void_p()
    shim = _shim()
    failed = shim.aoti_torch_library_init_impl(namespace.encode(), b"CPU", b"litz.eager", 0, ctypes.byref(library))
    failed = failed or shim.torch_library_impl(library, name.encode(), function, _build_version())
    if failed:
        raise LitzError(f"torch refused the kernel for {op.name()}")
    return library


def _build_version() -> int:
    """Of torch, in the form that its C interface has it: how arguments are boxed depends on it."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return major << 56 | minor << 48


def _shim() -> Any:
    global _SHIM
    if _SHIM is None:
        _SHIM = ctypes.CDLL(torch_library())
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        for name, types in {
            "aoti_torch_library_init_impl": [ctypes.c_char_p] * 3 + [ctypes.c_uint32, pointer],
            "torch_library_impl": [pointer, ctypes.c_char_p, pointer, ctypes.c_uint64],
            "aoti_torch_delete_library_object": [pointer],
            "aoti_torch_new_tensor_handle": [pointer, pointer],
            "aoti_torch_delete_tensor_object": [pointer],
            "torch_string_length": [pointer, pointer],
            "torch_string_c_str": [pointer, pointer],
            "torch_delete_string": [pointer],
            "torch_list_size": [pointer, pointer],
            "torch_list_get_item": [pointer, size, pointer],
            "torch_delete_list": [pointer],
        }.items():
            getattr(_SHIM, name).argtypes = types
    return _SHIM


_SHIM: Any = None


def _tensor_of(handle: int) -> torch.Tensor:
    """The tensor of a handle, which stays the stack's."""
    own = ctypes.c_void_p()
    _shim().aoti_torch_new_tensor_handle(handle, ctypes.byref(own))
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule(own, None, None))  # type: ignore[attr-defined]


def _handle_of(tensor: torch.Tensor) -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return pointer(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor), None)  # type: ignore[attr-defined]


def _numbers_of(handle: int) -> list[int]:
    count, item = ctypes.c_size_t(), ctypes.c_int64()
    _shim().torch_list_size(handle, ctypes.byref(count))
    found = []
    for position in range(count.value):
        _shim().torch_list_get_item(handle, position, ctypes.byref(item))
        found.append(item.value)
    return found


def _let_go(box: int, kind: str, optional: bool) -> None:
    """What the stack owns."""
    delete = {
        "tensor": "aoti_torch_delete_tensor_object", "str": "torch_delete_string", "ints": "torch_delete_list",
    }.get(kind)  # fmt: skip
    inner = ctypes.c_uint64.from_address(box).value if optional and box else box
    if delete is not None and (box or not optional):
        getattr(_shim(), delete)(inner)
    if optional and box:
        _delete()(box)


def _delete() -> Any:
    """C++'s `delete`, of what its `new` has made."""
    function = ctypes.CDLL(None)["_ZdlPv"] if hasattr(ctypes.CDLL(None), "_ZdlPv") else _shim()["_ZdlPv"]
    function.argtypes, function.restype = [ctypes.c_void_p], None
    return function


_THREAD = threading.local()
_RETIRED: list[_Enabled] = []
_ENABLED: dict[str, _Enabled] = {}


__all__ = ["disable", "enable", "enabled"]
