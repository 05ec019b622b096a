"""Plan memory: every temporary buffer gets a place in one arena, and places are used again.

In: a program whose steps are in order. Out: a `Layout`, which holds whatever the sizes are: how long each buffer
lives, which ones follow each other in one piece of memory, which have memory of their own. `place` then gives byte
offsets, for sizes that may be known only at a call.

Buffers are placed largest first at the lowest offset that is free during their whole life, which for
graphs of this kind comes within a few per cent of the peak of live bytes. A kernel may also write a
result over an argument that dies there, when it reads and writes each element at the same place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from litz.loop.dtype import DTYPES
from litz.loop.expr import Expr
from litz.loop.formula import Measures
from litz.loop.ir import Call, Kernel, Load, Program, Store, View
from litz.loop.passes import last_pass_only
from litz.schedule.check_first import first_effect

ALIGNMENT = 64


class Span(NamedTuple):
    """Buffers that follow each other in one piece of memory, from the step before which it is needed to the step
    after which it is not."""

    members: tuple[str, ...]
    first: int
    last: int


class Apart(NamedTuple):
    """Memory of its own for the buffers of a span."""

    members: tuple[str, ...]
    first: int
    last: int
    over: str | None = None  # an input that dies at `first`, and whose memory this may be
    into: str | None = None  # the output that is its last member, and whose memory this is


class Placement(NamedTuple):
    """The arena for certain sizes: where each temporary buffer begins, in bytes, and how large it all is."""

    offsets: dict[str, int]
    size: int


@dataclass(frozen=True)
class Lifetimes:
    born: dict[str, int]  # buffer -> step that writes it first
    dies: dict[str, int]  # buffer -> step after which it is dead
    owned: frozenset[str]  # buffers that a called operator allocates


@dataclass(frozen=True)
class Layout:
    shared: tuple[Span, ...]  # temporaries in the arena
    owned: frozenset[str]  # buffers that a called operator allocates
    last_use: dict[str, int]  # buffer -> step after which it is dead
    first_use: dict[str, int]  # buffer -> step that writes it first
    apart: tuple[Apart, ...] = ()  # large temporaries that are not in the arena
    pauses: frozenset[int] = frozenset()  # steps before which the caller may take and return memory
    first_effect: int | None = None  # the first step that the caller can see to have been run, besides by its results


# A pause costs microseconds; memory below this is not worth one.
_WORTH_A_PAUSE = 1 << 20


def plan_for_training(program: Program, donated: frozenset[str] = frozenset()) -> Layout:
    """The layout of a forward or a backward: large memory is taken when it is due and returned after its last use.

    An arena lives as long as its program runs, and would come on top of what is saved and of all gradients. So
    here only small temporaries share one; between stretches of the program the caller takes memory for large
    temporaries and outputs that are about to be written, and returns what nobody needs any more. A temporary may
    also take the place of a `donated` input that dies where it is written. What is large is decided here, by likely
    sizes where they vary.
    """
    large = frozenset(name for name in donated if bytes_of(program, name) >= _WORTH_A_PAUSE)
    layout = plan_memory(program, _WORTH_A_PAUSE, large)
    pauses = {at for block in layout.apart for at in (block.first, block.last + 1)}
    for name, buffer in program.buffers.items():
        if buffer.dtype not in DTYPES or bytes_of(program, name) < _WORTH_A_PAUSE:
            continue
        if buffer.kind == "output" and name in layout.first_use:
            pauses.add(layout.first_use[name])
        if buffer.kind == "input" and name in layout.last_use:
            pauses.add(layout.last_use[name] + 1)
    return replace(layout, pauses=frozenset(pauses))


def plan_memory(program: Program, most: int | None = None, donated: frozenset[str] = frozenset()) -> Layout:
    """Temporaries of `most` bytes or more stay out of the arena."""
    life = lifetimes(program)
    temps = [
        name
        for name in life.born
        if program.buffers[name].kind == "temp" and name not in life.owned and program.buffers[name].dtype in DTYPES
    ]
    # With memory apart, an output may also be made in place: what is computed over lies in it from the start.
    outputs = {
        n for n in life.born if most is not None and _is_output(program, n, life) and bytes_of(program, n) >= most
    }
    taken_over = _in_place(program, life, set(temps) | outputs, set(temps) | donated)
    shared: list[Span] = []
    apart: list[Apart] = []
    for members in _groups([*temps, *(n for n in taken_over if n in outputs)], taken_over):
        span = Span(tuple(members), min(life.born[m] for m in members), max(life.dies[m] for m in members))
        if most is None or size_of(program, span.members) < most:
            shared.append(span)
            continue
        into = members[-1] if members[-1] in outputs else None
        over = taken_over.get(members[0])
        apart.append(Apart(*span, over if into is None and over in donated else None, into))
    first_use = life.born | {block.into: block.first for block in apart if block.into is not None}
    return Layout(tuple(shared), life.owned, life.dies, first_use, tuple(apart), first_effect=first_effect(program))


def lifetimes(program: Program) -> Lifetimes:
    born: dict[str, int] = {}
    dies: dict[str, int] = {}
    owned: set[str] = set()
    for at, step in enumerate(program.steps):
        for name in (*step.reads, *step.writes):
            dies[name] = at
        for name in step.writes:
            born.setdefault(name, at)
        if isinstance(step, Call) and not writes_in_place(step):
            owned.update(v.buffer for v in step.results if v is not None)
    for output in program.outputs:
        if isinstance(output, View):
            dies[output.buffer] = len(program.steps)
    return Lifetimes(born, dies, frozenset(owned))


def place(program: Program, layout: Layout, sizes: Measures | None = None) -> Placement:
    """The arena at these sizes; without them, at likely ones."""
    placed = _Taken(1 + max((span.last for span in layout.shared), default=0))
    offsets: dict[str, int] = {}
    total = 0
    spans = [(size_of(program, span.members, sizes), span) for span in layout.shared]
    for size, (members, start, end) in sorted(spans, key=lambda s: (-s[0], s[1].first)):
        offset = 0
        for low, high in placed.during(start, end):
            if offset + size <= low:
                break
            offset = max(offset, high)
        placed.add(start, end, offset, offset + size)
        total = max(total, offset + size)
        offsets.update(dict.fromkeys(members, offset))
    return Placement(offsets, total)


Bytes = tuple[int, int]  # from the first to before the second


class _Taken:
    """Which bytes are taken, and during which steps: a tree of stretches of steps, each half of the one above it.

    What is taken for a while is noted at the few stretches that make up that while, and neighbours are noted as one:
    memory is packed, so there is little to look through however many buffers are alive.
    """

    def __init__(self, steps: int):
        self.leaves = 1 << max(0, steps - 1).bit_length()
        self.throughout: dict[int, list[Bytes]] = {}  # stretch -> taken at each of its steps
        self.somewhere: dict[int, list[Bytes]] = {}  # stretch -> taken at one of its steps or more

    def add(self, first: int, last: int, low: int, high: int) -> None:
        above = set()
        for stretch in self._stretches(first, last):
            _unite(self.throughout.setdefault(stretch, []), low, high)
            while stretch and stretch not in above:
                above.add(stretch)
                stretch >>= 1
        for stretch in above:
            _unite(self.somewhere.setdefault(stretch, []), low, high)

    def during(self, first: int, last: int) -> list[Bytes]:
        """What is taken at some step from the first to the last, in order."""
        found: set[Bytes] = set()
        above = set()
        for stretch in self._stretches(first, last):
            found.update(self.somewhere.get(stretch, ()))
            while stretch and stretch not in above:
                above.add(stretch)
                stretch >>= 1
        for stretch in above:
            found.update(self.throughout.get(stretch, ()))
        return sorted(found)

    def _stretches(self, first: int, last: int) -> Iterator[int]:
        """The largest stretches that make up the steps from the first to the last."""
        low, high = first + self.leaves, last + self.leaves + 1
        while low < high:
            if low & 1:
                yield low
                low += 1
            if high & 1:
                high -= 1
                yield high
            low, high = low >> 1, high >> 1


def _unite(taken: list[Bytes], low: int, high: int) -> None:
    """Add to bytes that are in order and do not touch each other."""
    start = bisect_left(taken, (low,))
    if start and taken[start - 1][1] >= low:
        start -= 1
        low = taken[start][0]
    stop = start
    while stop < len(taken) and taken[stop][0] <= high:
        high = max(high, taken[stop][1])
        stop += 1
    taken[start:stop] = [(low, high)]


def _is_output(program: Program, name: str, life: Lifetimes) -> bool:
    return program.buffers[name].kind == "output" and name not in life.owned and program.buffers[name].dtype in DTYPES


def writes_in_place(call: Call) -> bool:
    """Whether the runtime can have the operator write into memory of ours."""
    return call.target in OUT_VARIANTS and all(v is not None and v.dtype in DTYPES for v in call.results)


OUT_VARIANTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


def size_of(program: Program, members: tuple[str, ...], sizes: Measures | None = None) -> int:
    """Bytes that hold any of the buffers."""
    return max(bytes_of(program, m, sizes) for m in members)


def bytes_of(program: Program, name: str, sizes: Measures | None = None) -> int:
    """Bytes of a buffer, up to the next boundary; at likely sizes unless they are given."""
    buffer = program.buffers[name]
    count = buffer.size.hint if sizes is None else buffer.size.at(sizes)
    size = max(count, 0) * DTYPES[buffer.dtype].bytes
    return -(-size // ALIGNMENT) * ALIGNMENT


def _in_place(program: Program, life: Lifetimes, results: set[str], free: set[str]) -> dict[str, str]:
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
        for argument, index in reversed(_only_places(step.loads, dying).items()):
            claimable.setdefault(_shape(program, argument, index), []).append(argument)
        for result, index in _only_places(step.stores, made).items():
            arguments = claimable.get(_shape(program, result, index))
            if arguments and _may_overwrite(step, result, index):
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


def _groups(temps: list[str], taken_over: dict[str, str]) -> list[list[str]]:
    """Buffers that follow each other in one piece of memory."""
    head: dict[str, str] = {}
    for result, argument in taken_over.items():  # in the order of the steps: an argument has its head before
        head[result] = head.get(argument, argument)
    groups: dict[str, list[str]] = {}
    for name in temps:
        groups.setdefault(head.get(name, name), []).append(name)
    return list(groups.values())
