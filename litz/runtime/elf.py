"""An object file (64-bit ELF, little-endian) as data: its sections, symbols and relocations."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

_SYMBOL_TABLE, _RELOCATIONS, NO_BYTES = 2, 4, 8  # kinds of sections
_WRITE, _IN_MEMORY, _EXECUTE = 1, 2, 4  # flags of sections
_MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    flags: int
    start: int
    size: int
    link: int  # another section: of a table of symbols, their names; of relocations, the table
    info: int  # of relocations, the section that they are in
    alignment: int

    @property
    def is_in_memory(self) -> bool:
        return bool(self.flags & _IN_MEMORY)

    @property
    def is_code(self) -> bool:
        return bool(self.flags & _EXECUTE)

    @property
    def is_written(self) -> bool:
        return bool(self.flags & _WRITE)


@dataclass(frozen=True)
class Symbol:
    name: str
    section: int  # 0 is another file's
    value: int  # where it is in the section
    is_local: bool


@dataclass(frozen=True)
class Relocation:
    """A place in a section that depends on where a symbol lies."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


class ObjectFile:
    """Where `is_elf` is false, nothing else is known of it."""

    def __init__(self, data: bytes):
        self.data = data

    @property
    def is_elf(self) -> bool:
        return self.data[:6] == b"\x7fELF\x02\x01"

    @property
    def machine(self) -> str:
        (number,) = struct.unpack_from("<H", self.data, 0x12)
        return _MACHINES.get(number, str(number))

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        (at,) = struct.unpack_from("<Q", self.data, 0x28)
        size, count, names = struct.unpack_from("<HHH", self.data, 0x3A)
        # Of each: name, kind, flags, address, offset, size, link, info, alignment, size of an entry.
        rows = [struct.unpack_from("<IIQQQQIIQQ", self.data, at + i * size) for i in range(count)]
        strings = rows[names][4]
        return tuple(
            Section(self._text(strings + name), kind, flags, start, length, link, info, max(alignment, 1))
            for name, kind, flags, _, start, length, link, info, alignment, _ in rows
        )

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        found = []
        for table in self.sections:
            if table.kind == _SYMBOL_TABLE:
                strings = self.sections[table.link].start
                for name, info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", self.bytes_of(table)):
                    found.append(Symbol(self._text(strings + name) if name else "", section, value, info >> 4 == 0))
        return tuple(found)

    @cached_property
    def relocations(self) -> tuple[Relocation, ...]:
        return tuple(
            Relocation(table.info, offset, info & 0xFFFFFFFF, info >> 32, addend)
            for table in self.sections
            if table.kind == _RELOCATIONS
            for offset, info, addend in struct.iter_unpack("<QQq", self.bytes_of(table))
        )

    def bytes_of(self, section: Section) -> bytes:
        return self.data[section.start : section.start + section.size]

    def _text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode()


__all__ = ["NO_BYTES", "ObjectFile", "Relocation", "Section", "Symbol"]
