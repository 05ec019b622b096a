"""Order: steps that let go of more memory than they take come before what they need not wait for.

In: a fused program. Out: the same steps in an order that respects every dependence and has a lower peak, or the program
as it is. Autograd has the gradient of a layer's input computed, and then that of its weight; the other way round what
was kept for the weight is gone before the next large result is made. A step moves ahead of a few others only: what is
made and read in turn is still in the caches. What may fail, and what the caller can see, stays in the order it has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from litz.context import Context
from litz.loop.ir import Program, Step, View
from litz.schedule.check_first import dependences, has_effect, may_fail
from litz.schedule.peak import bytes_of

_AHEAD = 16  # steps that one may be moved over
_WORTH = 0.01  # of the peak, by which it must be lower
_LEAST = 1 << 20  # bytes, by which it must be lower


def order(program: Program, ctx: Context, dropped: Collection[str] = ()) -> Program:
    """`dropped`: arguments that nobody else holds, and that go when they were read last."""
    memory = _Memory(program, dropped)
    if memory.total < _LEAST:
        return program
    found = _reordered(program, memory)
    before, after = memory.peak(range(len(program.steps))), memory.peak(found)
    if before - after < max(_WORTH * before, _LEAST) or not ctx.spend("order steps by what they let go of"):
        return program
    return replace(program, steps=tuple(program.steps[at] for at in found))


class _Memory:
    """What each step takes and lets go of, by which steps were run."""

    def __init__(self, program: Program, dropped: Collection[str]):
        leaving = {view.buffer for view in program.outputs if isinstance(view, View)}
        self.touched = [tuple(dict.fromkeys((*step.reads, *step.writes))) for step in program.steps]
        self.uses: dict[str, int] = {}
        for names in self.touched:
            for name in names:
                self.uses[name] = self.uses.get(name, 0) + 1
        self.bytes: dict[str, int] = {}
        self.there: set[str] = set()  # before the first step
        self.stays: set[str] = set()  # after the last
        for name in self.uses:
            buffer = program.buffers[name]
            if buffer.kind == "input" and name in dropped:
                self.there.add(name)
            elif buffer.kind not in ("temp", "output"):
                continue
            self.bytes[name] = bytes_of(buffer)
            if buffer.kind == "output" or name in leaving:
                self.stays.add(name)
        self.total = sum(self.bytes.values())

    def taken(self, at: int, born: Collection[str]) -> int:
        return sum(self.bytes[n] for n in self.touched[at] if n in self.bytes and n not in born)

    def released(self, at: int, left: dict[str, int]) -> int:
        """`left`: of each buffer, the steps that touch it and were not run."""
        return sum(self.bytes[n] for n in self.touched[at] if n in self.bytes and left[n] == 1 and n not in self.stays)

    def peak(self, steps: Sequence[int]) -> int:
        left, born = dict(self.uses), set(self.there)
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


def _reordered(program: Program, memory: _Memory) -> list[int]:
    """Positions of steps: of those whose turn is near and that wait for nothing, the one that frees most; if none
    frees any, the first."""
    before = _waits(program)
    left, born = dict(memory.uses), set(memory.there)
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
