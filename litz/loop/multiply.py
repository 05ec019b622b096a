"""Instructions that multiply and add, one row each: what generated products are planned around.

In: a machine, and the types of two factors. Out: the `Multiply` that takes most products at once. It reads words of
four bytes: the numbers of a group lie side by side along the depth, and one lane multiplies and adds them all. Factors
of types that no row takes are made float32 on the way into packed memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.target import Machine, Target

WORD = 4  # bytes


@dataclass(frozen=True)
class Multiply:
    name: str
    factors: str  # the type of both, as they lie in packed memory
    total: str
    group: int  # numbers in a word
    needs: tuple[str, ...] = ()  # features of the processor
    on_tiles: bool = False  # factors and sums are in tiles of sixteen rows of sixteen words, and not in vectors


# The first that the machine has, and that takes the factors as they are, is the best. The rest of them is fed float32.
MULTIPLIES = (
    Multiply("tdpbf16ps", "bf16", "f32", 2, ("amx-bf16", "amx-tile", "avx512bf16"), on_tiles=True),
    Multiply("vdpbf16ps", "bf16", "f32", 2, ("avx512bf16",)),
    Multiply("fma", "f32", "f32", 1),
)


def multiply_for(target: Machine, left: str, right: str) -> Multiply:
    """For float sums of products of factors of these types."""
    return next(
        row
        for row in MULTIPLIES
        if row.group == 1 or (left == right == row.factors and isinstance(target, Target) and target.has_all(row.needs))
    )


__all__ = ["MULTIPLIES", "WORD", "Multiply", "multiply_for"]
