"""Inputs of a graph that are constants of the program, whose values are known where it is called.

In: an input with a number in its `meta`. Out: among the constants of the program, a `Held` of that number.
"""

from __future__ import annotations

from dataclasses import dataclass

CONSTANT = "constant"  # in the `meta` of an input


@dataclass(frozen=True)
class Held:
    """The constant of this number, in a recipe (`graph/recipe.py`)."""

    number: int


__all__ = ["CONSTANT", "Held"]
