"""Plan memory: every temporary buffer gets a place in one arena, and places are used again.

In: a program whose steps are in order. Out: a `Layout`, which holds whatever the sizes are: how long each buffer
lives, which ones follow each other in one piece of memory, which have memory of their own. `place.py` then gives byte
offsets, for sizes that may be known only at a call. A kernel may also write a result over an argument that dies
there, when it reads and writes each element at the same place; so may a product, over what its sum is combined with.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from litz.loop.contraction import contraction
from litz.loop.dtype import DTYPES
from litz.loop.expr import Expr
from litz.loop.ir import Kernel, Load, Program, Store, definitions_for
from litz.loop.passes import last_pass_only
from litz.loop.radix import mixed_radix
from litz.schedule.check_first import first_effect
from litz.schedule.lifetimes import Lifetimes, lifetimes
from litz.schedule.place import Span, bytes_of, size_of


class Apart(NamedTuple):
    """Memory of its own for the buffers of a span."""

    members: tuple[str, ...]
    first: int
    last: int
    over: str | None = None  # an input that dies at `first`, and whose memory this may be
    into: str | None = None  # the output that is its last member, and whose memory this is


@dataclass(frozen=True)
class Layout:
    shared: tuple[Span, ...]  # temporaries in the arena
    owned: frozenset[str]  # buffers that a called operator allocates
    last_use: dict[str, int]  # buffer -> step after which it is dead
    first_use: dict[str, int]  # buffer -> step that writes it first
    apart: tuple[Apart, ...] = ()  # large temporaries that are not in the arena
    pauses: frozenset[int] = frozenset()  # steps before which the caller may take and return memory
    first_effect: int | None = None  # the first step that the caller can see to have been run, besides by its results


# A pause costs microseconds; memory below this is not worth one, or below that, where the peak is bounded.
WORTH_A_PAUSE, WORTH_IT_UNDER_A_BOUND = 1 << 20, 1 << 17


def plan_for_training(
    program: Program, donated: frozenset[str] = frozenset(), sums_first: bool = False, least: int = WORTH_A_PAUSE
) -> Layout:
    """The layout of a forward or a backward: large memory is taken when it is due and returned after its last use.

    An arena lives as long as its program runs, and would come on top of what is saved and of all gradients. So
    here only small temporaries share one; between stretches of the program the caller takes memory for large
    temporaries and outputs that are about to be written, and returns what nobody needs any more. A temporary may
    also take the place of a `donated` input that dies where it is written. What is large, `least` bytes, is decided
    here, by likely sizes where they vary.
    """
    large = frozenset(name for name in donated if bytes_of(program.buffers, name) >= least)
    layout = plan_memory(program, least, large, sums_first)
    pauses = {at for block in layout.apart for at in (block.first, block.last + 1)}
    for name, buffer in program.buffers.items():
        if buffer.dtype not in DTYPES or bytes_of(program.buffers, name) < least:
            continue
        if buffer.kind == "output" and name in layout.first_use:
            pauses.add(layout.first_use[name])
        if buffer.kind == "input" and name in layout.last_use:
            pauses.add(layout.last_use[name] + 1)
    return replace(layout, pauses=frozenset(pauses))


def plan_memory(
    program: Program, most: int | None = None, donated: frozenset[str] = frozenset(), sums_first: bool = False
) -> Layout:
    """Temporaries of `most` bytes or more stay out of the arena. `sums_first`: kernels of the machine take all of an
    element's sum, once, before they load what it is combined with then, so that a result may lie over that."""
    life = lifetimes(program)
    temps = [
        name
        for name in life.born
        if program.buffers[name].kind == "temp" and name not in life.owned and program.buffers[name].dtype in DTYPES
    ]
    # With memory apart, an output may also be made in place: what is computed over lies in it from the start.
    outputs = set()
    if most is not None:
        made = (name for name in life.born if _is_output(program, name, life))
        outputs = {name for name in made if bytes_of(program.buffers, name) >= most}
    taken_over = _in_place(program, life, set(temps) | outputs, set(temps) | donated, sums_first)
    shared: list[Span] = []
    apart: list[Apart] = []
    for members in _groups([*temps, *(n for n in taken_over if n in outputs)], taken_over):
        span = Span(tuple(members), min(life.born[m] for m in members), max(life.dies[m] for m in members))
        if most is None or size_of(program.buffers, span.members) < most:
            shared.append(span)
            continue
        into = members[-1] if members[-1] in outputs else None
        over = taken_over.get(members[0])
        apart.append(Apart(*span, over if into is None and over in donated else None, into))
    first_use = life.born | {block.into: block.first for block in apart if block.into is not None}
    return Layout(tuple(shared), life.owned, life.dies, first_use, tuple(apart), first_effect=first_effect(program))


def _is_output(program: Program, name: str, life: Lifetimes) -> bool:
    return program.buffers[name].kind == "output" and name not in life.owned and program.buffers[name].dtype in DTYPES


def _in_place(program: Program, life: Lifetimes, results: set[str], free: set[str], sums_first: bool) -> dict[str, str]:
    """Result, one of `results`, where it is born -> the dying argument, one of `free`, whose memory it takes over."""
    found: dict[str, str] = {}
    for at, step in enumerate(program.steps):
        if not isinstance(step, Kernel):
            continue
        dying = [n for n in step.reads if n in free and life.dies[n] == at and n not in step.writes]
        made = [n for n in step.writes if n in results and life.born[n] == at and n not in step.reads]
        if not dying or not made:
            continue
        claimable: dict[Hashable, list[str]] = {}  # in the order of reading, the first one last
        summed = _summed(step) if sums_first else None
        for argument, index in reversed(_only_places(step.loads, dying).items()):
            if summed is not None and argument in summed:
                continue
            claimable.setdefault(_shape(program, argument, index), []).append(argument)
        for result, index in _only_places(step.stores, made).items():
            arguments = claimable.get(_shape(program, result, index))
            if arguments and (_may_overwrite(step, result, index) or (summed is not None and _is_whole(step, index))):
                found[result] = arguments.pop()
    return found


def _only_places(touches: Sequence[Load | Store], names: Sequence[str]) -> dict[str, Expr]:
    """The place at which each of the buffers is touched, where it is one."""
    places: dict[str, set[Expr]] = {name: set() for name in names}
    for op in touches:
        if op.buffer in places:
            places[op.buffer].add(op.index)
    return {name: next(iter(found)) for name, found in places.items() if len(found) == 1}


def _shape(program: Program, name: str, index: Expr) -> Hashable:
    return program.buffers[name].dtype, program.buffers[name].size, index


def _may_overwrite(kernel: Kernel, result: str, index: Expr) -> bool:
    """Every pass reads an argument again, so only the last one may overwrite it; and in a product other rows of the
    result still need it."""
    return set(kernel.reduced) <= index.axes() and last_pass_only(kernel, result)


def _summed(kernel: Kernel) -> set[str] | None:
    """Of a product, the buffers that its sum takes in."""
    found = contraction(kernel)
    if found is None:
        return None
    return {op.buffer for op in definitions_for(kernel.body, [found.total]) if isinstance(op, Load)}


def _is_whole(kernel: Kernel, index: Expr) -> bool:
    """Whether each element has a place of its own."""
    return mixed_radix(index, kernel.axes) is not None


def _groups(temps: list[str], taken_over: dict[str, str]) -> list[list[str]]:
    """Buffers that follow each other in one piece of memory."""
    head: dict[str, str] = {}
    for result, argument in taken_over.items():  # in the order of the steps: an argument has its head before
        head[result] = head.get(argument, argument)
    groups: dict[str, list[str]] = {}
    for name in temps:
        groups.setdefault(head.get(name, name), []).append(name)
    return list(groups.values())
