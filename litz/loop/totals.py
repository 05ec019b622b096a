"""Totals across rows: what each step of a kernel's reduced axes adds up to over its parallel ones.

In: a kernel that stores totals. Out: how many it has of each column. Rows whose numbers leave the same remainder add to
the same one, so that as many teams can take rows in turn and none waits for another; what they come to is put together
by a kernel behind it.
"""

from __future__ import annotations

from litz.loop.expr import ZERO, Expr, Mod, expr
from litz.loop.ir import Kernel, Store
from litz.loop.radix import flat


def totals_of(kernel: Kernel) -> tuple[Store, ...]:
    return tuple(op for op in kernel.stores if op.update == "total")


def parts_of(kernel: Kernel) -> int | None:
    """Totals of each column; None where there are none, or the index of one does not say how many."""
    found = {_parts(kernel, op.index) for op in totals_of(kernel)}
    return found.pop() if len(found) == 1 else None


def _parts(kernel: Kernel, index: Expr) -> int | None:
    """Of an index that is `a * (row % parts)` and a place among the columns."""
    rows = flat(kernel.axes)
    columns = index.substitute(dict.fromkeys(kernel.axes, ZERO))
    for monomial, step in index.terms:
        for atom in monomial:
            if isinstance(atom, Mod) and atom.den.is_int and expr(atom) is rows % atom.den:
                return atom.den.int if columns + expr(atom) * step is index else None
    return None


__all__ = ["parts_of", "totals_of"]
