"""Instructions that multiply and add, one row each: what generated products are planned around.

In: a machine, and the types of two factors. Out: the `Multiply` that takes most products at once. It reads words of
four bytes: the numbers of a group lie side by side along the depth, and one lane multiplies and adds them all. Factors
of types that no row takes as they are become wider ones on the way into packed memory: halves float32, whole numbers of
8 bits those of 16 or 32. Sums of whole numbers are exact, whichever row is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.target import Machine, Target

WORD = 4  # bytes


@dataclass(frozen=True)
class Multiply:
    name: str
    rows: str  # the type of a row's numbers, as they lie in packed memory
    columns: str
    total: str
    group: int  # numbers in a word
    needs: tuple[str, ...] = ()  # features of the processor
    on_tiles: bool = False  # factors and sums are in tiles of sixteen rows of sixteen words, and not in vectors
    widens: tuple[str, ...] = ()  # types of factors that become its own while they are packed
    widest: int = 64  # bytes of a vector that it takes

    def takes(self, left: str, right: str, total: str) -> bool:
        return self.total == total and left in (self.rows, *self.widens) and right in (self.columns, *self.widens)


_BYTES = ("u8", "i8")

# The first that the machine has, and that takes the factors, is the best.
MULTIPLIES = (
    Multiply("tdpbf16ps", "bf16", "bf16", "f32", 2, ("amx-bf16", "amx-tile", "avx512bf16"), True, ("i8",)),
    Multiply("vdpbf16ps", "bf16", "bf16", "f32", 2, ("avx512bf16",), widens=("i8",)),
    Multiply("fma", "f32", "f32", "f32", 1, widens=("bf16", "f16", "i8")),
    Multiply("tdpbusd", "u8", "i8", "i32", 4, ("amx-int8", "amx-tile", "avx512vnni"), on_tiles=True),
    Multiply("vpdpbusd", "u8", "i8", "i32", 4, ("avx512vnni", "avx512bw")),
    Multiply("vpdpbusd", "u8", "i8", "i32", 4, ("avxvnni",), widest=32),
    Multiply("vpmaddwd", "i16", "i16", "i32", 2, ("avx2",), widens=_BYTES),
    Multiply("imul", "i32", "i32", "i32", 1, widens=(*_BYTES, "i16")),
)


def multiply_for(target: Machine, left: str, right: str, total: str = "f32") -> Multiply:
    """For sums, of type `total`, of products of factors of these types."""
    return next(row for row in MULTIPLIES if row.takes(left, right, total) and _has(target, row))


def _has(target: Machine, row: Multiply) -> bool:
    if not row.needs:
        return True
    return isinstance(target, Target) and target.has_all(row.needs) and target.vector_bytes <= row.widest


__all__ = ["MULTIPLIES", "WORD", "Multiply", "multiply_for"]
