"""What must come after what, while steps are added in order and merged.

In: steps, one after the other, by what they read and write. Out: whether two of them may become one, and an order
that respects every dependence.

The one idea: a step merges only with one whose turn was a few steps ago, so only of those few, the *near* ones, must
it be known what depends on them, however indirectly. Nothing here walks the whole program for one step.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

# Steps: memory that is kept for that long costs more than one more pass over it.
FAR = 16


@dataclass
class Node:
    """A step, or several that have become one."""

    id: int
    at: int  # position among the original steps of the last one merged in
    before: set[int] = field(default_factory=set)  # what it directly comes after
    above: set[int] = field(default_factory=set)  # near nodes that it comes after, however indirectly
    below: set[int] = field(default_factory=set)  # while it is near: all nodes that come after it


class Dependences:
    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.near: dict[int, Node] = {}  # by id
        self.writer: dict[str, int] = {}
        self.readers: dict[str, set[int]] = {}  # since it was last written
        self._turns: dict[int, Node] = {}  # the near nodes by `at`

    def add(self, at: int, reads: Iterable[str], writes: Iterable[str], after: Iterable[int]) -> Node:
        """The next step. `after`: nodes it must follow for reasons other than memory."""
        node = self.nodes[at] = Node(at, at, set(after))
        self._forget(at - FAR - 1)
        for name in reads:
            if name in self.writer:
                node.before.add(self.writer[name])
        for name in writes:
            node.before |= self.readers.pop(name, set())
            if name in self.writer:
                node.before.add(self.writer[name])
        for name in writes:
            self.writer[name] = at
        for name in reads:
            self.readers.setdefault(name, set()).add(at)
        for other in node.before:
            node.above |= self.nodes[other].above
            if other in self.near:
                node.above.add(other)
        for other in node.above:
            self.near[other].below.add(at)
        self.near[at] = self._turns[at] = node
        return node

    def _forget(self, turn: int) -> None:
        """The node whose turn that was is not near any more."""
        node = self._turns.pop(turn, None)
        if node is None:
            return
        del self.near[node.id]
        for other in node.below:
            self.nodes[other].above.discard(node.id)
        node.below.clear()

    def may_join(self, first: Node, last: Node) -> bool:
        """Whether nothing that depends on `first` must run before `last`, nor `first` itself after it."""
        return last.id not in first.above and first.below.isdisjoint(last.before)

    def is_read_far_from(self, names: Iterable[str], node: Node) -> bool:
        """Whether another one than `node` reads one of the buffers, and had its turn long before it."""
        return any(r != node.id and r not in self.near for name in names for r in self.readers.get(name, ()))

    def join(self, first: Node, last: Node, touched: Iterable[str]) -> None:
        """`last`, the newest, becomes part of `first`. `touched`: what it reads and writes."""
        del self.nodes[last.id], self.near[last.id], self._turns[first.at]
        first.at = last.at
        self._turns[first.at] = first
        first.before = (first.before | last.before) - {first.id, last.id}
        first.above = (first.above | last.above) - {first.id, last.id}
        first.below = (first.below | last.below) - {first.id, last.id}
        for other in last.above:
            self.nodes[other].below.discard(last.id)
        # A kernel that has grown is older than its newest part: others may depend on it by now.
        for other in first.below:
            node = self.nodes[other]
            if last.id in node.before:
                node.before.remove(last.id)
                node.before.add(first.id)
            node.above.discard(last.id)
            node.above.add(first.id)
            node.above |= first.above
        for other in first.above:
            self.near[other].below |= first.below
            self.near[other].below.add(first.id)
        for name in touched:
            readers = self.readers.get(name)
            if readers is not None and last.id in readers:
                readers.remove(last.id)
                readers.add(first.id)
            if self.writer.get(name) == last.id:
                self.writer[name] = first.id

    def in_order(self) -> list[int]:
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
        return self._sorted(after, turn)

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
