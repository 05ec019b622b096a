"""Fuse: which operators share a kernel.

In: a program with a kernel an operator. Out: a program with as few kernels, and as little memory
traffic, as the rules below allow, its steps in an order that respects every dependence.

Steps are taken in order. Each looks back for the kernels that made what it reads and merges with them
where `merge` finds an alignment; then for kernels that read the same; what is cheap and made from
almost nothing is computed again instead of stored.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace

import torch

from litz.context import Context
from litz.loop.contraction import contraction
from litz.loop.ir import Apply, Call, Kernel, Load, Program, Step, View
from litz.loop.scalar import SCALARS
from litz.schedule.merge import inline, merge
from litz.schedule.separate import separate
from litz.schedule.simplify import live_ops

_FAR = 16  # steps: memory that is kept for that long costs more than one more pass over it
_CHEAP = 8  # operations an element: computing them again costs less than a round trip through memory


@dataclass
class Node:
    """A step in the dependence graph; `ancestors` is a bit set of all it must come after."""

    id: int
    step: Step
    at: int  # position among the original steps of the last one merged in
    before: set[int] = field(default_factory=set)
    ancestors: int = 0


def fuse(program: Program, ctx: Context) -> Program:
    steps = _without_dead_stores(program, program.steps)
    steps = _inline_cheap(program, steps, ctx)
    steps = separate(program, steps, ctx)
    graph = _Graph(program, steps)
    for at in range(len(steps)):
        graph.add(at)
        while graph.merge_last(ctx):
            pass
    return replace(program, steps=tuple(_without_dead_stores(program, graph.in_order())))


class _Graph:
    def __init__(self, program: Program, steps: list[Step]):
        self.program, self.steps = program, steps
        self.nodes: dict[int, Node] = {}
        self.writer: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        self.last = -1
        self.last_drawn: int | None = None

    def add(self, at: int) -> None:
        step = self.steps[at]
        node = Node(at, step, at)
        if isinstance(step, Call) and _draws(step):
            # Random numbers come out of one stream: who draws first gets the same ones as in eager.
            if self.last_drawn is not None:
                node.before.add(self.last_drawn)
            self.last_drawn = at
        for name in step.reads:
            if name in self.writer:
                node.before.add(self.writer[name])
        for name in step.writes:
            node.before.update(self.readers.get(name, ()))
            if name in self.writer:
                node.before.add(self.writer[name])
        node.before.discard(at)
        for other in node.before:
            node.ancestors |= self.nodes[other].ancestors | (1 << other)
        for name in step.reads:
            self.readers.setdefault(name, []).append(at)
        for name in step.writes:
            self.writer[name] = at
        self.nodes[at] = node
        self.last = at

    def merge_last(self, ctx: Context) -> bool:
        """Merge the newest node with one before it, if any will; the result is the newest node then."""
        last = self.nodes[self.last]
        if not isinstance(last.step, Kernel):
            return False
        for other, buffer in self._candidates(last):
            assert isinstance(other.step, Kernel)
            if not self._may_join(other, last) or self._too_far(other, last):
                continue
            merged = merge(other.step, last.step, buffer)
            if merged is None or not ctx.spend(f"fuse {other.step.name} + {last.step.name}"):
                continue
            self._replace(other, last, merged)
            return True
        return False

    def _candidates(self, last: Node) -> list[tuple[Node, str]]:
        assert isinstance(last.step, Kernel)
        found: dict[int, str] = {}
        for name in last.step.reads:
            writer = self.writer.get(name)
            if writer is not None and writer != last.id:
                found.setdefault(writer, name)
        producers = sorted(found, reverse=True)
        for name in last.step.reads:
            for reader in self.readers.get(name, ()):
                if reader != last.id and reader not in found and self._worth_sharing(name, reader, last):
                    found[reader] = name
        order = producers + sorted((i for i in found if i not in producers), reverse=True)
        return [(self.nodes[i], found[i]) for i in order if isinstance(self.nodes[i].step, Kernel)]

    def _worth_sharing(self, name: str, reader: int, last: Node) -> bool:
        """Two readers share a kernel only for a buffer that is a good part of what they touch."""
        step = self.nodes[reader].step
        if not isinstance(step, Kernel) or not isinstance(last.step, Kernel):
            return False
        size = self.program.buffers[name].size
        if contraction(step) is not None or step.reduced or last.step.reduced:
            return False
        points = 1
        for axis in last.step.axes:
            points *= axis.size.hint
        return size.hint * 2 >= points and points >= 1024

    def _may_join(self, first: Node, last: Node) -> bool:
        """Whether nothing that depends on `first` must run before `last`, nor `first` itself after it."""
        if first.ancestors >> last.id & 1:
            return False
        return not any(other != first.id and self.nodes[other].ancestors >> first.id & 1 for other in last.before)

    def _too_far(self, first: Node, last: Node) -> bool:
        """Whether joining would run one of them long before or after its turn, and keep alive what it makes or what
        it reads. A backward computes a residual stream again at its start, and each layer's share of it is read
        much later; the gradient of a tied weight is complete only at the end."""
        waiting = (self.nodes[r].at for name in first.step.writes for r in self.readers.get(name, ()) if r != last.id)
        return last.at - min(waiting, default=first.at) > _FAR or last.at - first.at > _FAR

    def _replace(self, first: Node, last: Node, merged: Kernel) -> None:
        del self.nodes[last.id]
        first.step, first.at = merged, last.at
        first.before |= last.before
        first.before.discard(first.id)
        first.ancestors |= last.ancestors & ~(1 << first.id)
        for node in self.nodes.values():
            # A kernel that has grown is older than its newest part: others may depend on it by now.
            if last.id in node.before:
                node.before.remove(last.id)
                node.before.add(first.id)
            if node.ancestors >> last.id & 1:
                node.ancestors |= 1 << first.id
            if node.ancestors >> first.id & 1:
                node.ancestors |= first.ancestors
        for name in (*last.step.reads, *last.step.writes):
            readers = self.readers.get(name)
            if readers is not None and last.id in readers:
                self.readers[name] = [first.id if r == last.id else r for r in readers]
            if self.writer.get(name) == last.id:
                self.writer[name] = first.id
        self.last = first.id

    def in_order(self) -> list[Step]:
        """Topological order, steps as near as possible to where the user wrote them.

        A kernel that has grown stands where its last part stood, unless something waits for it: then it stands
        just before that, and what nobody waits for yet does not run ahead of it.
        """
        after: dict[int, list[int]] = {i: [] for i in self.nodes}
        for node in self.nodes.values():
            for other in node.before:
                after[other].append(node.id)
        turn = {i: node.at for i, node in self.nodes.items()}
        for i in reversed(self._sorted(after, turn)):
            turn[i] = min([turn[i], *(turn[other] for other in after[i])])
        return [self.nodes[i].step for i in self._sorted(after, turn)]

    def _sorted(self, after: dict[int, list[int]], turn: dict[int, int]) -> list[int]:
        waiting = {i: len(node.before) for i, node in self.nodes.items()}
        ready = [(turn[i], i) for i, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        ordered: list[int] = []
        while ready:
            _, i = heapq.heappop(ready)
            ordered.append(i)
            for other in after[i]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    heapq.heappush(ready, (turn[other], other))
        assert len(ordered) == len(self.nodes), "fusion made a cycle"
        return ordered


def _draws(call: Call) -> bool:
    """Whether the operator takes from torch's stream of random numbers."""
    namespace, _, rest = call.target.partition("::")
    name, _, overload = rest.partition(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    return torch.Tag.nondeterministic_seeded in operator.tags


def _without_dead_stores(program: Program, steps: tuple[Step, ...] | list[Step]) -> list[Step]:
    """Drop what nobody reads, from the end backwards."""
    live = {v.buffer for v in program.outputs if isinstance(v, View)}
    kept: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, Kernel):
            dead = {n for n in step.writes if n not in live and program.buffers[n].kind == "temp"}
            trimmed = live_ops(step, dead) if dead else step
            if trimmed is None:
                continue
            step = trimmed
        live.update(step.reads)
        kept.append(step)
    return kept[::-1]


def _inline_cheap(program: Program, steps: list[Step], ctx: Context) -> list[Step]:
    """Compute again, where it is read, what costs less than it would to store and load."""
    makers: dict[str, Kernel] = {}
    result: list[Step] = []
    outputs = {v.buffer for v in program.outputs if isinstance(v, View)}
    for step in steps:
        if isinstance(step, Kernel):
            for name in step.reads:
                maker = makers.get(name)
                if maker is None:
                    continue
                merged = inline(maker, step, name)
                if merged is not None and ctx.spend(f"inline {maker.name} into {step.name}"):
                    step = merged
            for name in step.writes:
                makers.pop(name, None)  # no longer all there is in it
            if _is_cheap(program, step) and step.writes[0] not in outputs:
                makers[step.writes[0]] = step
        result.append(step)
    return _without_dead_stores(program, result)


def _is_cheap(program: Program, kernel: Kernel) -> bool:
    """Made from constants and positions, or from a few elements: a mask, a scalar, a broadcast."""
    if kernel.reduced or len(kernel.stores) != 1 or program.buffers[kernel.writes[0]].kind != "temp":
        return False
    cost = sum(SCALARS[op.op].cost for op in kernel.body if isinstance(op, Apply))
    if cost > _CHEAP:
        return False
    sizes = [program.buffers[op.buffer] for op in kernel.body if isinstance(op, Load)]
    if any(b.kind == "input" and _is_written(program, b.name) for b in sizes):
        return False
    made = program.buffers[kernel.writes[0]].size
    return all(b.size.hint * 8 <= made.hint for b in sizes)


def _is_written(program: Program, name: str) -> bool:
    return any(name in step.writes for step in program.steps)
