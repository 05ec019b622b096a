"""The host plan: what is done around native code when a program is called.

In: a program, its memory layout, and the stretches of it that became native functions. Out: a `HostPlan`, plain data:
all that the runtime needs to know of a program besides its object code.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Union

from litz.loop.expr import Size, expr
from litz.loop.ir import Arg, Buffer, Call, NumberSource, Program, SizeSource, View, views
from litz.schedule.check_first import draws, looks_before_it_draws
from litz.schedule.memory import Apart, Layout
from litz.schedule.place import Span, Workspace

IN_TIME = 256  # added to an error's code where the call ended before the first step with an effect


@dataclass(frozen=True)
class Native:
    """A function of the object code, which runs a stretch of steps."""

    function: str
    hands_over: tuple[str, ...] = ()  # buffers that operators allocate in it, whose handles are the caller's then


Run = Union[Native, Call]  # an operator that only Python can call stands between two stretches


class Dropped(NamedTuple):
    """A tensor that nobody needs any more: an argument, at this position, or what an operator gave."""

    buffer: str
    input: int | None


@dataclass(frozen=True)
class Item:
    """One thing to run, and the memory that comes and goes with it."""

    run: Run
    first: int  # step of the program
    makes: tuple[str, ...] = ()  # output buffers that it is the first to write
    takes: tuple[Apart, ...] = ()  # memory that is needed from here on
    returns: tuple[Apart, ...] = ()  # memory that is not needed afterwards
    drops: tuple[Dropped, ...] = ()
    label: str = ""  # of an operator, for profilers
    in_time: bool = True  # it ends before the first step that the caller can see to have been run, or fails before that


@dataclass(frozen=True)
class HostPlan:
    buffers: Mapping[str, Buffer]
    inputs: tuple[str | None, ...]  # as a program's: the caller's, then the constants
    outputs: tuple[Arg, ...]
    sizes: tuple[SizeSource, ...]
    numbers: tuple[NumberSource, ...]
    items: tuple[Item, ...]
    slots: Mapping[str, int]  # buffer, or what native code holds of it -> place in the table of pointers
    shared: tuple[Span, ...]  # temporaries in the arena
    owned: frozenset[str]  # buffers that a called operator allocates
    workspace: Workspace  # in the arena, for all threads together
    written: frozenset[str]  # inputs that a call changes
    draws: frozenset[str] = frozenset()  # operators that take from torch's stream of random numbers
    arena_until: int | None = None  # the item before which the arena is returned, if it is

    @property
    def apart(self) -> tuple[Apart, ...]:
        return tuple(block for item in self.items for block in item.takes)

    def why_not_native(self) -> str | None:
        """What stands in the way of a caller other than Python."""
        for item in self.items:
            if not isinstance(item.run, Native):
                return f"{item.run.target} is called by Python alone"
        private = self.private_outputs()
        for position, output in enumerate(self.outputs):
            if not isinstance(output, View) or position not in private:
                return f"output {position} is no tensor of its own"
            if not self.is_whole(output):
                return f"output {position} is part of a larger tensor"
        return None

    def is_whole(self, view: View) -> bool:
        """Whether the view is all of its buffer."""
        extent = expr(1)
        for size, stride in zip(view.sizes, view.strides, strict=True):
            extent = extent + (size - 1) * stride
        return view.offset == expr(0) and extent == self.buffers[view.buffer].size

    def private_outputs(self) -> frozenset[int]:
        return private_outputs(self.outputs, self.buffers, self.owned)

    def shaping(self) -> tuple[str, ...]:
        """The sizes that memory is laid out by; other numbers may change from call to call and leave it as it is."""
        shown = list(views(self.outputs))
        for item in self.items:
            if isinstance(item.run, Call):
                shown += views((item.run.args, item.run.kwargs, item.run.results))
        exprs = [buffer.size for buffer in self.buffers.values()]
        exprs += [e for view in shown for e in (*view.sizes, *view.strides, view.offset)]
        names = {atom.name for e in exprs for atom in e.atoms() if isinstance(atom, Size)}
        return tuple(source.name for source in self.sizes if source.name in names)


def private_outputs(outputs: Sequence[Arg], buffers: Mapping[str, Buffer], owned: frozenset[str]) -> frozenset[int]:
    """Outputs that are all of a buffer made for them, which no other output shows."""
    seen = Counter(v.buffer for v in outputs if isinstance(v, View))
    return frozenset(
        i
        for i, v in enumerate(outputs)
        if isinstance(v, View) and seen[v.buffer] == 1 and buffers[v.buffer].kind == "output" and v.buffer not in owned
    )


def host_plan(
    program: Program, layout: Layout, runs: Sequence[tuple[int, Run]], slots: Mapping[str, int], constants: int,
    workspace: Workspace, labels: Mapping[int, str] = MappingProxyType({}), arena_until: int | None = None,
) -> HostPlan:  # fmt: skip
    """`runs`: what is run, and the step each begins with. `constants`: how many of the inputs, the last, are some.
    `labels`: what profilers show for steps. `arena_until`: the step before which the arena is returned, if it is."""
    items = _items(program, layout, runs, constants, labels)
    idle = next((at for at, item in enumerate(items) if arena_until is not None and item.first >= arena_until), None)
    written = {name for step in program.steps for name in step.writes if program.buffers[name].kind == "input"}
    drawn = {call.target for call in program.calls if draws(call)}
    return HostPlan(
        program.buffers, program.inputs, program.outputs, program.sizes, program.numbers, items, slots, layout.shared,
        layout.owned, workspace, frozenset(written), frozenset(drawn), idle,
    )  # fmt: skip


def _items(
    program: Program, layout: Layout, runs: Sequence[tuple[int, Run]], constants: int, labels: Mapping[int, str]
) -> tuple[Item, ...]:
    starts = [first for first, _ in runs]
    made: list[list[str]] = [[] for _ in runs]
    taken: list[list[Apart]] = [[] for _ in runs]
    returned: list[list[Apart]] = [[] for _ in runs]
    dropped: list[list[Dropped]] = [[] for _ in runs]

    def item_of(step: int) -> int:
        return max(0, bisect_right(starts, step) - 1)

    for name in _in_order_of_outputs(program):
        if program.buffers[name].kind == "output" and name not in layout.owned:
            made[item_of(layout.first_use.get(name, 0))].append(name)
    for block in layout.apart:
        taken[item_of(block.first)].append(block)
        returned[item_of(block.last)].append(block)
    leaving = {v.buffer for v in program.outputs if isinstance(v, View)}
    given = program.inputs[: len(program.inputs) - constants]
    inputs = {name: i for i, name in enumerate(given) if name is not None}
    for name in (*inputs, *sorted(layout.owned)):
        if name not in leaving:
            dropped[item_of(layout.last_use.get(name, 0))].append(Dropped(name, inputs.get(name)))
    ends = [*starts, len(program.steps)][1:]
    return tuple(
        Item(
            run, first, tuple(made[i]), tuple(taken[i]), tuple(returned[i]), tuple(dropped[i]),
            labels.get(first, "") if isinstance(run, Call) else "",
            layout.first_effect is None
            or ends[i] <= layout.first_effect
            or (first == layout.first_effect and isinstance(run, Call) and looks_before_it_draws(program, run)),
        )
        for i, (first, run) in enumerate(runs)
    )  # fmt: skip


def _in_order_of_outputs(program: Program) -> list[str]:
    shown = [v.buffer for v in program.outputs if isinstance(v, View)]
    return list(dict.fromkeys((*shown, *program.buffers)))


__all__ = ["IN_TIME", "Dropped", "HostPlan", "Item", "Native", "Run", "host_plan", "private_outputs"]
