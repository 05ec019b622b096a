"""Inputs of a graph that are constants of the program, whose values are known where it is called.

In: an input with a number in its `meta`. Out: among the constants of the program, a `Held` of that number; or an
`InPanels`, where a product reads it as a matrix, packed once and not at every call.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.loop.panels import Panels

CONSTANT = "constant"  # in the `meta` of an input


@dataclass(frozen=True)
class Held:
    """The constant of this number, in a recipe (`graph/recipe.py`)."""

    number: int


@dataclass(frozen=True)
class InPanels:
    """The same, seen through a window of lines by steps by columns, in panels."""

    number: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    panels: Panels


__all__ = ["CONSTANT", "Held", "InPanels"]
