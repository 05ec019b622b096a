"""Merge two kernels into one: align their iteration spaces, then let values replace memory.

In: a producer and a consumer (or two readers of one buffer). Out: the merged `Kernel`, or None.

The one idea: a buffer both touch gives the alignment. The producer stores element `s(i)` and the
consumer loads element `l(j)`; where `l` is a mixed-radix number in the consumer's axes, each of those
is a digit of it, so `j` follows from `s(i)` by division, and the simplifier does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from litz.loop.contraction import contraction
from litz.loop.exact import exact
from litz.loop.expr import ONE, ZERO, Axis, Expr, FloorDiv, Mod, Size, Value, constant, expr, is_nonnegative
from litz.loop.ir import POSITIONS, Apply, Check, Const, Index, Kernel, Load, Op, Reduce, Store
from litz.loop.passes import last_pass_only

_LARGEST_BODY = 240


def merge(first: Kernel, second: Kernel, buffer: str) -> Kernel | None:
    """`first` runs before `second`; `buffer` is stored by `first`, or loaded by both, and loaded by `second`."""
    if len(first.body) + len(second.body) > _LARGEST_BODY or contraction(second) is not None:
        return None
    if first.ordered or second.ordered:
        return None  # one step after the other: what runs in vectors stays outside
    product = contraction(first)
    if product is not None and (second.reduced or buffer not in first.writes):
        return None
    here = _index_of(first, buffer)
    there = next((op.index for op in second.loads if op.buffer == buffer and op.mask is None), None)
    if here is None or there is None:
        return None
    if second.reduced and not first.reduced:
        moved = solve(here, first.axes, (), there, second.axes, second.reduced)
        if moved is None or buffer not in first.writes:
            return None
        return _join(second, first, moved, first, second)
    moved = solve(there, second.axes, second.reduced, here, first.axes, first.reduced)
    if moved is None:
        return None
    if first.reduced and _few_rows(first) and not second.reduced:
        return None
    return _join(first, second, moved, first, second)


def _few_rows(kernel: Kernel) -> bool:
    """Whether keeping to this kernel's rows would take the parallelism from what is merged into it."""
    rows = total = 1
    for axis in kernel.axes:
        rows *= axis.size.hint
    for axis in kernel.reduced:
        total *= axis.size.hint
    return rows < 16 and rows * total > 1 << 15


def _index_of(kernel: Kernel, buffer: str) -> Expr | None:
    stores = {op.index for op in kernel.stores if op.buffer == buffer}
    if stores:
        return next(iter(stores)) if len(stores) == 1 else None
    return next((op.index for op in kernel.loads if op.buffer == buffer and op.mask is None), None)


def solve(
    own: Expr,
    axes: tuple[Axis, ...],
    reduced: tuple[Axis, ...],
    place: Expr,
    space: tuple[Axis, ...],
    space_reduced: tuple[Axis, ...],
) -> dict[Axis, Expr] | None:
    """Each of `axes` and `reduced` in terms of `space` and `space_reduced`, such that `own` becomes `place`."""
    digits = _digits(own, (*axes, *reduced))
    if digits is None:
        return None
    offset = own
    for axis, step in digits:
        offset = offset - expr(axis) * step
    if not offset.is_int:
        return None
    value = place - offset
    moved: dict[Axis, Expr] = {}
    covered = ONE
    for axis, step in digits:
        moved[axis] = (value // step) % axis.size
        covered = covered * axis.size
    # Axes the shared buffer does not mention run over what it does not mention on the other side.
    left = [a for a in (*axes, *reduced) if a not in moved]
    mentioned = place.axes()
    free = [a for a in (*space, *space_reduced) if a not in mentioned]
    if _volume(left) == _volume(free):
        flat = _flat(free)
        for axis in reversed(left):
            moved[axis] = flat % axis.size
            flat = flat // axis.size
    elif left:
        return None
    if own.substitute(moved) != place or covered != _volume(mentioned) or not is_injective(place, mentioned):
        return None
    if reduced:
        # What is reduced must be exactly what the space reduces; what is kept must not be.
        inner = set(space_reduced)
        if _volume(reduced) != _volume(space_reduced):
            return None
        if any(not moved[a].axes() <= inner for a in reduced) or any(moved[a].axes() & inner for a in axes):
            return None
    elif not left and free and _volume(free) != ONE and any(a not in space_reduced for a in free):
        return None  # it would run again for every step of the free axes
    return moved


def _volume(axes: Iterable[Axis]) -> Expr:
    total = ONE
    for axis in axes:
        total = total * axis.size
    return total


def _digits(index: Expr, axes: tuple[Axis, ...]) -> list[tuple[Axis, Expr]] | None:
    """The axes the index is a mixed-radix number in, most significant first; None if two places may coincide."""
    found = []
    for axis in axes:
        step = index.coefficient(axis)
        if step is None:
            return None
        if step is ZERO:
            continue
        if step.axes() or step.values() or not is_nonnegative(step - 1):
            return None
        found.append((axis, step))
    found.sort(key=lambda digit: -digit[1].hint)
    reach = ZERO
    for axis, step in reversed(found):
        if not is_nonnegative(step - 1 - reach):
            return None
        reach = reach + step * (axis.size - 1)
    return found


def is_injective(index: Expr, axes: Iterable[Axis]) -> bool:
    """Whether no two points over the axes surely have one index: as many points as places are then all places."""
    turned = {a: a.size - 1 - a for a in axes if (c := index.coefficient(a)) is not None and is_nonnegative(-c - 1)}
    index = index.substitute(turned) if turned else index
    if _digits(index, tuple(axes)) is not None:
        return True
    parts = _parts(index)
    if parts is None:
        return False
    reach = ZERO
    for part in sorted(parts, key=lambda part: part.step.hint):
        if not is_nonnegative(part.step - 1 - reach):
            return False
        reach = reach + part.step * part.most
    of: dict[Expr, list[_Part]] = {}
    for part in parts:
        of.setdefault(part.whole, []).append(part)
    within = [whole.axes() for whole in of]
    if sum(map(len, within)) != len(set().union(*within)) or not set(axes) <= set().union(*within):
        return False
    return all(_is_whole(whole, found) for whole, found in of.items())


class _Part(NamedTuple):
    """`step` times a digit of `whole`: `whole // start % below`, where no `below` is the rest of it."""

    step: Expr
    whole: Expr
    start: Expr
    below: Expr | None
    most: Expr


def _parts(index: Expr) -> list[_Part] | None:
    """The terms of an index that is not linear in its axes; None where one is no digit of something linear."""
    found = []
    for monomial, factor in index.terms:
        step, atom = constant(factor), None
        for one in monomial:
            if isinstance(one, Size):
                step = step * one
            elif atom is None:
                atom = one
            else:
                return None
        if atom is None:
            continue
        whole, start, below = expr(atom), ONE, None
        if isinstance(atom, Mod):
            whole, below = atom.num, atom.den
            atom = next(whole.atoms(), atom) if len(whole.terms) == 1 else atom
        if isinstance(atom, FloorDiv) and expr(atom) is whole:
            whole, start = atom.num, atom.den
        largest = _reach(whole)
        if largest is None or not is_nonnegative(step - 1):
            return None
        found.append(_Part(step, whole, start, below, largest // start if below is None else below - 1))
    return found


def _reach(index: Expr) -> Expr | None:
    """The largest value of a mixed-radix number that begins at 0."""
    digits = _digits(index, tuple(index.axes()))
    if digits is None:
        return None
    largest = rest = ZERO
    for axis, step in digits:
        largest, rest = largest + step * (axis.size - 1), rest + expr(axis) * step
    return largest if rest == index else None


def _is_whole(whole: Expr, parts: Iterable[_Part]) -> bool:
    """Whether the digits are all there are, so that the number follows from them."""
    waiting = {part.start: part for part in parts}
    start, largest = ONE, _reach(whole)
    while start in waiting:
        part = waiting.pop(start)
        if part.below is None:
            return not waiting
        start = start * part.below
    return not waiting and largest is not None and is_nonnegative(start - 1 - largest)


def _join(space: Kernel, moving: Kernel, moved: Mapping[Axis, Expr], first: Kernel, second: Kernel) -> Kernel | None:
    """One body over `space`'s axes; `moving` is the one of the two whose axes are replaced."""
    if _gives_positions(moving) and _flat(moving.reduced).substitute(moved) != _flat(space.reduced):
        return None  # the same elements, but counted in another order
    body = _Joined()
    for kernel in (first, second):
        if body.extend(kernel.body, moved if kernel is moving else {}) is None:
            return None
    merged = Kernel(second.name, space.axes, space.reduced, tuple(body.ops), _origins(first, second))
    if not body.memory_is_safe(merged):
        return None
    if contraction(first) is not None and contraction(merged) is None:
        return None
    return merged if _keeps_vectors(merged, (first, second)) else None


def _gives_positions(kernel: Kernel) -> bool:
    return any(isinstance(op, Reduce) and op.kind in POSITIONS for op in kernel.body)


def _flat(axes: Iterable[Axis]) -> Expr:
    """The number that counts through the axes, last fastest."""
    flat = ZERO
    for axis in axes:
        flat = flat * axis.size + axis
    return flat


def _origins(first: Kernel, second: Kernel) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first.origins, *second.origins)))


def _keeps_vectors(merged: Kernel, before: tuple[Kernel, ...]) -> bool:
    """Whether no index divides the axis vectors run along, unless it did already."""
    broken = {axis for kernel in before for axis in _broken_axes(kernel)}
    return not any(axis not in broken and _is_contiguous_somewhere(merged, axis) for axis in _broken_axes(merged))


def _broken_axes(kernel: Kernel) -> set[Axis]:
    """Axes that stand under a division or remainder in some index."""
    found: set[Axis] = set()
    for op in kernel.body:
        if isinstance(op, (Load, Store)):
            for atom in op.index.atoms():
                if isinstance(atom, (FloorDiv, Mod)):
                    found |= atom.num.axes()
    return found


def _is_contiguous_somewhere(kernel: Kernel, axis: Axis) -> bool:
    for op in kernel.body:
        if isinstance(op, (Load, Store)):
            step = op.index.coefficient(axis)
            if step is not None and step.is_int and step.int == 1:
                return True
    return False


class _Joined:
    """A body under construction from several kernels; equal values are written once."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.stored: dict[str, tuple[Expr, str]] = {}
        self.loaded: dict[str, set[Expr]] = {}
        self._seen: dict[tuple, str] = {}

    def extend(
        self, body: Iterable[Op], moved: Mapping[Axis, Expr], known: Mapping[str, str] | None = None
    ) -> dict[str, str] | None:
        """Append `body` with its axes replaced; what each of its values is called now, or None if it cannot be.

        `known` names values that exist already: their operators are not appended.
        """
        names: dict[str, str] = dict(known or {})
        for op in body:
            if isinstance(op, Store):
                index = _renamed(op.index, moved, names)
                if op.buffer in self.stored:
                    return None
                self.stored[op.buffer] = (index, names[op.value])
                self.ops.append(Store(op.buffer, index, names[op.value], op.update))
            elif op.name in names:
                continue
            elif isinstance(op, Load):
                index = _renamed(op.index, moved, names)
                made = self.stored.get(op.buffer)
                if made is not None:
                    if made[0] is not index or op.mask is not None:
                        return None
                    names[op.name] = made[1]
                    continue
                self.loaded.setdefault(op.buffer, set()).add(index)
                mask = None if op.mask is None else names[op.mask]
                names[op.name] = self._add(replace(op, index=index, mask=mask), ("load", op.buffer, index, mask))
            elif isinstance(op, Const):
                names[op.name] = self._add(op, ("const", op.dtype, exact(op.value)))
            elif isinstance(op, Index):
                e = _renamed(op.expr, moved, names)
                names[op.name] = self._add(replace(op, expr=e), ("index", op.dtype, e))
            elif isinstance(op, Apply):
                args = tuple(names[a] for a in op.args)
                names[op.name] = self._add(replace(op, args=args), ("apply", op.op, op.dtype, args))
            elif isinstance(op, Check):
                limit, value = _renamed(op.limit, moved, names), names[op.value]
                names[op.name] = self._add(replace(op, value=value, limit=limit), ("check", value, limit, op.wrap))
            else:
                value = names[op.value]
                names[op.name] = self._add(replace(op, value=value), (type(op), op.kind, value))
        return names

    def _add(self, op: Any, key: tuple) -> str:
        found = self._seen.get(key)
        if found is None:
            found = f"v{len(self.ops)}"
            self.ops.append(replace(op, name=found))
            self._seen[key] = found
        return found

    def memory_is_safe(self, kernel: Kernel) -> bool:
        """A buffer both read and written is read only where the same point writes it, and never after."""
        return all(
            self.loaded[buffer] == {index} and last_pass_only(kernel, buffer)
            for buffer, (index, _) in self.stored.items()
            if buffer in self.loaded
        )


def _renamed(e: Expr, moved: Mapping[Axis, Expr], names: Mapping[str, str]) -> Expr:
    values = {v: expr(Value(names[v.name], v.limit)) for v in e.values()}
    return e.substitute({**moved, **values}) if moved or values else e


def inline(producer: Kernel, consumer: Kernel, buffer: str) -> Kernel | None:
    """The consumer with every load of `buffer` replaced by the producer's formula, computed again there."""
    if producer.reduced or len(producer.stores) != 1 or len(producer.body) + len(consumer.body) > _LARGEST_BODY:
        return None
    if contraction(consumer) is not None:
        return None
    made = producer.stores[0]
    digits = _digits(made.index, producer.axes)
    loads = [op for op in consumer.loads if op.buffer == buffer]
    if digits is None or any(op.mask is not None or op.index.values() for op in loads):
        return None
    offset = made.index
    for axis, step in digits:
        offset = offset - expr(axis) * step
    formula = tuple(op for op in producer.body if not isinstance(op, Store))
    body = _Joined()
    values: dict[Expr, str] = {}
    for index in dict.fromkeys(op.index for op in loads):
        moved = {axis: ((index - offset) // step) % axis.size for axis, step in digits}
        if made.index.substitute(moved) is not index:
            return None
        names = body.extend(formula, moved)
        if names is None:
            return None
        values[index] = names[made.value]
    known = {op.name: values[op.index] for op in loads}
    if body.extend(consumer.body, {}, known) is None:
        return None
    merged = replace(consumer, body=tuple(body.ops), origins=_origins(producer, consumer))
    if not body.memory_is_safe(merged):
        return None
    return merged if _keeps_vectors(merged, (consumer,)) else None
