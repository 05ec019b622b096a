"""Plain text tables, and the geometric mean.

In: rows of cells. Out: aligned lines. A missing figure is a dash, so that a table is whole even when a
contender failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def render(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns aligned; the first to the left, figures to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def line_of(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths)]
        padded[0] = cells[0].ljust(widths[0])
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line_of(lines[0]), rule, *map(line_of, lines[1:])])


def figure(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def geometric_mean(values: Sequence[float | None]) -> float | None:
    """None when a value is missing: a mean over the models that worked would flatter."""
    if not values or any(value is None or value <= 0 for value in values):
        return None
    return math.exp(sum(math.log(value) for value in values if value is not None) / len(values))
