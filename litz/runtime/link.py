"""Link: object code in, addresses of functions out. No linker or file is involved."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from litz.codegen.llvm.build import llvm, target_machine
from litz.compat import openmp_library, torch_library
from litz.errors import CompileError
from litz.target import Target

# What every host function takes: the table of pointers, the workspace, the table of sizes, the error cell.
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@lru_cache(maxsize=1)
def _linker() -> Any:
    # Kernels call OpenMP's runtime and SLEEF; both are loaded already, and now LLVM can see them.
    for path in (openmp_library(), torch_library()):
        if path is not None:
            llvm().load_library_permanently(path)
    return llvm()


class Code:
    """Machine code, alive as long as this object is."""

    def __init__(self, objects: Sequence[bytes], target: Target):
        binding = _linker()
        _check_symbols(objects, target)
        # An engine is made of a module, and outlives the module's context unless that is the one of the process.
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target_machine(target))
        for made in objects:
            self._engine.add_object_file(binding.ObjectFileRef.from_data(made))
        self._engine.finalize_object()

    def function(self, name: str, prototype: Any = HOST_FUNCTION) -> Any:
        return prototype(self._engine.get_function_address(name))

    def address(self, name: str) -> int:
        """Of a function, or of a global."""
        return self._engine.get_function_address(name) or self._engine.get_global_value_address(name)


def _check_symbols(objects: Iterable[bytes], target: Target) -> None:
    """Whether the process has all that the code calls: LLVM's linker ends the process where a symbol is missing."""
    wanted: set[str] = set()
    defined: set[str] = set()
    for made in objects:
        for name, is_defined in _symbols(made):
            (defined if is_defined else wanted).add(name)
    missing = sorted(name for name in wanted - defined if not _linker().address_of_symbol(name))
    if missing:
        raise CompileError(
            f"generated code for {target} calls {', '.join(missing)}, which this process does not have",
            stage="build",
            hint="this is a defect of Litz; please report it with the program and the versions of torch and the system",
        )


def undefined_symbols(built: bytes) -> list[str]:
    """The names that an object file leaves to others."""
    return [name for name, is_defined in _symbols(built) if not is_defined]


def _symbols(built: bytes) -> list[tuple[str, bool]]:
    """The names in an object file (64-bit ELF), and whether it defines them."""
    if built[:5] != b"\x7fELF\x02":
        return []  # another system's format, whose own linker has to find out
    (sections_at,) = struct.unpack_from("<Q", built, 0x28)
    size, count = struct.unpack_from("<HH", built, 0x3A)
    # Of each section: name, type, flags, address, offset, size, link, info, alignment, size of an entry.
    sections = [struct.unpack_from("<IIQQQQIIQQ", built, sections_at + i * size) for i in range(count)]
    found = []
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        at, length, strings = section[4], section[5], sections[section[6]][4]
        for name, _, _, defined_in, _, _ in struct.iter_unpack("<IBBHQQ", built[at : at + length]):
            if name:
                start = strings + name
                found.append((built[start : built.index(b"\0", start)].decode(), defined_in != 0))
    return found


_SYMBOL_TABLE = 2


__all__ = ["HOST_FUNCTION", "Code", "undefined_symbols"]
