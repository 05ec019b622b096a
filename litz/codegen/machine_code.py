"""Machine code of GPUs: PTX in, a cubin out. It takes no GPU, and as many threads as there are do it at once.

torch's builds for CUDA bring NVIDIA's library for it, nvJitLink, since cuSPARSE needs it too. Where there is none, or
it is older than the GPU, the driver makes machine code of PTX while loading it, one kernel after the other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from litz.compat import jit_linker_library

_PTX = 2  # the kind of input


class NotAssembled(Exception):
    """Why there is no machine code, in words."""


class Assembler:
    """The library at a path. Each call has a handle of its own, so threads do not meet."""

    def __init__(self, path: str):
        try:
            library = ctypes.CDLL(path)
            self._call = {name: _function(library, name, takes) for name, takes in _FUNCTIONS.items()}
        except (OSError, AttributeError) as error:
            raise NotAssembled(f"{path} is no nvJitLink of CUDA 12.4 or newer: {error}") from error
        major, minor = ctypes.c_uint(), ctypes.c_uint()
        self._call["Version"](ctypes.byref(major), ctypes.byref(minor))
        self.version = f"nvJitLink {major.value}.{minor.value}"

    def cubin(self, ptx: bytes, level: int) -> bytes:
        """What GPUs of that level run."""
        options = (ctypes.c_char_p * 1)(f"-arch=sm_{level}".encode())
        handle = ctypes.c_void_p()
        status = self._call["Create"](ctypes.byref(handle), len(options), options)
        if status:
            raise NotAssembled(f"{self.version} does not know GPUs of level sm_{level} (status {status})")
        try:
            self._checked(handle, "AddData", _PTX, ptx, len(ptx), b"kernel")
            self._checked(handle, "Complete")
            size = ctypes.c_size_t()
            self._checked(handle, "GetLinkedCubinSize", ctypes.byref(size))
            made = ctypes.create_string_buffer(size.value)
            self._checked(handle, "GetLinkedCubin", made)
            return made.raw
        finally:
            self._call["Destroy"](ctypes.byref(handle))

    def _checked(self, handle: Any, name: str, *args: Any) -> None:
        status = self._call[name](handle, *args)
        if status:
            raise NotAssembled(f"{self.version} refuses generated code (status {status}): {self._log(handle)}")

    def _log(self, handle: Any) -> str:
        size = ctypes.c_size_t()
        if self._call["GetErrorLogSize"](handle, ctypes.byref(size)) or not size.value:
            return "it does not say why"
        text = ctypes.create_string_buffer(size.value + 1)
        self._call["GetErrorLog"](handle, text)
        return text.value.decode(errors="replace").strip()


def _function(library: ctypes.CDLL, name: str, takes: tuple[Any, ...]) -> Callable[..., int]:
    function = library[f"nvJitLink{name}"]
    function.argtypes, function.restype = takes, ctypes.c_int
    return function


_HANDLE, _ANY, _SIZE = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "Create": (_ANY, ctypes.c_uint32, _ANY),
    "Destroy": (_ANY,),
    "AddData": (_HANDLE, ctypes.c_int, ctypes.c_char_p, _SIZE, ctypes.c_char_p),
    "Complete": (_HANDLE,),
    "GetLinkedCubinSize": (_HANDLE, _ANY),
    "GetLinkedCubin": (_HANDLE, _ANY),
    "GetErrorLogSize": (_HANDLE, _ANY),
    "GetErrorLog": (_HANDLE, _ANY),
    "Version": (_ANY, _ANY),
}


@lru_cache(maxsize=1)
def assembler() -> Assembler | NotAssembled:
    """This process's, or why there is none."""
    path = jit_linker_library()
    if path is None:
        return NotAssembled("there is no nvJitLink (pip install nvidia-nvjitlink)")
    try:
        return Assembler(path)
    except NotAssembled as why:
        return why


def assembler_version() -> str:
    """For keys: what machine code is made by."""
    found = assembler()
    return found.version if isinstance(found, Assembler) else "the driver"


def cubin_of(ptx: bytes, level: int) -> bytes:
    found = assembler()
    if not isinstance(found, Assembler):
        raise NotAssembled(str(found))
    return found.cubin(ptx, level)


__all__ = ["Assembler", "NotAssembled", "assembler", "assembler_version", "cubin_of"]
