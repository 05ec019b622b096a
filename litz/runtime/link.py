"""Link: object code in, addresses of functions out. No linker or file is involved."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from litz.codegen.gpu_code import GpuCode
from litz.codegen.llvm.build import llvm, target_machine
from litz.codegen.llvm.gpu_kernels import FUNCTIONS
from litz.compat import called_libraries
from litz.errors import CompileError
from litz.runtime.driver import Kernels
from litz.runtime.elf import ObjectFile
from litz.runtime.load import Loaded, can_load
from litz.target import Machine, Target

# What every host function takes: the table of pointers, the workspace, the table of sizes, the error cell.
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Code:
    """Machine code, alive as long as this object is."""

    def __init__(self, objects: Sequence[bytes], target: Machine, kernels: Sequence[GpuCode] = ()):
        self._kernels = Kernels(kernels) if kernels else None
        handles = self._kernels.handles if self._kernels is not None else []
        self._table = (ctypes.c_void_p * len(handles))(*handles)
        files = [ObjectFile(made) for made in objects]
        addresses = _addresses(files, {FUNCTIONS: ctypes.addressof(self._table)})
        _check_symbols(addresses, target.host)
        self._code = Loaded(files, addresses) if can_load(files) else _Engine(objects, target.host)

    @property
    def from_ptx(self) -> int:
        """Kernels that there was no machine code of, and the driver had to make some."""
        return 0 if self._kernels is None else self._kernels.from_ptx

    def function(self, name: str, prototype: Any = HOST_FUNCTION) -> Any:
        return prototype(self._code.address(name))

    def address(self, name: str) -> int:
        """Of a function, or of a global."""
        return self._code.address(name)


class _Engine:
    """LLVM's own loader, for other formats and processors. Its pieces of memory may lie too far apart from one another
    for code that counts on 32 bits; it ends the process then."""

    def __init__(self, objects: Sequence[bytes], target: Target):
        # Kernels call OpenMP's runtime and SLEEF; both are loaded already, and now LLVM can see them.
        for path in called_libraries():
            llvm().load_library_permanently(path)
        # An engine is made of a module, and outlives the module's context unless that is the one of the process.
        self._engine = llvm().create_mcjit_compiler(llvm().parse_assembly(""), target_machine(target))
        for made in objects:
            self._engine.add_object_file(llvm().ObjectFileRef.from_data(made))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        return self._engine.get_function_address(name) or self._engine.get_global_value_address(name)


_KNOWN: dict[str, int] = {}  # process-wide, as the functions are


def _addresses(files: Iterable[ObjectFile], own: Mapping[str, int]) -> dict[str, int]:
    """Of all that the code calls and does not define; 0 where the process has nothing of that name."""
    wanted: set[str] = set()
    defined: set[str] = set()
    for file in files:
        for name, is_defined in _symbols(file):
            (defined if is_defined else wanted).add(name)
    wanted -= defined
    unknown = wanted - own.keys() - _KNOWN.keys()
    if unknown:
        libraries = [*map(ctypes.CDLL, called_libraries()), ctypes.CDLL(None)]
        _KNOWN.update((name, at) for name in unknown if (at := _address_in(libraries, name)))
    return {name: own.get(name) or _KNOWN.get(name, 0) for name in wanted}


def _address_in(libraries: Iterable[ctypes.CDLL], name: str) -> int:
    for library in libraries:
        try:
            return ctypes.cast(library[name], ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return 0


def _check_symbols(addresses: Mapping[str, int], target: Target) -> None:
    """Whether the process has all that the code calls."""
    missing = sorted(name for name, address in addresses.items() if not address)
    if missing:
        raise CompileError(
            f"generated code for {target} calls {', '.join(missing)}, which this process does not have",
            stage="build",
            hint="this is a defect of Litz; please report it with the program and the versions of torch and the system",
        )


def undefined_symbols(built: bytes) -> list[str]:
    """The names that an object file leaves to others."""
    return [name for name, is_defined in _symbols(ObjectFile(built)) if not is_defined]


def _symbols(file: ObjectFile) -> list[tuple[str, bool]]:
    """The names in an object file, and whether it defines them."""
    if not file.is_elf:
        return []  # another system's format, whose own linker has to find out
    return [(symbol.name, symbol.section != 0) for symbol in file.symbols if symbol.name]


__all__ = ["HOST_FUNCTION", "Code", "undefined_symbols"]
