"""Separate: work that has nothing to do with other work is brought together.

In: steps in the order they were written. Out: the same steps; those at the end of a stretch of
kernels that fall apart into independent parts stand part by part, after the few numbers that all of them read.

The step of an optimizer is such a stretch: operator by operator over lists of tensors, or parameter by parameter but
with what is written back at the end. Fusion looks only so far, and in this order a parameter's kernels are neighbours;
afterwards they are one kernel each, and one team of threads runs them all.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.context import Context
from litz.loop.ir import Kernel, Program, Step

_FEW = 64  # elements: what touches no larger buffer is done before the rest, and links nothing
_MIXED = 8  # steps of other parts among those of one: as long as there are fewer, fusion finds them all


def separate(program: Program, steps: Sequence[Step], ctx: Context) -> list[Step]:
    ordered: list[Step] = []
    stretch: list[Kernel] = []
    for step in steps:
        if isinstance(step, Kernel):
            stretch.append(step)
            continue
        ordered += _part_by_part(stretch, program, ctx)
        stretch = []
        ordered.append(step)
    return ordered + [*_part_by_part(stretch, program, ctx)]


def _part_by_part(steps: Sequence[Kernel], program: Program, ctx: Context) -> Sequence[Kernel]:
    """The steps, or those of independent parts together, after what is so little that all may wait for it."""
    few = _on_few_elements(steps, program)
    rest = [step for position, step in enumerate(steps) if position not in few]
    ordered = _by_parts(rest)
    if ordered == rest or not ctx.spend("order independent kernels part by part"):
        return steps
    return [*_by_parts([steps[position] for position in sorted(few)]), *ordered]


def _by_parts(steps: list[Kernel]) -> list[Kernel]:
    """The steps, the last of them ordered by parts: as many as bring those of one part nearest to each other."""
    start = _where_most_is_gained(steps)
    parts = _Parts()
    for position in reversed(range(start, len(steps))):
        parts.put_before(position, steps[position])
    members: dict[int, list[Kernel]] = {}
    for position in range(start, len(steps)):
        members.setdefault(parts.part_of(position), []).append(steps[position])
    return [*steps[:start], *(step for part in members.values() for step in part)]


def _on_few_elements(steps: Sequence[Kernel], program: Program) -> set[int]:
    """Steps on small buffers alone that wait for no other step: they may as well run first."""
    found: set[int] = set()
    touched: set[str] = set()  # by steps that stay where they are
    written: set[str] = set()
    for position, step in enumerate(steps):
        small = all(program.buffers[name].size.hint <= _FEW for name in (*step.reads, *step.writes))
        if small and written.isdisjoint(step.reads) and touched.isdisjoint(step.writes):
            found.add(position)
        else:
            touched.update(step.reads, step.writes)
            written.update(step.writes)
    return found


def _where_most_is_gained(steps: Sequence[Kernel]) -> int:
    """Where the steps begin that are worth ordering by parts; the end if none are."""
    parts = _Parts()
    start, most = len(steps), 0
    for position in reversed(range(len(steps))):
        parts.put_before(position, steps[position])
        if parts.gain > max(most, _MIXED * (len(steps) - position)):
            start, most = position, parts.gain
    return start


class _Part:
    """Steps from a first to a last position, with steps of other parts between them."""

    def __init__(self, position: int):
        self.first = self.last = position
        self.steps = 1

    def join(self, other: _Part) -> None:
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.steps += other.steps

    @property
    def gain(self) -> int:
        """Steps of other parts among its own, counted for each of its own."""
        return self.steps * (self.last - self.first + 1 - self.steps)


class _Parts:
    """Steps, put one before the other from the last one on. Those that touch a buffer that one of them writes are
    of one part."""

    def __init__(self) -> None:
        self.gain = 0
        self._next: dict[int, int] = {}  # a step -> another of its part; one of each part leads to itself
        self._part: dict[int, _Part] = {}
        self._touching: dict[str, list[int]] = {}  # buffer -> steps, or, once it is written, one of them all
        self._written: set[str] = set()

    def put_before(self, position: int, step: Kernel) -> None:
        self._next[position] = position
        self._part[position] = _Part(position)
        self._written.update(step.writes)
        for name in dict.fromkeys((*step.reads, *step.writes)):
            others = self._touching.setdefault(name, [])
            if name in self._written:
                for other in others:
                    self._join(position, other)
                others.clear()
            others.append(position)

    def part_of(self, position: int) -> int:
        while self._next[position] != position:
            self._next[position] = position = self._next[self._next[position]]
        return position

    def _join(self, a: int, b: int) -> None:
        a, b = self.part_of(a), self.part_of(b)
        if a == b:
            return
        self._next[b] = a
        self.gain -= self._part[a].gain + self._part[b].gain
        self._part[a].join(self._part.pop(b))
        self.gain += self._part[a].gain
