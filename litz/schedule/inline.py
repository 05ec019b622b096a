"""Inline a kernel into another one, which computes again what it would have loaded.

In: the kernel that stores a buffer, one that loads it, and the buffer. Out: the second without those loads, or the
`Refusal` that says why they stay. `inline_masked` is for what is read through a mask, as a part of what is put together
or padded: the formula is computed at every point, its loads under that mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Union

from litz.loop.contraction import contraction
from litz.loop.dtype import DTYPES
from litz.loop.expr import ONE, ZERO, Axis, Expr, expr, is_nonnegative
from litz.loop.ir import Apply, Const, Index, Kernel, Load, Op, Store
from litz.loop.radix import mixed_radix
from litz.schedule.align import Moved, Refusal, Space
from litz.schedule.draft import Draft, divided_axes
from litz.schedule.merge import LARGEST_BODY, PRODUCT_SECOND, TOO_LARGE

_NO_PLACE = Refusal("what is loaded is not known to be what is stored")
_OTHER_PLACES = Refusal("the elements read are not the elements made")
_NOT_ONE_LOAD = Refusal("the buffer is not read once, through a mask")
_MORE_THAN_A_FORMULA = Refusal("what makes the buffer is more than a formula of loads")


def inline(producer: Kernel, consumer: Kernel, buffer: str) -> Union[Kernel, Refusal]:
    """The consumer with every load of `buffer` replaced by the producer's formula, computed again there."""
    if len(producer.body) + len(consumer.body) > LARGEST_BODY:
        return TOO_LARGE
    if contraction(consumer) is not None:
        return PRODUCT_SECOND
    (made,) = producer.stores
    number = mixed_radix(made.index, producer.axes)
    loads = [op for op in consumer.loads if op.buffer == buffer]
    if number is None or not loads or any(op.mask is not None or op.index.values() for op in loads):
        return _NO_PLACE
    formula = tuple(op for op in producer.body if not isinstance(op, Store))
    draft = Draft(consumer.name, Space(consumer.axes, consumer.reduced))
    values: dict[Expr, str] = {}
    for index in dict.fromkeys(op.index for op in loads):
        moved = number.digits_of(index)
        if made.index.substitute(moved) is not index:
            return _OTHER_PLACES
        begun = draft.addition(formula, moved)
        if isinstance(begun, Refusal):
            return begun
        draft.take(begun, consumer.name, producer.origins)
        values[index] = begun.names[made.value]
    addition = draft.addition(consumer.body, {}, {op.name: values[op.index] for op in loads})
    if isinstance(addition, Refusal):
        return addition
    touched = {op.index for op in consumer.body if isinstance(op, (Load, Store))}
    objection = draft.objection(addition, set().union(*map(divided_axes, touched)))
    if objection is not None:
        return objection
    draft.take(addition, consumer.name, consumer.origins)
    return draft.kernel()


def inline_masked(producer: Kernel, consumer: Kernel, buffer: str) -> Union[Kernel, Refusal]:
    """The consumer with its one load of `buffer`, a masked one, replaced by the producer's formula."""
    if len(producer.body) + len(consumer.body) > LARGEST_BODY:
        return TOO_LARGE
    loads = [op for op in consumer.loads if op.buffer == buffer]
    if len(loads) != 1 or loads[0].mask is None or loads[0].index.values() or consumer.reduced:
        return _NOT_ONE_LOAD
    (load,) = loads
    formula = tuple(op for op in producer.body if not isinstance(op, Store))
    if not all(isinstance(op, (Apply, Const, Index)) or _is_plain(op) for op in formula):
        return _MORE_THAN_A_FORMULA
    (made,) = producer.stores
    moved = _places(made, load, producer, consumer)
    if isinstance(moved, Refusal):
        return moved
    body: list[Op] = []
    for op in consumer.body:
        body += _computed(formula, made.value, load, moved) if op is load else [op]
    draft = Draft(consumer.name, Space(consumer.axes, consumer.reduced))
    addition = draft.addition(body, {})
    if isinstance(addition, Refusal):
        return addition
    draft.take(addition, consumer.name, (*producer.origins, *consumer.origins))
    return draft.kernel()


def _is_plain(op: Op) -> bool:
    return isinstance(op, Load) and op.mask is None and not op.index.values()


def _computed(formula: Sequence[Op], result: str, load: Load, moved: Moved) -> list[Op]:
    """The formula at the places the load reads, its own loads under the load's mask; and zero where that is false."""
    assert load.mask is not None
    ops: list[Op] = []
    for op in formula:
        name = f"{load.name}_{op.name}"  # type: ignore[union-attr]
        if isinstance(op, Load):
            ops.append(replace(op, name=name, index=op.index.substitute(moved), mask=load.mask))
        elif isinstance(op, Index):
            ops.append(replace(op, name=name, expr=op.expr.substitute(moved)))
        elif isinstance(op, Apply):
            ops.append(replace(op, name=name, args=tuple(f"{load.name}_{arg}" for arg in op.args)))
        else:
            assert isinstance(op, Const)
            ops.append(replace(op, name=name))
    zero = f"{load.name}_zero"
    ops.append(Const(zero, load.dtype, {"float": 0.0, "bool": False}.get(DTYPES[load.dtype].kind, 0)))
    return [*ops, Apply(load.name, load.dtype, "where", (load.mask, f"{load.name}_{result}", zero))]


# -- places under a mask ----------------------------------------------------------------------------
class _Range(NamedTuple):
    """`first <= axis < end`."""

    first: Expr
    end: Expr


def _places(made: Store, load: Load, producer: Kernel, consumer: Kernel) -> Union[Moved, Refusal]:
    """The producer's axes where the consumer reads, wherever the mask holds. What the mask says of an axis makes for
    places without division: the second half of a row is the first of what is read."""
    number = mixed_radix(made.index, producer.axes)
    if number is None:
        return _NO_PLACE
    shorter, back = {}, {}
    for axis, (first, end) in _ranges(load.mask, consumer).items():
        part = Axis(f"{axis.name}_part", end - first)
        shorter[axis] = expr(part) + first
        back[part] = expr(axis) - first
    index = load.index.substitute(shorter)
    moved = number.digits_of(index)
    if made.index.substitute(moved) is not index or any(map(divided_axes, moved.values())):
        return _OTHER_PLACES
    return {axis: place.substitute(back) for axis, place in moved.items()}


def _ranges(mask: str | None, consumer: Kernel) -> dict[Axis, _Range]:
    """What is known of the axes where the mask is true."""
    ops = {op.name: op for op in consumer.body if not isinstance(op, Store)}
    found: dict[Axis, _Range] = {}
    waiting = [mask]
    while waiting:
        op = ops.get(waiting.pop() or "")
        if not isinstance(op, Apply):
            continue
        if op.op == "and":
            waiting += op.args
        elif op.op in ("ge", "lt"):
            here, there = (_whole(ops.get(arg)) for arg in op.args)
            if here is not None and there is not None:
                _narrow(found, here - there, op.op)
    return found


def _whole(op: Op | None) -> Expr | None:
    """A whole number that is an index or a constant."""
    if isinstance(op, Index):
        return op.expr
    return expr(op.value) if isinstance(op, Const) and type(op.value) is int else None


def _narrow(found: dict[Axis, _Range], difference: Expr, comparison: str) -> None:
    """Takes in that the difference, an axis and a number, is at least 0, or below it."""
    axes = [axis for axis in difference.axes() if difference.coefficient(axis) is ONE]
    if len(axes) != 1 or difference.axes() != set(axes):
        return
    (axis,) = axes
    bound = expr(axis) - difference
    known = found.get(axis, _Range(ZERO, axis.size))
    if comparison == "ge" and is_nonnegative(bound - known.first) and is_nonnegative(known.end - bound - 1):
        found[axis] = _Range(bound, known.end)
    elif comparison == "lt" and is_nonnegative(known.end - bound) and is_nonnegative(bound - known.first - 1):
        found[axis] = _Range(known.first, bound)


__all__ = ["inline", "inline_masked"]
