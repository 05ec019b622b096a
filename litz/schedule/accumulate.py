"""Accumulate: sums down columns are taken by the kernel that walks the rows.

In: a program whose kernels are fused. Out: the same, where a kernel that sums down the columns of what another one has
in its hands row by row is part of that one: the gradients of a norm's weight and bias beside that of its input. Memory
is read once, and what the two had computed of it is computed once. Rows are taken in turn by as many blocks of threads
as the target says (`Target.row_blocks`), each of which adds up what it sees (a store of a `total`, `loop/totals.py`); a
small kernel puts those together, always in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Union

from litz.context import Context
from litz.loop.dtype import DTYPES
from litz.loop.expr import ONE, Axis, expr
from litz.loop.ir import (
    COMBINE,
    Buffer,
    Check,
    Kernel,
    Load,
    Op,
    Program,
    Reduce,
    Step,
    Store,
    definitions_for,
    operands,
)
from litz.loop.lanes import vector_axis
from litz.loop.radix import flat, unflat, volume
from litz.loop.totals import parts_of, totals_of
from litz.schedule.align import Moved, Refusal, Space
from litz.schedule.depend import FAR
from litz.schedule.draft import Draft, divided_axes
from litz.schedule.simplify import without_dead_stores
from litz.target import Machine

_LARGEST_BODY = 240
_TOTAL = "f32"  # what sums are in that threads keep at hand

_NOT_ROWS = Refusal("none of the two reduces rows that lie along memory")
_NOT_COLUMNS = Refusal("the other one is not sums down columns, and what is made of them")
_OTHER_SIZES = Refusal("rows and columns of the two are not the same")
_OTHER_ROWS = Refusal("the two count rows in another order")
_NOTHING_SHARED = Refusal("the two have no element in common")
_TOO_LARGE = Refusal(f"together they have more than {_LARGEST_BODY} operators")
_WAITS = Refusal("one of them waits for what the other adds up")
_NOT_WORTH_IT = Refusal("the target takes such rows one team each")


def accumulate(program: Program, ctx: Context) -> Program:
    if not ctx.target.takes_rows_in_turn:
        return program
    steps, buffers = list(program.steps), dict(program.buffers)
    at = 0
    while at < len(steps):
        found = _joined_with_one_before(steps, at, ctx)
        if found is None:
            at += 1
            continue
        first, place, joined = found
        buffers |= {buffer.name: buffer for buffer in joined.buffers}
        after = steps[at + 1 :]
        between = steps[first + 1 : at]
        made: list[Step] = [joined.rows, joined.together]
        steps = [*steps[:first], *(made + between if place == first else between + made), *after]
        # What has grown may take another one's sums too.
        at = first if place == first else first + len(between)
    if len(buffers) == len(program.buffers):
        return program
    changed = replace(program, buffers=buffers, steps=tuple(steps))
    return replace(changed, steps=tuple(without_dead_stores(changed, changed.steps)))


@dataclass(frozen=True)
class _Joined:
    rows: Kernel
    together: Kernel
    buffers: tuple[Buffer, ...]  # for the totals


def _joined_with_one_before(steps: Sequence[Step], at: int, ctx: Context) -> tuple[int, int, _Joined] | None:
    """The step as one with a near one before it: where that one is, where of the two they run, and what they become."""
    second = steps[at]
    if not isinstance(second, Kernel) or not second.reduced:
        return None
    for near in range(at - 1, max(-1, at - 1 - FAR), -1):
        first = steps[near]
        if not isinstance(first, Kernel) or not first.reduced:
            continue
        joined = join(first, second, ctx.target)
        if isinstance(joined, Refusal):
            continue
        place = _place(steps, near, at)
        if place is not None and ctx.spend(f"accumulate {first.name} + {second.name}"):
            return near, place, joined
    return None


def _place(steps: Sequence[Step], near: int, at: int) -> int | None:
    """Where both can run, given what runs between them: where the second did, or where the first did."""
    first, second = steps[near], steps[at]
    between = steps[near + 1 : at]
    if all(
        {*step.reads, *step.writes}.isdisjoint(first.writes) and set(step.writes).isdisjoint(first.reads)
        for step in between
    ):
        return at
    if all(
        {*step.reads, *step.writes}.isdisjoint(second.writes) and set(step.writes).isdisjoint(second.reads)
        for step in between
    ):
        return near
    return None


# -- two kernels ------------------------------------------------------------------------------------
def join(first: Kernel, second: Kernel, target: Machine) -> Union[_Joined, Refusal]:
    """Of two kernels, one that walks rows and one that sums down their columns, what they are together."""
    if len(first.body) + len(second.body) > _LARGEST_BODY:
        return _TOO_LARGE
    row_length = _row_length(first) or _row_length(second)
    rows, columns = (first, second) if _row_length(first) is not None else (second, first)
    if row_length is None:
        return _NOT_ROWS
    sums = _Sums.of(columns)
    if sums is None:
        return _NOT_COLUMNS
    if volume(columns.axes) != expr(row_length) or volume(columns.reduced) != volume(rows.axes):
        return _OTHER_SIZES
    moved = {**unflat(flat(rows.axes), columns.reduced), **unflat(flat(rows.reduced), columns.axes)}
    if not _share_elements(rows, columns, moved):
        return _NOTHING_SHARED
    if set(sums.results).intersection(rows.reads) and columns is first:
        return _WAITS
    parts = parts_of(rows)
    count = len(sums.reduces) + len(totals_of(rows))
    every = {*rows.axes, *rows.reduced}
    width = max((DTYPES[op.dtype].bytes for op in rows.loads if op.index.axes() >= every), default=1)
    wanted = target.row_blocks(volume(rows.axes).hint, row_length, width, count)
    if wanted is None:
        return _NOT_WORTH_IT
    return _Joining(first, second, rows, sums, moved, parts or wanted).made()


def _row_length(kernel: Kernel) -> int | None:
    """Elements of a row, where the kernel walks rows that lie along memory, and reduces each to numbers."""
    reduced = [axis for axis in kernel.reduced if axis.size is not ONE]
    reduces = [op for op in kernel.body if isinstance(op, Reduce)]
    if len(reduced) != 1 or not reduced[0].size.is_int or not kernel.axes or not reduces:
        return None
    if kernel.ordered or vector_axis(kernel) != reduced[0] or any(op.kind not in COMBINE for op in reduces):
        return None
    return reduced[0].size.int if _is_plain(kernel) else None


def _is_plain(kernel: Kernel) -> bool:
    """Whether it neither finds fault with its data nor looks at places taken from it."""
    return not any(isinstance(op, Check) or (isinstance(op, Load) and operands(op)) for op in kernel.body)


@dataclass(frozen=True)
class _Sums:
    """A kernel of sums over its reduced axes, none of which waits for another."""

    kernel: Kernel
    reduces: tuple[Reduce, ...]
    within: tuple[Store, ...]  # stores at each step
    after: tuple[Store, ...]  # and of what comes of the sums

    @property
    def results(self) -> tuple[str, ...]:
        return tuple(op.buffer for op in self.after)

    @classmethod
    def of(cls, kernel: Kernel) -> _Sums | None:
        reduces = tuple(op for op in kernel.body if isinstance(op, Reduce))
        if kernel.ordered or not reduces or any(op.kind != "sum" or op.dtype != _TOTAL for op in reduces):
            return None
        if totals_of(kernel) or not _is_plain(kernel):
            return None
        rests = {op.name for op in definitions_for(kernel.body, reduces)}
        if any(op.name in rests for op in reduces):
            return None
        reduced = frozenset(kernel.reduced)
        within = tuple(op for op in kernel.stores if op.index.axes() & reduced)
        known = {op.name for op in definitions_for(kernel.body, within)}
        if any(op.name in known for op in reduces):
            return None  # what is stored at each step waits for the sums
        after = tuple(op for op in kernel.stores if op not in within)
        return cls(kernel, reduces, within, after)


def _share_elements(rows: Kernel, columns: Kernel, moved: Moved) -> bool:
    """Whether one loads, element by element, what the other has in its hands there."""
    every = {*rows.axes, *rows.reduced}
    mine = {(op.buffer, op.index) for op in rows.body if isinstance(op, (Load, Store)) and op.index.axes() >= every}
    theirs = [op for op in columns.body if isinstance(op, (Load, Store)) and op.index.axes() & {*columns.reduced}]
    return any((op.buffer, op.index.substitute(moved)) in mine for op in theirs)


class _Joining:
    def __init__(self, first: Kernel, second: Kernel, rows: Kernel, sums: _Sums, moved: Moved, parts: int):
        self.first, self.second, self.rows, self.sums, self.moved, self.parts = first, second, rows, sums, moved, parts
        self.columns = sums.kernel

    def made(self) -> Union[_Joined, Refusal]:
        draft = Draft(self.rows.name, Space(self.rows.axes, self.rows.reduced))
        own = [op.index for op in self.rows.body if isinstance(op, (Load, Store))]
        divided = set(self.rows.axes).union(*map(divided_axes, own))  # vectors run along none of the rows' axes
        for kernel in (self.first, self.second):
            body, moved = (kernel.body, {}) if kernel is self.rows else (self._down_columns(), self.moved)
            addition = draft.addition(body, moved)
            if isinstance(addition, Refusal):
                return addition
            objection = draft.objection(addition, divided)
            if objection is not None:
                return objection
            draft.take(addition, self.rows.name, kernel.origins)
        if parts_of(draft.kernel()) != self.parts:
            return _OTHER_ROWS
        return _Joined(draft.kernel(), self._together(), tuple(map(self._buffer, self.sums.reduces)))

    def _down_columns(self) -> list[Op]:
        """What the sums add up, and the totals in their place."""
        columns, length = self.columns, volume(self.columns.axes)
        place = flat(columns.reduced) % self.parts * length + flat(columns.axes)
        totals = [Store(self._buffer(op).name, place, op.value, "total") for op in self.sums.reduces]
        body: list[Op] = [*definitions_for(columns.body, [*self.sums.reduces, *self.sums.within])]
        return [*body, *self.sums.within, *totals]

    def _together(self) -> Kernel:
        """Puts the totals together, and stores what follows of them."""
        columns, part = self.columns, Axis("p0", self.parts)
        place = expr(part) * volume(columns.axes) + flat(columns.axes)
        body: list[Op] = []
        for op in self.sums.reduces:
            body.append(Load(f"{op.name}_part", op.dtype, self._buffer(op).name, place))
            body.append(Reduce(op.name, op.dtype, op.kind, f"{op.name}_part"))
        body += definitions_for(columns.body, self.sums.after, {op.name for op in self.sums.reduces})
        body += self.sums.after
        return Kernel(f"{columns.name}_together", columns.axes, (part,), tuple(body), columns.origins)

    def _buffer(self, op: Reduce) -> Buffer:
        return Buffer(f"{self.columns.name}_total_{op.name}", op.dtype, volume(self.columns.axes) * self.parts)


__all__ = ["accumulate", "join"]
