"""Load: object files of this x86-64 process, into one mapping of its memory.

All of a program's code and constants lie in one piece, so that whatever refers to another place by a distance of 32
bits reaches it wherever the system puts the piece. What lies outside (torch, OpenMP, the C library) is reached through
a table of addresses: functions by a jump through it.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from litz.errors import CompileError
from litz.runtime.elf import NO_BYTES, ObjectFile, Relocation, Section

# Relocations of x86-64.
_ABSOLUTE_64, _DISTANCE_32, _DISTANCE_64, _CALL = 1, 2, 24, 4
_TABLE_DISTANCE = (9, 41, 42)  # to the address in the table
_KNOWN = {_ABSOLUTE_64, _DISTANCE_32, _DISTANCE_64, _CALL, *_TABLE_DISTANCE}
_JUMP = b"\xff\x25"  # through the address at a distance of 32 bits from its end
_JUMP_BYTES, _ADDRESS_BYTES = 8, 8
_UNWINDING = ".eh_frame"
_TERMINATOR = 8  # zeros behind what tells how to unwind

Place = tuple[int, int]  # an object, and a section of it


def can_load(files: Sequence[ObjectFile]) -> bool:
    """Whether this loader knows all that is in them."""
    return all(
        file.is_elf
        and file.machine == "x86_64"
        and all(r.kind in _KNOWN or not file.sections[r.section].is_in_memory for r in file.relocations)
        for file in files
    )


@dataclass(frozen=True)
class _Layout:
    """Offsets in the mapping: code, then what is only read, then what is written, each from a page of its own."""

    places: dict[Place, int]
    jumps: dict[str, int]
    table: dict[str, int]
    constants: int  # where these begin
    variables: int
    end: int


class Loaded:
    """The objects' code, in memory as long as this is."""

    def __init__(self, files: Sequence[ObjectFile], outside: Mapping[str, int]):
        """`outside`: where those things lie that no object defines."""
        layout = _laid_out(files)
        self._memory = mmap.mmap(-1, max(layout.end, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._addresses = {
            symbol.name: self._base + layout.places[n, symbol.section] + symbol.value
            for n, file in reversed(list(enumerate(files)))
            for symbol in file.symbols
            if symbol.name and not symbol.is_local and (n, symbol.section) in layout.places
        }
        self._copy(files, layout)
        self._fill_table(layout, outside)
        for n, file in enumerate(files):
            for relocation in file.relocations:
                if (n, relocation.section) in layout.places:
                    self._relocate(n, file, relocation, layout)
        self._protect(layout)
        self._tell_how_to_unwind(files, layout)

    def address(self, name: str) -> int:
        """Of a function or variable; 0 if there is none of that name."""
        return self._addresses.get(name, 0)

    def _copy(self, files: Sequence[ObjectFile], layout: _Layout) -> None:
        for (n, index), at in layout.places.items():
            section = files[n].sections[index]
            if section.kind != NO_BYTES:
                self._memory[at : at + section.size] = files[n].bytes_of(section)

    def _fill_table(self, layout: _Layout, outside: Mapping[str, int]) -> None:
        for name, at in layout.table.items():
            struct.pack_into("<Q", self._memory, at, self._addresses.get(name) or outside[name])
        for name, at in layout.jumps.items():
            jump = _JUMP + struct.pack("<i", layout.table[name] - (at + len(_JUMP) + 4))
            self._memory[at : at + len(jump)] = jump

    def _relocate(self, n: int, file: ObjectFile, relocation: Relocation, layout: _Layout) -> None:
        symbol = file.symbols[relocation.symbol]
        at = layout.places[n, relocation.section] + relocation.offset
        if relocation.kind in _TABLE_DISTANCE:
            target = self._base + layout.table[symbol.name]
        elif symbol.section:
            target = self._base + layout.places[n, symbol.section] + symbol.value
        elif symbol.name in self._addresses:  # another object's
            target = self._addresses[symbol.name]
        elif relocation.kind == _ABSOLUTE_64:
            (target,) = struct.unpack_from("<Q", self._memory, layout.table[symbol.name])
        else:
            target = self._base + layout.jumps[symbol.name]
        value = target + relocation.addend
        if relocation.kind == _ABSOLUTE_64:
            struct.pack_into("<Q", self._memory, at, value)
        else:
            form = "<q" if relocation.kind == _DISTANCE_64 else "<i"
            struct.pack_into(form, self._memory, at, value - (self._base + at))

    def _protect(self, layout: _Layout) -> None:
        for start, end, rights in (
            (0, layout.constants, mmap.PROT_READ | mmap.PROT_EXEC),
            (layout.constants, layout.variables, mmap.PROT_READ),
        ):
            if start < end and _libc().mprotect(self._base + start, end - start, rights):
                reason = "this system lets no process execute memory that it has written"
                raise CompileError(f"generated code cannot be loaded: {reason}", stage="build")

    def _tell_how_to_unwind(self, files: Sequence[ObjectFile], layout: _Layout) -> None:
        """Exceptions of torch pass through the functions that say how."""
        for (n, index), at in layout.places.items():
            if files[n].sections[index].name == _UNWINDING:
                _unwinder()["__register_frame"](ctypes.c_void_p(self._base + at))
                weakref.finalize(self, _forget_frames, self._base + at)


def _forget_frames(address: int) -> None:
    _unwinder()["__deregister_frame"](ctypes.c_void_p(address))


def _laid_out(files: Sequence[ObjectFile]) -> _Layout:
    outside, through_table = _references(files)
    places: dict[Place, int] = {}
    jumps: dict[str, int] = {}
    table: dict[str, int] = {}

    def put(wanted: Callable[[Section], bool], at: int) -> int:
        for n, file in enumerate(files):
            for index, section in enumerate(file.sections):
                if section.is_in_memory and wanted(section):
                    at = places[n, index] = _up(at, section.alignment)
                    at += section.size + (_TERMINATOR if section.name == _UNWINDING else 0)
        return at

    end = put(lambda s: s.is_code, 0)
    end = _up(end, _JUMP_BYTES)
    for name in sorted(outside):
        jumps[name], end = end, end + _JUMP_BYTES
    constants = _up(end, mmap.PAGESIZE)
    end = _up(put(lambda s: not s.is_code and not s.is_written, constants), _ADDRESS_BYTES)
    for name in sorted(outside | through_table):
        table[name], end = end, end + _ADDRESS_BYTES
    variables = _up(end, mmap.PAGESIZE)
    return _Layout(places, jumps, table, constants, variables, put(lambda s: s.is_written, variables))


def _references(files: Sequence[ObjectFile]) -> tuple[set[str], set[str]]:
    """The names of what lies outside, and of what is asked for through the table of addresses."""
    defined = {s.name for file in files for s in file.symbols if s.section and not s.is_local}
    outside, through_table = set(), set()
    for file in files:
        for relocation in file.relocations:
            symbol = file.symbols[relocation.symbol]
            if not file.sections[relocation.section].is_in_memory:
                continue
            if relocation.kind in _TABLE_DISTANCE:
                through_table.add(symbol.name)
            elif not symbol.section and symbol.name not in defined:
                outside.add(symbol.name)
    return outside, through_table


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


@lru_cache(maxsize=1)
def _libc() -> Any:
    library = ctypes.CDLL(None)
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


@lru_cache(maxsize=1)
def _unwinder() -> Any:
    return ctypes.CDLL("libgcc_s.so.1")  # the one that torch's exceptions go through


__all__ = ["Loaded", "can_load"]
