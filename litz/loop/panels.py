"""Columns of a matrix in panels, as the micro-kernel of products reads them.

In: the sizes of a matrix of constants. Out: where each of its elements lies once it is packed: panel after panel, in
each the words of the depth one after the other, in each of those the panel's columns. A word is one step of the depth,
or as many as an instruction takes at once. The depth may be lines along an inner axis, each of which is padded to whole
vectors of words; padding is zeros, as are the columns past the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.loop.expr import Expr

PANEL_VECTORS = 2  # vectors of columns in a panel


@dataclass(frozen=True)
class Panels:
    """`lines` of `inner` steps, each padded to `padded` words of `group` steps; panels of `width` columns."""

    lines: int
    inner: int
    padded: int
    columns: int
    width: int
    group: int = 1

    @property
    def count(self) -> int:
        return -(-self.columns // self.width)

    @property
    def depth(self) -> int:
        """Of a panel, in words."""
        return self.lines * self.padded

    @property
    def size(self) -> int:
        """Elements of all panels."""
        return self.count * self.depth * self.width * self.group

    def at(self, line: Expr, step: Expr, column: Expr) -> Expr:
        """Where the element of this column, at this step of this line, lies."""
        down = line * self.padded + step // self.group
        word = column // self.width * (self.depth * self.width) + down * self.width + column % self.width
        return word * self.group + step % self.group


def panels(lines: int, inner: int, columns: int, lanes: int, group: int = 1) -> Panels:
    """For vectors of so many words."""
    chunk = lanes * group
    return Panels(lines, inner, -(-inner // chunk) * lanes, columns, PANEL_VECTORS * lanes, group)


__all__ = ["PANEL_VECTORS", "Panels", "panels"]
