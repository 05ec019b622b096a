"""Plan a kernel as rows: how its loops are walked, before a word of code is written.

In: a `Kernel`. Out: its `RowPlan`, frozen and printable; `plan_cpu.py` and `plan_gpu.py` choose for their machines.

A row is one point of the parallel axes other than the vector axis. Along the vector axis, a thread holds `lanes`
elements side by side, and `copies` such vectors at a time. A team of threads shares a row: each has its vectors, and
what a reduction found in its own it combines with what the others found. On a CPU a team is one thread.

Where lanes are not reduced, and the reduced axes are long, a team shares their steps instead: each thread has every so
many of them, of the longest axis.

Each reduction ends a pass over the reduced axes; what later passes need of earlier ones is computed again from cached
loads, or, where that is dear, kept. A row that is `held` has no passes: all of it is in registers at once, so every
value is computed once. Of a row that is `packed`, what it loads is in registers, in the type it lies in memory in; each
pass computes what it needs from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from litz.codegen.depend import depends
from litz.codegen.stretches import numbers_added
from litz.loop.dtype import DTYPES
from litz.loop.expr import ONE, Axis, Expr
from litz.loop.ir import POSITIONS, Apply, Definition, Kernel, Load, Op, Reduce, Scan, Store, definitions_for, operands
from litz.loop.passes import pass_of_each
from litz.loop.scalar import SCALARS

_DEAR = 8  # an operator this costly is kept for later passes rather than computed again


@dataclass(frozen=True)
class Pass:
    """One walk over the reduced axes, and what is done before it, once a row."""

    before: tuple[Op, ...]  # stores come last: memory may be planned so that one overwrites what the row has loaded
    ops: tuple[Definition, ...]  # computed at every step
    sinks: tuple[Op, ...]  # the reductions and stores that it is made for


@dataclass(frozen=True)
class RowPlan:
    kernel: Kernel
    vector: Axis | None  # runs across lanes, and across the threads of a team
    lanes: int
    copies: int  # vectors side by side
    team: int  # threads that share a row
    held: bool  # the whole row is in registers
    passes: tuple[Pass, ...]  # the last may have nothing but what is done after all walks
    kept: Mapping[str, int]  # value -> the pass that computes it for those to come
    packed: tuple[str, ...] | None = (
        None  # loads that are in registers for all passes, where `copies` vectors are a row
    )
    most_added: int = 63  # numbers that an accumulator takes in, before a floating-point sum is cut
    ahead: frozenset[str] = frozenset()  # buffers that are asked for ahead of time, as no cache holds them

    @cached_property
    def rows(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.kernel.axes if a != self.vector)

    @cached_property
    def over_reduced(self) -> bool:
        """Whether lanes are reduced too."""
        return self.vector in self.kernel.reduced

    @cached_property
    def varies(self) -> dict[str, frozenset[Axis]]:
        return depends(self.kernel.body, self.kernel.reduced)

    @cached_property
    def shared_axis(self) -> Axis | None:
        """The reduced axis whose steps the threads of a team share, where they do not share vectors."""
        if self.team == 1 or self.over_reduced or not self.kernel.reduced:
            return None
        return max(self.kernel.reduced, key=lambda axis: axis.size.hint)

    @property
    def shares_rows(self) -> bool:
        """Whether what is done once a row is common to the threads of a team."""
        return self.team > 1 and (self.over_reduced or self.shared_axis is not None)

    @property
    def step(self) -> int:
        """Elements from one vector of a thread to its next."""
        return self.lanes * (self.team if self.shared_axis is None else 1)

    def numbers_inside(self, axes: Sequence[Axis]) -> int:
        """How many numbers loops over these reduced axes, outermost first, and over reduced lanes inside them, add to
        an accumulator."""
        walked = [(axis, self.team if axis == self.shared_axis else 1) for axis in reversed(axes)]
        if self.over_reduced and self.packed is None:
            assert self.vector is not None
            walked = [(self.vector, self.copies * self.step), *walked]
        loops = ((axis.size.int if axis.size.is_int else None, step) for axis, step in walked)
        return numbers_added(loops, 1 if self.packed is None else self.copies, self.most_added)

    def __str__(self) -> str:
        along = "no axis" if self.vector is None else f"{self.vector.name}, {self.lanes} x {self.copies}"
        how = (
            ", held" if self.held else "" if self.packed is None else f", packed: {', '.join(self.packed) or 'nothing'}"
        )
        shared = "" if self.shared_axis is None else f" of {self.shared_axis.name}"
        rows = ", ".join(f"{a.name}: {a.size}" for a in self.rows)
        ahead = f", ahead: {', '.join(sorted(self.ahead))}" if self.ahead else ""
        lines = [f"rows({rows}) along {along} by {self.team}{shared}{how}{ahead}"]
        for number, one in enumerate(self.passes):
            lines += [f"  {_shown(op)}" for op in one.before]
            if one.sinks:
                lines.append(f"  pass {number} over {', '.join(a.name for a in self.kernel.reduced)}:")
                kept = {name for name, first in self.kept.items() if first < number}
                lines += [f"    {'kept ' if op.name in kept else ''}{_shown(op)}" for op in one.ops]
                lines += [f"    {_shown(op)}" for op in one.sinks]
        return "\n".join(lines)


def _shown(op: Op) -> str:
    if isinstance(op, Store):
        return f"{op.buffer}[{op.index}] {'=' if op.update is None else op.update} {op.value}"
    what = op.op if isinstance(op, Apply) else op.kind if isinstance(op, (Reduce, Scan)) else type(op).__name__.lower()
    return f"{op.name}: {op.dtype} = {what}({', '.join(operands(op))})"


def volume(axes: Iterable[Axis]) -> Expr:
    total = ONE
    for axis in axes:
        total = total * axis.size
    return total


def work_of(kernel: Kernel) -> int:
    """Scalar operations in all, at the likely sizes."""
    points = 1
    for axis in (*kernel.axes, *kernel.reduced):
        points *= axis.size.hint
    return points * sum(SCALARS[op.op].cost if isinstance(op, Apply) else 1 for op in kernel.body)


def plan_passes(kernel: Kernel, varies: Mapping[str, frozenset[Axis]]) -> tuple[Pass, ...]:
    """The operators of the body, each in the pass it runs in or, if fixed in the row, before which it runs."""
    reduced = frozenset(kernel.reduced)
    sinks: dict[int, list[Op]] = {}
    before: dict[int, list[Op]] = {}
    totals: dict[int, list[Op]] = {}
    for op, stage in zip(kernel.body, pass_of_each(kernel), strict=True):
        if isinstance(op, Store) and op.update == "total":
            totals.setdefault(stage, []).append(op)
        elif isinstance(op, Store):
            in_row = any(varies[name] & reduced for name in operands(op)) or bool(op.index.axes() & reduced)
            in_row = in_row or (op.updates and bool(reduced))
            (sinks if in_row else before).setdefault(stage, []).append(op)
        elif isinstance(op, Reduce):
            sinks.setdefault(stage, []).append(op)
        elif not varies[op.name] & reduced:
            before.setdefault(stage, []).append(op)
    walks = max((*sinks, *totals), default=-1) + 1
    if totals:  # no reduction waits for them, and in the last pass least is still needed of the row
        sinks.setdefault(walks - 1, []).extend(op for stage in sorted(totals) for op in totals[stage])
    return tuple(
        Pass(
            tuple(sorted(before.get(p, ()), key=lambda op: isinstance(op, Store))),
            tuple(needed(kernel, varies, sinks.get(p, ()))),
            tuple(sinks.get(p, ())),
        )
        for p in range(walks + 1)
    )


def may_be_held(kernel: Kernel, vector: Axis, passes: Sequence[Pass]) -> bool:
    """Whether a row, short enough, can be in registers whole: its elements lie along the vector axis, and several
    passes want them. A position would need its vectors in order."""
    return (
        vector.size.is_int
        and vector.size.int > 0
        and tuple(a for a in kernel.reduced if a.size is not ONE) == (vector,)
        and sum(bool(one.sinks) for one in passes) > 1
        and not kernel.ordered
        and not any(isinstance(op, Reduce) and op.kind in POSITIONS for op in kernel.body)
    )


def shared_loads(passes: Sequence[Pass]) -> tuple[Load, ...]:
    """What more than one pass loads."""
    seen: dict[Load, int] = {}
    for one in passes:
        for op in one.ops:
            if isinstance(op, Load):
                seen[op] = seen.get(op, 0) + 1
    return tuple(op for op, count in seen.items() if count > 1)


def needed(
    kernel: Kernel, varies: Mapping[str, frozenset[Axis]], sinks: Iterable[Op], kept: frozenset[str] = frozenset()
) -> list[Definition]:
    """The values of the row that `sinks` need, in order; those kept from an earlier pass end the search."""
    sinks = list(sinks)
    reduced = frozenset(kernel.reduced)
    ops = [op for op in kernel.body if not isinstance(op, Store)]
    fixed = {op.name for op in ops if not varies[op.name] & reduced}
    found = definitions_for(kernel.body, sinks, fixed | kept)
    direct = {name for op in (*sinks, *found) for name in operands(op)} & kept
    return [op for op in ops if op.name in direct or op in found]


def keep_what_is_dear(
    kernel: Kernel, varies: Mapping[str, frozenset[Axis]], passes: tuple[Pass, ...], room: int, width: int
) -> tuple[tuple[Pass, ...], dict[str, int]]:
    """The passes, where dear values are computed in one and kept for those behind it, in `room` bytes; a row of a value
    takes `width` times its length."""
    length = volume(kernel.reduced)
    if not length.is_int:
        return passes, {}  # what it takes must be known
    kept: dict[str, int] = {}
    for p, one in enumerate(passes):
        for op in one.ops:
            dear = isinstance(op, Apply) and SCALARS[op.op].cost >= _DEAR and op.op != "cast"
            later = any(op in other.ops for other in passes[p + 1 :])
            size = length.int * DTYPES[op.dtype].bytes * width
            if dear and later and op.name not in kept and size <= room and op.dtype != "b1":
                room -= size
                kept[op.name] = p
    return _without_what_is_kept(kernel, varies, passes, kept), kept


def keep_halves(
    kernel: Kernel, varies: Mapping[str, frozenset[Axis]], passes: tuple[Pass, ...]
) -> tuple[tuple[Pass, ...], dict[str, int]]:
    """The passes, where what is rounded to 16 bits on a dear way is kept for those behind the pass that computes it: it
    takes no more room than what it was loaded from."""
    made = {op.name: op for op in kernel.body if not isinstance(op, Store)}
    kept: dict[str, int] = {}
    for p, one in enumerate(passes):
        for op in reversed(one.ops):
            shorter = _without_what_is_kept(kernel, varies, passes, kept)
            later = any(op in other.ops for other in shorter[p + 1 :])
            if not (isinstance(op, Apply) and DTYPES[op.dtype].bits == 16 and later and op.name not in kept):
                continue
            way = needed(kernel, varies, [made[name] for name in op.args], frozenset(kept))
            if sum(SCALARS[step.op].cost for step in way if isinstance(step, Apply)) >= _DEAR:
                kept[op.name] = p
    return _without_what_is_kept(kernel, varies, passes, kept), kept


def _without_what_is_kept(
    kernel: Kernel, varies: Mapping[str, frozenset[Axis]], passes: tuple[Pass, ...], kept: Mapping[str, int]
) -> tuple[Pass, ...]:
    if not kept:
        return passes
    shorter = []
    for p, one in enumerate(passes):
        known = frozenset(n for n, first in kept.items() if first < p)
        shorter.append(Pass(one.before, tuple(needed(kernel, varies, one.sinks, known)), one.sinks))
    return tuple(shorter)


__all__ = [
    "Pass", "RowPlan", "keep_halves", "keep_what_is_dear", "may_be_held", "needed", "plan_passes", "shared_loads",
    "volume", "work_of",
]  # fmt: skip
