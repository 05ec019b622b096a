"""Plan memory: every temporary buffer gets a place in one arena, and places are used again.

In: a program whose steps are in order. Out: a `Layout`, byte offsets and the arena's size.

Buffers are placed largest first at the lowest offset that is free during their whole life, which for
graphs of this kind comes within a few per cent of the peak of live bytes. A kernel may also write a
result over an argument that dies there, when it reads and writes each element at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from litz.loop.dtype import DTYPES
from litz.loop.expr import Expr
from litz.loop.ir import Call, Kernel, Program, Store, View
from litz.loop.passes import pass_of_each

ALIGNMENT = 64


class Apart(NamedTuple):
    """Memory of its own for buffers that follow each other in it, from the step before which it is needed to the
    step after which it is not."""

    members: tuple[str, ...]
    bytes: int
    first: int
    last: int
    over: str | None = None  # an input that dies at `first`, and whose memory this may be
    into: str | None = None  # the output that is its last member, and whose memory this is


@dataclass(frozen=True)
class Layout:
    offsets: dict[str, int]  # temporary buffer -> byte offset in the arena
    size: int
    owned: frozenset[str]  # buffers that a called operator allocates
    last_use: dict[str, int]  # buffer -> step after which it is dead
    first_use: dict[str, int]  # buffer -> step that writes it first
    apart: tuple[Apart, ...] = ()  # large temporaries that are not in the arena
    pauses: frozenset[int] = frozenset()  # steps before which the caller may take and return memory


# A pause costs microseconds; memory below this is not worth one.
_WORTH_A_PAUSE = 1 << 20


def plan_for_training(program: Program, donated: frozenset[str] = frozenset()) -> Layout:
    """The layout of a forward or a backward: large memory is taken when it is due and returned after its last use.

    An arena lives as long as its program runs, and would come on top of what is saved and of all gradients. So
    here only small temporaries share one; between stretches of the program the caller takes memory for large
    temporaries and outputs that are about to be written, and returns what nobody needs any more. A temporary may
    also take the place of a `donated` input that dies where it is written.
    """
    large = frozenset(name for name in donated if _bytes(program, name, None) >= _WORTH_A_PAUSE)
    layout = plan_memory(program, most=_WORTH_A_PAUSE, donated=large)
    pauses = {at for block in layout.apart for at in (block.first, block.last + 1)}
    for name, buffer in program.buffers.items():
        if buffer.dtype not in DTYPES or _bytes(program, name, None) < _WORTH_A_PAUSE:
            continue
        if buffer.kind == "output" and name in layout.first_use:
            pauses.add(layout.first_use[name])
        if buffer.kind == "input" and name in layout.last_use:
            pauses.add(layout.last_use[name] + 1)
    return replace(layout, pauses=frozenset(pauses))


def plan_memory(
    program: Program,
    sizes: Mapping[str, int] | None = None,
    most: int | None = None,
    donated: frozenset[str] = frozenset(),
) -> Layout:
    """`sizes`: what sizes known only at run time are; without them, the likely ones. Temporaries of `most` bytes
    or more stay out of the arena."""
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
    temps = [
        name
        for name in born
        if program.buffers[name].kind == "temp" and name not in owned and program.buffers[name].dtype in DTYPES
    ]
    # With memory apart, an output may also be made in place: what is computed over lies in it from the start.
    outputs = {
        n for n in born if most is not None and _is_output(program, n, owned) and _bytes(program, n, sizes) >= most
    }
    taken_over = _in_place(program, born, dies, set(temps) | outputs, set(temps) | donated)
    placed: list[tuple[int, int, int, int]] = []  # (birth, death, offset, bytes)
    offsets: dict[str, int] = {}
    groups = _groups([*temps, *(n for n in taken_over if n in outputs)], taken_over)
    heads = {members[0]: taken_over[members[0]] for members in groups if taken_over.get(members[0]) in donated}
    spans = []
    apart: list[Apart] = []
    for members in groups:
        size = max(_bytes(program, m, sizes) for m in members)
        span = (size, min(born[m] for m in members), max(dies[m] for m in members), members)
        if most is not None and size >= most:
            into = members[-1] if members[-1] in outputs else None
            apart.append(Apart(tuple(members), *span[:3], None if into else heads.get(members[0]), into))
        else:
            spans.append(span)
    for size, start, end, members in sorted(spans, key=lambda s: (-s[0], s[1])):
        busy = sorted((o, o + n) for b, d, o, n in placed if b <= end and start <= d)
        offset = 0
        for low, high in busy:
            if offset + size <= low:
                break
            offset = max(offset, high)
        placed.append((start, end, offset, size))
        for member in members:
            offsets[member] = offset
    total = max((o + n for _, _, o, n in placed), default=0)
    first_use = born | {block.into: block.first for block in apart if block.into is not None}
    return Layout(offsets, total, frozenset(owned), dies, first_use, tuple(apart))


def _is_output(program: Program, name: str, owned: set[str]) -> bool:
    return program.buffers[name].kind == "output" and name not in owned and program.buffers[name].dtype in DTYPES


def value_of(e: Expr, sizes: Mapping[str, int]) -> int:
    """The expression, which is in sizes alone, at these sizes."""
    return e.int if e.is_int else int(e.evaluate(lambda atom: sizes[atom.name]))  # type: ignore[attr-defined, call-overload]


def writes_in_place(call: Call) -> bool:
    """Whether the runtime can have the operator write into memory of ours."""
    return call.target in OUT_VARIANTS and all(v is not None and v.dtype in DTYPES for v in call.results)


OUT_VARIANTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


def _bytes(program: Program, name: str, sizes: Mapping[str, int] | None) -> int:
    buffer = program.buffers[name]
    count = buffer.size.hint if sizes is None else value_of(buffer.size, sizes)
    size = count * DTYPES[buffer.dtype].bytes
    return -(-size // ALIGNMENT) * ALIGNMENT


def _in_place(
    program: Program, born: dict[str, int], dies: dict[str, int], results: set[str], free: set[str]
) -> dict[str, str]:
    """Result, one of `results`, where it is born -> the dying argument, one of `free`, whose memory it takes over."""
    found: dict[str, str] = {}
    for at, step in enumerate(program.steps):
        if not isinstance(step, Kernel):
            continue
        claimed: set[str] = set()
        for result in step.writes:
            if result not in results or born[result] != at:
                continue
            for argument in step.reads:
                if (
                    argument in free
                    and argument not in claimed
                    and dies[argument] == at
                    and _same_places(program, step, argument, result)
                ):
                    found[result] = argument
                    claimed.add(argument)
                    break
    return found


def _same_places(program: Program, kernel: Kernel, argument: str, result: str) -> bool:
    a, b = program.buffers[argument], program.buffers[result]
    if a.dtype != b.dtype or a.size != b.size or argument in kernel.writes or result in kernel.reads:
        return False
    writes = {op.index for op in kernel.stores if op.buffer == result}
    reads = {op.index for op in kernel.loads if op.buffer == argument}
    if len(writes) != 1 or writes != reads:
        return False
    if not kernel.reduced:
        return True
    # Every pass reads the argument again, so only the last one may overwrite it; and in a product other
    # rows of the result still need it.
    (index,) = writes
    passes = pass_of_each(kernel)
    written = max(p for p, op in zip(passes, kernel.body, strict=True) if isinstance(op, Store) and op.buffer == result)
    return set(kernel.reduced) <= index.axes() and written == max(passes)


def _groups(temps: list[str], taken_over: dict[str, str]) -> list[list[str]]:
    head: dict[str, str] = {}

    def find(name: str) -> str:
        while name in head:
            name = head[name]
        return name

    for result, argument in taken_over.items():
        head[result] = argument
    groups: dict[str, list[str]] = {}
    for name in temps:
        groups.setdefault(find(name), []).append(name)
    return list(groups.values())
