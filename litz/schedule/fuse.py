"""Fuse: which operators share a kernel.

In: a program with a kernel an operator. Out: a program with as few kernels, and as little memory
traffic, as the rules below allow, its steps in an order that respects every dependence.

Steps are taken in order. Each looks back for the kernels that made what it reads and merges with them
where `merge` finds an alignment; then for kernels that read the same; what is cheap and made from
almost nothing is computed again instead of stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from litz.context import Context
from litz.loop.cost import is_cheap, is_formula
from litz.loop.dtype import DTYPES
from litz.loop.ir import Kernel, Load, Program, Step, View
from litz.schedule.align import Refusal
from litz.schedule.check_first import draws
from litz.schedule.depend import Dependences, Node
from litz.schedule.draft import Draft
from litz.schedule.inline import inline, inline_masked
from litz.schedule.merge import merge
from litz.schedule.resolve_places import is_position, resolve_places
from litz.schedule.separate import separate
from litz.schedule.simplify import without_dead_stores

_SHARED_LEAST = 1024  # points: fewer are not worth a kernel of their own, nor a search for company


def fuse(program: Program, ctx: Context) -> Program:
    steps = without_dead_stores(program, program.steps)
    steps = _inline_cheap(program, steps, ctx)
    steps = _inline_masked(program, steps, ctx)
    steps = separate(program, steps, ctx)
    return replace(program, steps=tuple(without_dead_stores(program, _Fusion(program, ctx).run(steps))))


class _Fusion:
    """Steps taken in order, each merged with near ones before it."""

    def __init__(self, program: Program, ctx: Context):
        self.program, self.ctx = program, ctx
        self.graph = Dependences()
        self.drafts: dict[int, Draft] = {}  # of the kernels that may grow
        self.fixed: dict[int, Step] = {}  # all other steps

    def run(self, steps: list[Step]) -> list[Step]:
        last_drawn: int | None = None
        for at, step in enumerate(steps):
            # Random numbers come out of one stream: who draws first gets the same ones as in eager.
            drawn = draws(step)
            node = self.graph.add(at, step.reads, step.writes, [last_drawn] if drawn and last_drawn is not None else [])
            last_drawn = at if drawn else last_drawn
            draft = Draft.of(step) if isinstance(step, Kernel) else None
            if draft is None:
                self.fixed[at] = step
                continue
            self.drafts[at] = draft
            newest: Node | None = node
            while newest is not None:
                newest = self.merge(newest)
        return [self.fixed[i] if i in self.fixed else self.drafts[i].kernel() for i in self.graph.in_order()]

    def merge(self, last: Node) -> Node | None:
        """The newest node merged with one before it, if any will; the two are the newest then."""
        draft = self.drafts[last.id]
        for other, buffer in self.candidates(last):
            if not self.graph.may_join(other, last):
                continue
            # Joining would run one of them long before or after its turn, and keep alive what it makes or what it
            # reads. A backward computes a residual stream again at its start, and each layer's share of it is read
            # much later; the gradient of a tied weight is complete only at the end.
            if self.graph.is_read_far_from(self.drafts[other.id].stored, last):
                continue
            merged = merge(self.drafts[other.id], draft, buffer, self.ctx.target)
            if isinstance(merged, Refusal):
                continue
            if not self.ctx.spend(f"fuse {self.drafts[other.id].name} + {draft.name}"):
                continue
            self.graph.join(other, last, (*draft.loaded, *draft.stored))
            del self.drafts[last.id]
            self.drafts[other.id] = merged.done()
            return other
        return None

    def candidates(self, last: Node) -> Iterator[tuple[Node, str]]:
        """Near kernels, each with a buffer that it and `last` touch: those that made what it reads, the latest first;
        then those that read the same."""
        reads = self.drafts[last.id].loaded
        near = [self.graph.near[i] for i in sorted(self.graph.near, reverse=True) if i != last.id and i in self.drafts]
        rest = []
        for node in near:
            made = _common(reads, self.drafts[node.id].stored)
            buffer = next((name for name in made if self.graph.writer[name] == node.id), None)
            if buffer is not None:
                yield node, buffer
            else:
                rest.append(node)
        points = 1
        for axis in self.drafts[last.id].space.parallel:
            points *= axis.size.hint
        if self.drafts[last.id].space.reduced or points < _SHARED_LEAST:
            return
        for node in rest:
            draft = self.drafts[node.id]
            if draft.space.reduced or draft.product is not None:
                continue
            # For a buffer that is a good part of what they touch.
            shared = (name for name in _common(reads, draft.loaded) if self._size(name) * 2 >= points)
            buffer = next(shared, None)
            if buffer is not None:
                yield node, buffer

    def _size(self, buffer: str) -> int:
        return self.program.buffers[buffer].size.hint


def _common(names: Collection[str], others: Collection[str]) -> Iterator[str]:
    """Those of `names`, in their order, that are among `others`."""
    if len(others) < len(names) and not any(name in names for name in others):
        return iter(())
    return (name for name in names if name in others)


def _inline_cheap(program: Program, steps: list[Step], ctx: Context) -> list[Step]:
    """Compute again, where it is read, what costs less than it would to store and load."""
    makers: dict[str, Kernel] = {}
    result: list[Step] = []
    outputs = {v.buffer for v in program.outputs if isinstance(v, View)}
    written = {name for step in program.steps for name in step.writes}
    for step in steps:
        if isinstance(step, Kernel):
            for name in step.reads:
                maker = makers.get(name)
                if maker is None:
                    continue
                merged = inline(maker, step, name)
                if not isinstance(merged, Refusal) and ctx.spend(f"inline {maker.name} into {step.name}"):
                    step = merged
            step = resolve_places(step)
            for name in step.writes:
                makers.pop(name, None)  # no longer all there is in it
            if _is_cheap(program, step, written, outputs):
                makers[step.writes[0]] = step
        result.append(step)
    return without_dead_stores(program, result)


def _inline_masked(program: Program, steps: list[Step], ctx: Context) -> list[Step]:
    """Compute, where it is read, what only one kernel reads, and that through a mask: the two could not be merged."""
    outputs = {v.buffer for v in program.outputs if isinstance(v, View)}
    readers: dict[str, int] = {}
    last_written: dict[str, int] = {}
    made = {name for step in steps if isinstance(step, Kernel) for name in step.writes}
    for at, step in enumerate(steps):
        for name in step.reads:
            readers[name] = readers.get(name, 0) + 1
        for name in step.writes:
            last_written[name] = at
    makers: dict[str, tuple[int, Kernel]] = {}
    result: list[Step] = []
    for at, step in enumerate(steps):
        if isinstance(step, Kernel):
            for name in dict.fromkeys(op.buffer for op in step.loads if op.mask is not None):
                made_at, maker = makers.get(name, (at, None))
                if maker is None or any(read in made or last_written.get(read, -1) > made_at for read in maker.reads):
                    continue  # what a kernel makes is better stored by a kernel that the formula joins
                merged = inline_masked(maker, step, name)
                if not isinstance(merged, Refusal) and ctx.spend(f"inline {maker.name} into {step.name}"):
                    step = merged
            if is_formula(step) and program.buffers[step.writes[0]].kind == "temp":
                name = step.writes[0]
                if name not in outputs and readers.get(name) == 1 and last_written[name] == at:
                    makers[name] = (at, step)
        result.append(step)
    return without_dead_stores(program, result)


def _is_cheap(program: Program, kernel: Kernel, written: Collection[str], outputs: Collection[str]) -> bool:
    """Made from constants, positions and numbers of the host, or from a few elements: a mask, a scalar, a broadcast; or
    a wider form of numbers of 8 bits, which are a fourth of the bytes to read."""
    if kernel.reduced or len(kernel.stores) != 1:
        return False
    made = program.buffers[kernel.writes[0]]
    if is_position(kernel):  # also where it is stored for the caller, a place is not read from there
        return made.kind != "input"
    if made.kind != "temp" or made.name in outputs:
        return False
    if not is_cheap(kernel):
        return False
    sizes = [program.buffers[op.buffer] for op in kernel.body if isinstance(op, Load)]
    if any(b.kind == "input" and b.name in written for b in sizes):
        return False
    is_wider = DTYPES[made.dtype].bytes >= 4
    return all(
        b.kind == "number" or b.size.hint * 8 <= made.size.hint or (is_wider and b.dtype in ("u8", "i8")) for b in sizes
    )
