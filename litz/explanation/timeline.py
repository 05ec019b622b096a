"""What a step of a model holds in memory, from its first kernel to its last.

In: the programs of a forward and of its backward, and their layouts. Out: `Memory`: bytes at each step, and the largest
of what is held, each with what made it and the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from litz.explanation.explanation import Memory, PartOfStep, Tensor
from litz.loop.ir import Call, Program, View
from litz.schedule.memory import Layout
from litz.schedule.peak import FOR_ITSELF, Held, Holding, holding
from litz.schedule.place import Workspace, bytes_of, size_of

_NAMED = 400  # tensors, the largest


class Origin(NamedTuple):
    """What a step does, in a few words, and the first of the user's lines in it."""

    does: str
    line: str | None


@dataclass(frozen=True)
class Planned:
    """A program, where its memory lies, and which of its arguments are its own to let go of. `saved`: where these are
    what the forward has kept, their numbers among its outputs."""

    part: str
    program: Program
    layout: Layout
    workspace: Workspace
    dropped: tuple[str, ...] = ()
    saved: tuple[int, ...] = ()
    within: Callable[[Call], int] | None = None  # what a call takes for itself
    until: int | None = None  # the step before which the arena is returned


def timeline(parts: Sequence[Planned], origin: Callable[[str, int], Origin]) -> Memory | None:
    """`origin(part, step)` says where a step is from. A second backward, for other results, is left out."""
    if not parts:
        return None
    forward, behind = parts[0], next((p for p in parts[1:] if p.part == "backward"), None)
    before = _holding(forward)
    after = None if behind is None else _holding(behind)
    arena = max(before.arena, 0 if after is None else after.arena)
    begins = len(forward.program.steps)
    held = _bytes_at(before, begins, 0, before.arena)
    tensors = [_tensor(h, 0, forward, origin) for h in (*before.stays, *_for_itself(before))]
    tensors += _in_arena(forward, 0, origin)
    shown = [PartOfStep("forward", begins)]
    if after is not None and behind is not None:
        steps = len(behind.program.steps)
        stays = [h for h in before.stays if h.last >= begins]  # results, and what was saved
        left = sum(h.bytes for h in stays)
        held += _bytes_at(after, steps, left, arena)
        lasts = _lasts(forward, behind, after.inherits)
        tensors = [t._replace(last=lasts.get(t.name, begins + steps)) if t.last >= begins else t for t in tensors]
        tensors += [_tensor(h, begins, behind, origin) for h in (*after.stays, *_for_itself(after))]
        tensors += _in_arena(behind, begins, origin)
        shown.append(PartOfStep("backward", steps))
    arguments = sum(_input_bytes(forward.program, name) for name in dict.fromkeys(forward.program.inputs) if name)
    tensors.sort(key=lambda t: -t.bytes)
    return Memory(tuple(shown), tuple(held), arguments, arena, tuple(tensors[:_NAMED]))


def _holding(part: Planned) -> Holding:
    return holding(part.program, part.layout, part.workspace, part.dropped, within=part.within, until=part.until)


def _for_itself(found: Holding) -> list[Held]:
    return [Held(FOR_ITSELF, taken, at, at) for at, taken in found.within.items() if taken]


def _bytes_at(found: Holding, steps: int, begin: int, arena: int) -> list[int]:
    change = [0] * (steps + 2)
    for one in found.stays:
        change[min(one.first, steps)] += one.bytes
        change[min(one.last + 1, steps + 1)] -= one.bytes
    for one in found.inherits:
        change[min(one.last + 1, steps + 1)] -= one.bytes
    live = list(accumulate(change[:steps], initial=begin))[1:]
    until = steps if found.until is None else found.until
    return [count + found.within.get(at, 0) + (arena if at < until else 0) for at, count in enumerate(live)]


def _lasts(forward: Planned, behind: Planned, inherits: Sequence[Held]) -> dict[str, int]:
    """Buffer of the forward that the backward lets go of -> the step, counted from the forward's first, after which."""
    begins = len(forward.program.steps)
    last_use = {one.name: one.last for one in inherits}
    found: dict[str, int] = {}
    for name, number in zip(behind.dropped, behind.saved):
        output = forward.program.outputs[number]
        if isinstance(output, View) and name in last_use:
            found[output.buffer] = begins + last_use[name]
    return found


def _tensor(
    held: Held, begins: int, part: Planned, origin: Callable[[str, int], Origin], in_arena: bool = False
) -> Tensor:
    made_at = next((at for at, step in enumerate(part.program.steps) if held.name in step.writes), held.first)
    does, line = origin(part.part, made_at)
    return Tensor(held.name, held.bytes, begins + held.first, begins + held.last, does, line, in_arena)


def _in_arena(part: Planned, begins: int, origin: Callable[[str, int], Origin]) -> list[Tensor]:
    buffers = part.program.buffers
    spans = (Held(s.members[0], size_of(buffers, s.members), s.first, s.last) for s in part.layout.shared)
    return [_tensor(span, begins, part, origin, in_arena=True) for span in spans]


def _input_bytes(program: Program, name: str) -> int:
    return bytes_of(program.buffers, name) if program.buffers[name].kind == "input" else 0


__all__ = ["Origin", "Planned", "timeline"]
