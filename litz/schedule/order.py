"""Order: steps that let go of more memory than they take come before what they need not wait for.

In: a fused program. Out: the same steps in an order that respects every dependence and has a lower peak, or the program
as it is. Autograd has the gradient of a layer's input computed, and then that of its weight; the other way round what
was kept for the weight is gone before the next large result is made. The same is tried from the last step to the first,
where it has what is made late made later, such as what a backward computes again; the better of the two is taken. A
step moves past a few others only: what is made and read in turn is still in the caches. What may fail, and what the
caller can see, stays in the order it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from litz.context import Context
from litz.loop.ir import Program, Step, View
from litz.schedule.check_first import dependences, has_effect, may_fail
from litz.schedule.memory import WORTH_A_PAUSE, plan_for_training
from litz.schedule.peak import bytes_of, peak
from litz.schedule.place import NO_WORKSPACE

_AHEAD = 16  # steps that one may be moved over
_WORTH = 0.01  # of the peak, by which it must be lower
_LEAST = 1 << 20  # bytes, by which it must be lower


def order(
    program: Program, ctx: Context, dropped: Collection[str] = (), donated: Collection[str] = (),
    least: int = WORTH_A_PAUSE,
) -> Program:  # fmt: skip
    """`dropped`: arguments that nobody else holds, and that go when they were read last; `donated`: those whose memory
    may be used again; `least`: bytes that have memory of their own."""
    memory = _memory(program, dropped)
    before = memory.held(range(len(program.steps)))
    if before < _LEAST:
        return program
    waits = _waits(program)
    early = _reordered(waits, memory)
    late = [len(waits) - 1 - at for at in reversed(_reordered(_backwards(waits), memory.backwards()))]
    tried = [steps for steps in (early, late) if _is_lower(before, memory.held(steps))]

    def taken(one: Program) -> int:  # with what lies over what
        layout = plan_for_training(one, frozenset(donated), ctx.target.sums_first, least)
        return peak(one, layout, NO_WORKSPACE, dropped).peak

    found, lowest = program, taken(program) if tried else 0
    for steps in tried:
        other = replace(program, steps=tuple(program.steps[at] for at in steps))
        most = taken(other)
        if _is_lower(lowest, most):
            found, lowest = other, most
    return found if found is not program and ctx.spend("order steps by what they let go of") else program


def _is_lower(before: int, after: int) -> bool:
    return before - after >= max(_WORTH * before, _LEAST)


@dataclass(frozen=True)
class _Memory:
    """What each step takes and lets go of, by which steps were run."""

    touched: list[tuple[str, ...]]
    bytes: dict[str, int]  # of buffers that come or go
    there: frozenset[str]  # before the first step
    stays: frozenset[str]  # after the last

    def backwards(self) -> _Memory:
        """As if time ran the other way: what a step writes first it lets go of."""
        return _Memory(self.touched[::-1], self.bytes, self.stays, self.there)

    def uses(self) -> dict[str, int]:
        return dict(Counter(name for names in self.touched for name in names))

    def taken(self, at: int, born: Collection[str]) -> int:
        total = 0
        for name in self.touched[at]:
            if name not in born:
                total += self.bytes[name]
        return total

    def released(self, at: int, left: dict[str, int]) -> int:
        """`left`: of each buffer, the steps that touch it and were not run."""
        total = 0
        for name in self.touched[at]:
            if left[name] == 1 and name not in self.stays:
                total += self.bytes[name]
        return total

    def held(self, steps: Sequence[int]) -> int:
        """Bytes at the peak."""
        left, born = self.uses(), set(self.there)
        live = most = sum(self.bytes[n] for n in self.there)
        for at in steps:
            live += self.taken(at, born)
            most = max(most, live)
            live -= self.released(at, left)
            self.run(at, left, born)
        return most

    def run(self, at: int, left: dict[str, int], born: set[str]) -> None:
        born.update(self.touched[at])
        for name in self.touched[at]:
            left[name] -= 1


def _memory(program: Program, dropped: Collection[str]) -> _Memory:
    leaving = {view.buffer for view in program.outputs if isinstance(view, View)}
    sizes: dict[str, int] = {}
    touched = []
    there, stays = set(), set()
    for step in program.steps:
        own = []
        for name in dict.fromkeys((*step.reads, *step.writes)):
            buffer = program.buffers[name]
            if buffer.kind == "input" and name in dropped:
                there.add(name)
            elif buffer.kind not in ("temp", "output"):
                continue
            own.append(name)
            sizes[name] = bytes_of(buffer)
            if buffer.kind == "output" or name in leaving:
                stays.add(name)
        touched.append(tuple(own))
    return _Memory(touched, sizes, frozenset(there), frozenset(stays))


def _reordered(before: Sequence[set[int]], memory: _Memory) -> list[int]:
    """Positions of steps: of those whose turn is near and that wait for nothing, the one that frees most; if none
    frees any, the first. `before`: for each step, those that it comes after."""
    left, born = memory.uses(), set(memory.there)
    done: set[int] = set()
    found: list[int] = []
    first = 0
    while first < len(before):
        best, gain = first, 0
        for at in range(first, min(first + _AHEAD, len(before))):
            if at not in done and before[at] <= done:
                own = memory.released(at, left) - memory.taken(at, born)
                if own > gain:
                    best, gain = at, own
        memory.run(best, left, born)
        done.add(best)
        found.append(best)
        while first in done:
            first += 1
    return found


def _backwards(before: Sequence[set[int]]) -> list[set[int]]:
    """For each step, the last one first, those that come after it."""
    last = len(before) - 1
    after: list[set[int]] = [set() for _ in before]
    for at, waits in enumerate(before):
        for other in waits:
            after[last - other].add(last - at)
    return after


def _waits(program: Program) -> list[set[int]]:
    """For each step, those that it comes after."""
    before = dependences(program.steps)
    last: int | None = None
    for at, step in enumerate(program.steps):
        if _is_bound(program, step):
            if last is not None:
                before[at].add(last)
            last = at
    return before


def _is_bound(program: Program, step: Step) -> bool:
    return has_effect(program, step) or may_fail(step)


__all__ = ["order"]
