"""The axes that the values of a kernel vary over.

In: a kernel's body. Out: for every value, its axes.
"""

from __future__ import annotations

from litz.loop.expr import Axis
from litz.loop.ir import Index, Load, Op, Reduce, Scan, Store, operands


def depends(body: tuple[Op, ...], reduced: tuple[Axis, ...]) -> dict[str, frozenset[Axis]]:
    """The axes each value varies over; a reduction takes the reduced ones away."""
    away = frozenset(reduced)
    found: dict[str, frozenset[Axis]] = {}
    for op in body:
        if isinstance(op, Store):
            continue
        axes: frozenset[Axis] = frozenset()
        if isinstance(op, Load):
            axes = frozenset(op.index.axes())
        elif isinstance(op, Index):
            axes = frozenset(op.expr.axes())
        for name in operands(op):
            axes |= found[name]
        found[op.name] = axes - away if isinstance(op, Reduce) else axes | away if isinstance(op, Scan) else axes
    return found
