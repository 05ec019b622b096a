"""What a run of a program holds at once, at most.

In: a program in order and its memory layout. Out: `Memory`: the run is followed step by step, as the runtime will take
and return memory.

Counted is what the program takes: its arena, large temporaries with memory of their own, results, what operators
allocate for theirs. Arguments are the caller's; one that he drops as he goes is counted off after its last use. What
libraries allocate for themselves within a call is counted where the caller knows it; what is in a file is the
system's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import torch

from litz.loop.dtype import DTYPES
from litz.loop.formula import Measures
from litz.loop.ir import Buffer, Call, Program, View
from litz.loop.offload import NAME as OFFLOAD
from litz.report import Memory
from litz.schedule.lifetimes import lifetimes
from litz.schedule.memory import Layout
from litz.schedule.place import ALIGNMENT, Workspace, place, size_of

_LARGEST = 5  # buffers that are named
_WORTH_IT = 0.01  # of the peak: what taking the arena anew at each call must save
FOR_ITSELF = "what the call takes for itself"


class Held(NamedTuple):
    """A buffer with memory of its own, its bytes, the first step and the last with it."""

    name: str
    bytes: int
    first: int
    last: int


class Holding(NamedTuple):
    """What a run holds besides its arguments: an arena, throughout or until a step, what `stays` from step to step, and
    arguments that are its own to let go of, which it `inherits`."""

    arena: int
    until: int | None
    stays: tuple[Held, ...]
    inherits: tuple[Held, ...]
    within: Mapping[int, int]  # step, a call -> what it takes for itself while it runs


def peak(
    program: Program, layout: Layout, workspace: Workspace, dropped: Collection[str] = (),
    sizes: Measures | None = None, within: Callable[[Call], int] | None = None, until: int | None = None,
) -> Memory:  # fmt: skip
    """`dropped`: arguments that are the run's to let go of; `within`: what a call takes for itself; `until`: the step
    before which the arena is returned, if it is. Where sizes vary, it is for likely ones."""
    return _followed(program, holding(program, layout, workspace, dropped, sizes, within, until))


def arena_until(program: Program, layout: Layout, workspace: Workspace, dropped: Collection[str] = ()) -> int | None:
    """The step before which to return the arena, where that makes for a lower peak: the last gradient is often the
    largest, and is due when nothing small is needed any more."""
    used = [*(span.last for span in layout.shared), *workspace.steps]
    until = next((at for at in sorted(layout.pauses) if at > max(used, default=-1)), None)
    if until is None or not 0 < until < len(program.steps):
        return None
    before, after = (peak(program, layout, workspace, dropped, until=one).peak for one in (None, until))
    return until if before - after >= _WORTH_IT * before else None


def holding(
    program: Program, layout: Layout, workspace: Workspace, dropped: Collection[str] = (),
    sizes: Measures | None = None, within: Callable[[Call], int] | None = None, until: int | None = None,
) -> Holding:  # fmt: skip
    buffers, steps = program.buffers, len(program.steps)
    arena = place(buffers, layout.shared, sizes, workspace).size
    stays: list[Held] = []
    last_use = dict(layout.last_use)
    for block in layout.apart:
        if block.into is not None:
            continue  # counted as the result it is
        if block.over is not None and block.over in dropped:
            last_use[block.over] = max(last_use.get(block.over, 0), block.last)
        else:
            stays.append(Held(block.members[0], size_of(buffers, block.members, sizes), block.first, block.last))
    in_files = {name for call in program.calls if call.target == OFFLOAD for name in call.writes}
    leaving = {view.buffer for view in program.outputs if isinstance(view, View)}
    for name, born in lifetimes(program).born.items():
        buffer = buffers[name]
        if name in in_files:
            continue
        if name in layout.owned:
            stays.append(Held(name, bytes_of(buffer, sizes), born, steps if name in leaving else last_use[name]))
        elif buffer.kind == "output":
            stays.append(Held(name, bytes_of(buffer, sizes), layout.first_use.get(name, 0), steps))
    own = [name for name in dropped if name in buffers]
    inherits = (Held(name, bytes_of(buffers[name], sizes), 0, last_use.get(name, -1)) for name in own)
    taken = {at: within(step) for at, step in enumerate(program.steps) if isinstance(step, Call)} if within else {}
    return Holding(arena, until, tuple(stays), tuple(inherits), taken)


def bytes_of(buffer: Buffer, sizes: Measures | None = None) -> int:
    """Also of what no kernel computes with, such as complex numbers: called operators make those."""
    known = DTYPES.get(buffer.dtype)
    width = known.bytes if known is not None else getattr(torch, buffer.dtype.removeprefix("torch.")).itemsize
    count = max(buffer.size.hint if sizes is None else int(buffer.size.at(sizes)), 0)
    return -(-count * width // ALIGNMENT) * ALIGNMENT


def _followed(program: Program, found: Holding) -> Memory:
    steps = len(program.steps)
    change: Counter[int] = Counter()
    for held in found.stays:
        change[held.first] += held.bytes
        change[held.last + 1] -= held.bytes
    for held in found.inherits:
        change[held.last + 1] -= held.bytes
    live, most, when, late = 0, 0, 0, 0
    busy = found.arena
    for at in range(steps):
        live += change[at]
        now = live + found.within.get(at, 0)
        if found.until is not None and at >= found.until:
            late = max(late, now)
        else:
            now += found.arena
            busy = max(busy, now)
        if now > most:
            most, when = now, at
    left = live + change[steps]
    there = [(held.bytes, held.name) for held in found.stays if held.first <= when <= held.last]
    if found.within.get(when):
        there.append((found.within[when], FOR_ITSELF))
    largest = sorted(there, reverse=True)
    what = program.steps[when].name if program.steps and hasattr(program.steps[when], "name") else ""
    named = tuple((name, size) for size, name in largest[:_LARGEST])
    return Memory(found.arena, max(most, found.arena), left, what, named, busy, late)


__all__ = ["FOR_ITSELF", "Held", "Holding", "arena_until", "bytes_of", "holding", "peak"]
