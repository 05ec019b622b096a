"""Resolve places: a whole number that follows from the axes is an index expression, and no data.

In: a kernel into which was inlined what makes its indices. Out: the same kernel, where sums, products, quotients and
remainders of positions and constants are one expression each, and a place proved to be in range is read directly:
without a `Check`, and without an index at run time. What cannot be proved stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from litz.loop.dtype import DTYPES
from litz.loop.expr import Expr, constant, is_below, is_nonnegative, is_positive
from litz.loop.ir import Apply, Check, Const, Definition, Index, Kernel, Load, Op, Store, operands

# Where sizes are known only at run time: the bits of a coefficient that stays clear of the largest whole number, and
# those of a size where several are multiplied.
_MODERATE, _OF_A_SIZE, _IN_ALL = 31, 20, 62

_ARITHMETIC: dict[str, Callable[..., Expr | None]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "cast": lambda a: a,
    "floor_div": lambda a, b: a // b if is_positive(b) else None,
    "trunc_div": lambda a, b: a // b if is_positive(b) and is_nonnegative(a) else None,
    "remainder": lambda a, b: a % b if is_positive(b) else None,
    "eq": lambda a, b: constant(0) if is_nonnegative(a - b - 1) or is_nonnegative(b - a - 1) else None,
    "fmod": lambda a, b: a % b if is_positive(b) and is_nonnegative(a) else None,
}


def resolve_places(kernel: Kernel) -> Kernel:
    if not any(isinstance(op, (Index, Check)) for op in kernel.body):
        return kernel
    known: dict[str, Expr] = {}  # value -> what it is, in axes and sizes
    body: list[Op] = []
    for op in kernel.body:
        if isinstance(op, (Load, Store)):
            op = replace(op, index=_direct(op.index, known))
        elif isinstance(op, Index):
            op = replace(op, expr=_direct(op.expr, known))
        elif isinstance(op, Check):
            op = replace(op, limit=_direct(op.limit, known))
        if not isinstance(op, Store):
            found = _meaning(op, known)
            if found is not None and _fits(found, op.dtype):
                known[op.name] = found
                if isinstance(op, (Apply, Check)):
                    op = Const(op.name, "b1", False) if op.dtype == "b1" else Index(op.name, op.dtype, found)
        body.append(op)
    if tuple(body) == kernel.body:
        return kernel
    return replace(kernel, body=tuple(_without_idle(body)))


def is_position(kernel: Kernel) -> bool:
    """Whether all it does is to store one whole number that follows from its axes."""
    *made, store = kernel.body
    return len(made) == 1 and isinstance(made[0], Index) and isinstance(store, Store) and store.update is None


def _direct(e: Expr, known: dict[str, Expr]) -> Expr:
    return e.substitute({value: known[value.name] for value in e.values() if value.name in known})


def _meaning(op: Definition, known: dict[str, Expr]) -> Expr | None:
    if isinstance(op, Index):
        return None if op.expr.values() else op.expr
    if isinstance(op, Const):
        return constant(op.value) if isinstance(op.value, int) and not isinstance(op.value, bool) else None
    if isinstance(op, Check):
        return _place(known[op.value], op.limit, op.wrap) if op.value in known else None
    if not isinstance(op, Apply) or op.op not in _ARITHMETIC or any(name not in known for name in op.args):
        return None
    return _ARITHMETIC[op.op](*(known[name] for name in op.args))


def _place(e: Expr, limit: Expr, wrap: bool) -> Expr | None:
    """Where that is, if it is proved in range; a negative number counts from the end if `wrap`."""
    if not is_below(e, limit):
        return None
    if is_nonnegative(e):
        return e
    if not wrap or not is_nonnegative(e + limit):
        return None
    return e + limit if is_nonnegative(-e - 1) else e % limit


def _fits(e: Expr, dtype: str) -> bool:
    """Whether the type holds all its values: an expression does not wrap around, and a number does."""
    form = DTYPES[dtype]
    low, high = e.bounds()
    if form.kind == "bool":
        return low == high == 0  # a comparison that never holds
    if form.kind == "float":
        return False
    least = 0 if form.kind == "uint" else -(1 << (form.bits - 1))
    if low is not None and high is not None:
        return least <= low and high < least + (1 << form.bits)
    return dtype == "i64" and all(map(_is_moderate, *zip(*e.terms, strict=True)))


def _is_moderate(factors: tuple, coefficient: int) -> bool:
    bits = abs(coefficient).bit_length()
    return bits <= _MODERATE and bits + _OF_A_SIZE * len(factors) <= _IN_ALL


def _without_idle(body: list[Op]) -> list[Op]:
    """The operators that something comes of: a store, or an error."""
    wanted: set[str] = set()
    kept: list[Op] = []
    for op in reversed(body):
        if isinstance(op, (Store, Check)) or op.name in wanted:
            wanted.update(operands(op))
            kept.append(op)
    return kept[::-1]


__all__ = ["is_position", "resolve_places"]
