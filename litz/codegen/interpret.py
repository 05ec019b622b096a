"""The meaning of a plan, slow and obvious: what its rows, teams, vectors and passes compute, with no GPU in sight.

In: a `RowPlan` (a unit is a row, taken by one thread, as on a CPU) or a `GpuPlan`, and memory. Out: memory as the plan
leaves it, or a `PlanError` where the plan is wrong: a point of the loops that is never computed, computed twice or not
there at all; a value that a pass uses and neither computes nor keeps.

The one idea: all units go in step. Every value is an array `(units, threads of a team, copies, lanes)`, or broadcasts
to it; only the steps that a thread takes one after the other are loops. Numbers are added in the order in which the
plan's threads add them, each sum rounded to its type. (Generated code rounds once less where it sums products.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from litz.codegen.coverage import Coverage
from litz.codegen.plan_gpu import WARP, GpuPlan
from litz.codegen.reduced import best_place, better_than, combined, meet, together
from litz.codegen.rows import RowPlan, volume
from litz.codegen.scanned import scanned
from litz.codegen.stretches import stretches, stretches_at_run_time
from litz.errors import PlanError
from litz.loop.dtype import DTYPES
from litz.loop.expr import Axis
from litz.loop.interpret import ACCUMULATE, Body, Memory, Sizes, as_type, number_of
from litz.loop.ir import POSITIONS, Buffer, Op, Reduce, Scan, Store, identity, operands

_MOST_THREADS = 1024  # in a block


def run_plan(plan: RowPlan | GpuPlan, buffers: Mapping[str, Buffer], memory: Memory, sizes: Sizes) -> None:
    _check_plan(plan.rows if isinstance(plan, GpuPlan) else plan)
    with np.errstate(all="ignore"):
        if isinstance(plan, GpuPlan):
            _run_on_gpu(plan, buffers, memory, sizes)
        else:
            _run_on_cpu(plan, buffers, memory, sizes)


def _run_on_cpu(plan: RowPlan, buffers: Mapping[str, Buffer], memory: Memory, sizes: Sizes) -> None:
    run = _Rows(plan, buffers, memory, sizes, np.arange(number_of(volume(plan.rows), sizes)), threads=1)
    if plan.vector is None or plan.over_reduced:
        run.row()
    else:
        run.along_vector()
    run.finish()


def _run_on_gpu(plan: GpuPlan, buffers: Mapping[str, Buffer], memory: Memory, sizes: Sizes) -> None:
    rows = plan.rows
    _check_block(plan)
    if plan.parts is not None:
        _run_in_turn(plan, plan.parts, buffers, memory, sizes)
        return
    pieces = number_of(plan.pieces, sizes)
    started = np.arange(number_of(plan.grid, sizes) * plan.teams)
    unit = started[started < number_of(plan.units, sizes)]
    row, piece = (unit // pieces, unit % pieces) if pieces else (unit, unit)
    run = _Rows(rows, buffers, memory, sizes, row, rows.team)
    if rows.vector is None or rows.over_reduced:
        run.row()
    else:
        start = piece.reshape(-1, 1, 1, 1) * rows.step * rows.copies
        # What divides the axis is always there.
        whole = all(factor % (rows.step * rows.copies) == 0 for _, factor in rows.vector.size.terms)
        live = None if whole else _Live(run.extent[rows.vector], _by_vector(rows, rows.vector))
        with run.standing_at(start, rows.copies, live):
            run.row()
    run.finish()


def _run_in_turn(plan: GpuPlan, parts: int, buffers: Mapping[str, Buffer], memory: Memory, sizes: Sizes) -> None:
    """Each block takes every so many rows, its teams one after the other. What they add up is a row of numbers each."""
    rows, count = plan.rows, number_of(volume(plan.rows.rows), sizes)
    assert rows.vector is not None
    totals: dict[Store, np.ndarray] = {
        op: np.zeros((parts, plan.teams, rows.vector.size.int), np.float32) for op in plan.totals
    }
    covered: dict[str, Coverage] | None = None
    for first in range(0, max(count, 1), parts * plan.teams):
        turn = np.arange(first, min(first + parts * plan.teams, count))
        run = _Rows(rows, buffers, memory, sizes, turn, rows.team, totals, parts)
        run.covered = covered = run.covered if covered is None else covered
        run.row()
    assert covered is not None
    run.finish()
    for op, found in totals.items():
        total = found[:, 0]
        for team in range(1, plan.teams):
            total = total + found[:, team]
        last = _Rows(rows, buffers, memory, sizes, np.arange(parts), threads=1)
        last.axes[rows.vector] = np.arange(total.shape[1]).reshape(1, 1, 1, -1)
        last.values[op.value] = total.reshape(parts, 1, 1, -1)
        last.store(Store(op.buffer, op.index, op.value))


def _by_vector(rows: RowPlan, vector: Axis) -> bool:
    """Whether vectors are there whole or not at all."""
    return rows.lanes == 1 or all(factor % rows.lanes == 0 for _, factor in vector.size.terms)


def _check_block(plan: GpuPlan) -> None:
    team, name = plan.rows.team, plan.rows.kernel.name
    if plan.block % team or not 0 < plan.block <= _MOST_THREADS:
        raise PlanError(f"kernel {name}: a block of {plan.block} threads does not hold teams of {team}")
    if team > WARP and plan.rows.over_reduced and plan.teams > 1:
        raise PlanError(f"kernel {name}: {plan.teams} teams of several warps share a block, and so its barrier")


@dataclass(frozen=True)
class _Live:
    """What is live of the vectors of a frame: what lies before `stop`. Either vectors are live whole, or each lane by
    itself."""

    stop: int
    by_vector: bool


class _Rows(Body):
    """All units in step: `rows` has the number of each one's row."""

    def __init__(
        self,
        plan: RowPlan,
        buffers: Mapping[str, Buffer],
        memory: Memory,
        sizes: Sizes,
        rows: np.ndarray,
        threads: int,
        totals: Mapping[Store, np.ndarray] | None = None,
        parts: int = 1,
    ):
        super().__init__(plan.kernel, buffers, memory, sizes, rank=4)
        self.plan, self.units, self.threads = plan, len(rows), threads
        self.totals = totals or {}  # by block, team and column
        self.block: np.ndarray = rows % parts
        self.turn: np.ndarray = rows // parts
        self.types = {op.name: op.dtype for op in plan.kernel.body if not isinstance(op, Store)}
        self.space = (*plan.kernel.axes, *plan.kernel.reduced)
        self.extent = {axis: number_of(axis.size, sizes) for axis in self.space}
        self.copies = 1
        self.live: np.ndarray | None = None
        self.kept: dict[tuple[str, int], np.ndarray] = {}
        self.step = 0  # of the pass under way
        self.where = f"kernel {plan.kernel.name}"
        self.covered = {
            what: Coverage(f"{self.where}, {what}", {axis: self.extent[axis] for axis in axes})
            for what, axes in self._to_cover()
        }
        rest = rows.reshape(-1, 1, 1, 1)
        for axis in reversed(plan.rows):
            first = axis == plan.rows[0]
            self.axes[axis], rest = (rest, rest) if first else (rest % self.extent[axis], rest // self.extent[axis])

    # -- rows ---------------------------------------------------------------------------------------
    def along_vector(self) -> None:
        """The row in vectors: several at a time, then one at a time with the dead lanes masked off."""
        plan = self.plan
        assert plan.vector is not None
        for op in plan.passes[0].before:
            if not isinstance(op, Store) and not self.along(op):
                self.emit(op)
        for start, copies, live in self.vectors(0, self.extent[plan.vector], plan.copies):
            with self.standing_at(start, copies, live):
                self.row()

    def vectors(self, start: int, stop: int, copies: int) -> Iterator[tuple[int, int, _Live | None]]:
        """Where a team's vectors begin, how many each thread has, and what is live of them."""
        one, vector = self.plan.step, self.plan.vector
        assert vector is not None
        whole = start + (stop - start) // (one * copies) * (one * copies)
        for v in range(start, whole, one * copies):
            yield v, copies, None
        by_vector = _by_vector(self.plan, vector) if self.plan.team > 1 else self.plan.lanes == 1
        if self.plan.over_reduced and self.kernel.ordered and vector.size.is_int:
            if whole < stop:  # the rest at once
                yield whole, -(-(stop - whole) // one), _Live(stop, by_vector)
            return
        for v in range(whole, stop, one):
            yield v, 1, _Live(stop, by_vector)

    @contextmanager
    def standing_at(self, start: int | np.ndarray, copies: int, live: _Live | None) -> Iterator[None]:
        """Each thread's vectors: the first begins as many lanes after `start` as lie before it in the team."""
        plan = self.plan
        assert plan.vector is not None
        outer = self.axes, self.values, self.copies, self.live
        sharing = 1 if plan.shared_axis is not None else self.threads  # threads that have vectors of their own
        thread, copy, lane = (np.arange(n) for n in (sharing, copies, plan.lanes))
        first = start + thread.reshape(1, -1, 1, 1) * plan.lanes + copy.reshape(1, 1, -1, 1) * plan.step
        at = first + lane
        self.axes, self.values, self.copies = {**self.axes, plan.vector: at}, dict(self.values), copies
        if live is not None:
            self.live = np.broadcast_to(first if live.by_vector else at, at.shape) < live.stop
        yield
        self.axes, self.values, self.copies, self.live = outer

    def row(self) -> None:
        if self.plan.held:
            self._held_row()
            return
        for p, one in enumerate(self.plan.passes):
            self.where = f"kernel {self.kernel.name}, before pass {p}"
            if any(isinstance(op, Store) for op in one.before):
                self._cover(f"before pass {p}")
            for op in one.before:
                if isinstance(op, Store) or op.name not in self.values:
                    self.emit(op)
            if one.sinks:
                self._pass(p)

    def _held_row(self) -> None:
        """Every operator once, for all vectors of the row; what is stored may lie where something was loaded."""
        plan = self.plan
        assert plan.vector is not None
        ragged = self.extent[plan.vector] < plan.copies * plan.step
        live = _Live(self.extent[plan.vector], plan.team > 1 or plan.lanes == 1) if ragged else None
        for axis in self.kernel.reduced:
            self.axes[axis] = np.zeros(self.ones, np.int64)
        with self.standing_at(0, plan.copies, live):
            self._cover("the held row")
            for op in sorted(self.kernel.body, key=lambda op: isinstance(op, Store)):
                if isinstance(op, Reduce):
                    self._check_known(op)
                    total = self._together(op, self._counted(op))
                    self.values[op.name] = total + total.dtype.type(0) if op.kind == "sum" else total
                else:
                    self.emit(op)

    # -- operators ----------------------------------------------------------------------------------
    def along(self, op: Op) -> bool:
        """Whether it differs along the vector axis."""
        if isinstance(op, Store):
            names, axes = operands(op), op.index.axes()
        else:
            names, axes = (op.name,), set()
        return self.plan.vector in axes or any(self.plan.vector in self.plan.varies[name] for name in names)

    def emit(self, op: Op) -> None:
        self._check_known(op)
        live = self.live if self.along(op) else None
        if isinstance(op, Store):
            self.store(op, live)
        else:
            self.values[op.name] = as_type(self.value(op, live), op.dtype)

    def _check_known(self, op: Op) -> None:
        for name in operands(op):
            if name not in self.values:
                user = op.buffer if isinstance(op, Store) else op.name
                raise PlanError(f"{self.where}: {user} needs {name}, which is neither computed there nor kept")

    # -- one pass over the reduced axes -------------------------------------------------------------
    def _pass(self, p: int) -> None:
        plan, one = self.plan, self.plan.passes[p]
        self.where, self.step = f"kernel {self.kernel.name}, pass {p}", 0
        reduces = [op for op in one.sinks if isinstance(op, Reduce)]
        scans = [op for op in one.ops if isinstance(op, Scan)]
        running: list[Reduce | Scan] = [*reduces, *scans]
        copies = self.copies
        if plan.over_reduced:
            copies = plan.copies if plan.packed is None else 1
        found = {op.name: self._open(op, copies) for op in running}
        outer = self.axes, self.values
        self.axes, self.values = dict(self.axes), dict(self.values)
        self._loops([a for a in self.kernel.reduced if a != plan.vector], p, found, copies)
        self.axes, self.values = outer
        for op in reduces:
            self.values[op.name] = self._close(op, found[op.name])

    def _loops(self, axes: Sequence[Axis], p: int, found: _Found, copies: int) -> None:
        plan = self.plan

        def along_axis(start: int, stop: int, mine: _Found) -> None:
            for i in range(start, stop):
                self.axes[axes[0]] = np.full(self.ones, i, np.int64)
                self._loops(axes[1:], p, mine, copies)

        def shared_by_team(start: int, stop: int, mine: _Found) -> None:
            for i in range(start, stop, plan.team):
                at: np.ndarray = i + np.arange(plan.team).reshape(1, -1, 1, 1)
                outer = self.live
                self.live = at < stop if outer is None else outer & (at < stop)
                # What is not there is not looked at either.
                self.axes[axes[0]] = np.minimum(at, stop - 1)
                self._loops(axes[1:], p, mine, copies)
                self.live = outer

        def in_registers(mine: _Found) -> None:
            assert plan.vector is not None
            for copy in range(plan.copies):
                ragged = (copy + 1) * plan.step > self.extent[plan.vector]
                live = _Live(self.extent[plan.vector], _by_vector(plan, plan.vector)) if ragged else None
                with self.standing_at(copy * plan.step, 1, live):
                    self._at_step(p, mine)

        def along_vector(start: int, stop: int, mine: _Found) -> None:
            for v, count, live in self.vectors(start, stop, copies):
                with self.standing_at(v, count, live):
                    self._at_step(p, mine)

        if axes and axes[0] == plan.shared_axis:
            self._in_stretches(axes[0], plan.team, plan.numbers_inside(axes[1:]), p, found, copies, shared_by_team)
        elif axes:
            self._in_stretches(axes[0], 1, plan.numbers_inside(axes[1:]), p, found, copies, along_axis)
        elif plan.packed is not None:
            in_registers(found)
        elif plan.over_reduced:
            assert plan.vector is not None
            self._in_stretches(plan.vector, copies * plan.step, 1, p, found, copies, along_vector)
        else:
            self._at_step(p, found)

    def _in_stretches(
        self, axis: Axis, step: int, inside: int, p: int, found: _Found, copies: int,
        walk: Callable[[int, int, _Found], None],
    ) -> None:  # fmt: skip
        """A walk along an axis, cut where floating-point sums would be long."""
        sums = [op for op in self.plan.passes[p].sinks if isinstance(op, Reduce) and self._rounds(op)]
        size = self.extent[axis]
        lengths = stretches_at_run_time(size, step, inside)
        if axis.size.is_int:
            lengths = stretches(size, step, inside, self.plan.most_added)

        def cut_up(start: int, stop: int, lengths: Sequence[int], total: _Found) -> None:
            if not lengths:
                walk(start, stop, total)
                return
            for begin in range(start, stop, lengths[0]):
                part = total | {op.name: self._open(op, copies) for op in sums}
                cut_up(begin, min(begin + lengths[0], stop), lengths[1:], part)
                for op in sums:
                    total[op.name].value[...] = self._combined(op, total[op.name].value, part[op.name].value)

        cut_up(0, size, lengths if sums else [], found)

    def _rounds(self, op: Reduce) -> bool:
        return op.kind == "sum" and DTYPES[self.types[op.value]].kind == "float"

    def _at_step(self, p: int, found: _Found) -> None:
        plan, one = self.plan, self.plan.passes[p]
        self._cover(f"pass {p}")
        for op in one.ops:
            first = plan.kept.get(op.name, p)
            if first < p:
                if (op.name, self.step) not in self.kept:
                    raise PlanError(f"{self.where}: pass {first} was to keep {op.name}, and did not compute it")
                self.values[op.name] = self.kept[op.name, self.step]
            elif isinstance(op, Scan):
                self._check_known(op)
                step = self._scan_along if plan.over_reduced else self._accumulate
                self.values[op.name] = step(op, found[op.name])
            else:
                self.emit(op)
            if plan.kept.get(op.name) == p:
                self.kept[op.name, self.step] = self.values[op.name]
        for sink in one.sinks:
            self._check_known(sink)
            if isinstance(sink, Reduce):
                self._accumulate(sink, found[sink.name])
            elif isinstance(sink, Store) and sink in self.totals:
                self._add_to_total(sink)
            else:
                self.emit(sink)
        self.step += 1

    def _add_to_total(self, op: Store) -> None:
        """One number for each column of a row: a thread has the same columns of each."""
        assert self.plan.vector is not None
        total = self.totals[op]
        every = (self.units, self.threads, self.copies, self.plan.lanes)
        block, team = (of.reshape(-1, 1, 1, 1) for of in (self.block, self.turn % total.shape[1]))
        there = np.ones((), bool) if self.live is None else self.live
        *at, value, live = (
            np.broadcast_to(array, every)
            for array in (block, team, self.axes[self.plan.vector], self.values[op.value], there)
        )
        mine = tuple(place[live] for place in at)
        total[mine] = total[mine] + value[live]

    # -- reductions ---------------------------------------------------------------------------------
    def _side_by_side(self, op: Reduce | Scan) -> bool:
        """Whether it has a running value for each lane and copy."""
        if self.plan.over_reduced and isinstance(op, Scan):
            return False  # its steps are those lanes
        return self.plan.over_reduced or self.plan.vector in self.plan.varies[op.value]

    def _shape(self, op: Reduce | Scan, copies: int) -> tuple[int, ...]:
        threads = self.threads if self._side_by_side(op) or self.plan.shared_axis is not None else 1
        return (self.units, threads, *((copies, self.plan.lanes) if self._side_by_side(op) else (1, 1)))

    def _open(self, op: Reduce | Scan, copies: int) -> _Running:
        dtype = self.types[op.value]
        value: np.ndarray = np.full(self._shape(op, copies), identity(op.kind, dtype), DTYPES[dtype].numpy)
        return _Running(value, np.zeros(value.shape, np.int64))

    def _counted(self, op: Reduce | Scan) -> np.ndarray:
        """What this step adds to the reduction: nothing where it is not live."""
        dtype = self.types[op.value]
        value = np.broadcast_to(self.values[op.value], self._shape(op, self.copies))
        if self.live is None or not self._counts_live:
            return value
        return np.where(self.live, value, np.full((), identity(op.kind, dtype), DTYPES[dtype].numpy))

    @property
    def _counts_live(self) -> bool:
        """Whether what is not live would be part of a reduction."""
        return self.plan.over_reduced or self.plan.shared_axis is not None

    def _accumulate(self, op: Reduce | Scan, found: _Running) -> np.ndarray:
        """The running value after this step."""
        new = self._counted(op)
        old, place = found.value[:, :, : new.shape[2]], found.place[:, :, : new.shape[2]]
        if op.kind in POSITIONS:
            better = better_than(op.kind, new, old)
            if self.live is not None and self._counts_live:
                better = better & self.live
            here: np.ndarray = np.zeros(self.ones, np.int64)
            for axis in self.kernel.reduced:
                here = here * self.extent[axis] + self.axes[axis]
            place[...] = np.where(better, here, place)
            old[...] = np.where(better, new, old)
        elif isinstance(op, Scan):
            old[...] = as_type(ACCUMULATE[op.kind](old, new), self.types[op.value])
        else:
            old[...] = self._combined(op, old, new)
        return old.copy()

    def _scan_along(self, op: Scan, found: _Running) -> np.ndarray:
        """The steps that lie along the vectors, scanned; what is carried on is kept."""
        dtype = self.types[op.value]
        value = np.broadcast_to(self.values[op.value], (self.units, self.threads, self.copies, self.plan.lanes))
        if self.live is not None:
            value = np.where(self.live, value, np.full((), identity(op.kind, dtype), DTYPES[dtype].numpy))
        made, found.value[...] = scanned(op.kind, dtype, value, found.value)
        return made

    def _combined(self, op: Reduce, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return combined(op.kind, self.types[op.value], a, b)

    def _close(self, op: Reduce, found: _Running) -> np.ndarray:
        """The finished reduction: one number a unit if lanes were reduced, else one for each of them."""
        positions = op.kind in POSITIONS
        if self.plan.shared_axis is not None:
            best = found.value, found.place
            while (left := best[0].shape[1] // 2) > 0:
                ours = best[0][:, :left], best[1][:, :left]
                theirs = best[0][:, left:], best[1][:, left:]
                best = meet(op.kind, self.types[op.value], ours, theirs)
            return best[1] if positions else best[0]
        if not self.plan.over_reduced:
            return found.place if positions else found.value
        if not positions:
            return self._together(op, found.value)
        if self.plan.copies > 1:
            raise PlanError(f"{self.where}: {op.name} is a position, of which only one vector at a time keeps track")
        return best_place(op.kind, found.value[:, :, 0], found.place[:, :, 0])

    def _together(self, op: Reduce, value: np.ndarray) -> np.ndarray:
        plan = self.plan
        assert plan.vector is not None
        # A row that fills no vector is added up lane by lane, as eager does.
        short = plan.team == 1 and plan.vector.size.is_int and 0 < plan.vector.size.int < plan.lanes
        live = plan.vector.size.int if short else None
        return together(lambda a, b: self._combined(op, a, b), value, live)

    # -- what was computed --------------------------------------------------------------------------
    def _to_cover(self) -> Iterator[tuple[str, tuple[Axis, ...]]]:
        if self.plan.held:
            yield "the held row", self.space
            return
        for p, one in enumerate(self.plan.passes):
            if one.sinks:
                yield f"pass {p}", self.space
            if any(isinstance(op, Store) for op in one.before):
                yield f"before pass {p}", self.kernel.axes

    def _cover(self, what: str) -> None:
        self.covered[what].add(self.axes, self.live)

    def finish(self) -> None:
        for coverage in self.covered.values():
            coverage.check()


@dataclass(frozen=True)
class _Running:
    """A reduction or scan under way: what was found so far, and for positions, where. The arrays change."""

    value: np.ndarray
    place: np.ndarray


_Found = dict[str, _Running]


def _check_plan(plan: RowPlan) -> None:
    """What generated code takes for granted, and that each sink has its place."""
    name = plan.kernel.name
    for what, count in (("lanes", plan.lanes), ("threads in a team", plan.team)):
        if count < 1 or count & (count - 1):
            raise PlanError(f"kernel {name}: {count} {what} are no power of two")
    run = [op for one in plan.passes for op in (*one.before, *one.sinks) if isinstance(op, (Reduce, Store))]
    for op in plan.kernel.body:
        if isinstance(op, (Reduce, Store)) and run.count(op) != plan.kernel.body.count(op):
            sink = op.name if isinstance(op, Reduce) else f"the store to {op.buffer}"
            raise PlanError(f"kernel {name}: {sink} runs in {run.count(op)} passes")


__all__ = ["run_plan"]
