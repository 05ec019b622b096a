"""How much memory the backward holds, foreseen on the joint graph: nothing is lowered, and so it is not known quite.

In: a joint graph. Out: `Foresight`, which is asked about a part of the forward's values: what of them is kept, what is
computed again, and so when each is there. Values that fuse into whoever reads them take no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import fx

from litz.graph.alias import is_view
from litz.graph.partition.blocks import size_of
from litz.graph.partition.sides import Sides
from litz.graph.signature import Joint
from litz.graph.sizes import likely

_NEAR = 16  # steps: what is read later than that is stored, not computed where it is read


class Held(NamedTuple):
    """While the backward of a part of the forward runs: the most bytes, without what other parts keep. `kept`: those
    that lie there from the forward on."""

    most: int
    kept: int


class Foresight:
    def __init__(self, joint: Joint, sides: Sides, fuses: Callable[[fx.Node], bool]):
        self.fuses = fuses
        late = [n for n in joint.graph.graph.nodes if n in sides.late and n.op == "call_function"]
        self.turn = {node: at for at, node in enumerate(late)}  # of what only the backward computes
        self.own = self._own(late, joint)

    def held(self, nodes: Sequence[fx.Node], kept: Collection[fx.Node], again: Collection[fx.Node]) -> Held:
        """`nodes`: forward values in order."""
        spans = self._spans(nodes, kept, again)
        if not spans:
            return Held(0, 0)
        low = min(span.due for span in spans)
        high = max(span.last for span in spans)
        change: Any = numpy.zeros(high - low + 2, dtype=numpy.int64)
        for span in spans:
            change[0 if span.kept else span.due - low] += span.bytes
            change[span.last + 1 - low] -= span.bytes
        live = numpy.cumsum(change[:-1]) + self.own[low : high + 1]
        return Held(int(live.max()), sum(span.bytes for span in spans if span.kept))

    def _spans(self, nodes: Sequence[fx.Node], kept: Collection[fx.Node], again: Collection[fx.Node]) -> list[_Span]:
        first: dict[fx.Node, int] = {}
        last: dict[fx.Node, int] = {}
        merged: set[fx.Node] = set()  # computed where they are read
        found = []
        for node in reversed(nodes):
            due, done = len(self.own), -1
            for user in node.users:
                if user in self.turn:
                    due, done = min(due, self.turn[user]), max(done, self.turn[user])
                elif user in first and user not in kept:
                    due = min(due, first[user])
                    done = max(done, last[user] if user in merged else first[user])
            if done < 0:
                continue
            first[node], last[node] = due, done
            if is_view(node):
                merged.add(node)
            elif node in kept:
                found.append(_Span(size_of(node), due, done, True))
            elif node in again:
                if done - due <= _NEAR and self.merges(node):
                    merged.add(node)
                else:
                    found.append(_Span(size_of(node), due, done, False))
        return found

    def merges(self, node: fx.Node) -> bool:
        """Whether those that read it soon compute it themselves, and it is never in memory."""
        return self.fuses(node) and all(self._takes_in(node, reader) for reader in readers(node))

    def _takes_in(self, node: fx.Node, reader: fx.Node) -> bool:
        """Whether the reader's kernel computes the node: what is called needs it in memory."""
        return self.fuses(reader) or 4 * _elements(reader) <= _elements(node)

    def _own(self, late: Sequence[fx.Node], joint: Joint) -> Any:
        """Bytes of what only the backward computes, at each of its steps."""
        (output,) = (n for n in joint.graph.graph.nodes if n.op == "output")
        returned = set(output.args[0][joint.forward_outputs :])
        last: dict[fx.Node, int] = {}
        change: Any = numpy.zeros(len(late) + 1, dtype=numpy.int64)
        for node in reversed(late):
            done = len(late) - 1 if node in returned else self.turn[node]
            for user in node.users:
                done = max(done, last[user] if is_view(user) and user in last else self.turn.get(user, done))
            last[node] = done
            born = self.turn[node]
            if is_view(node) or (node not in returned and done - born <= _NEAR and self.merges(node)):
                continue
            change[born] += size_of(node)
            change[done + 1 if done + 1 <= len(late) else len(late)] -= size_of(node)
        return numpy.cumsum(change)


class _Span(NamedTuple):
    """A value and when it is there: from when it is due, or from the forward on if it is kept."""

    bytes: int
    due: int
    last: int
    kept: bool


def readers(node: fx.Node) -> list[fx.Node]:
    """Who reads it, be it through views."""
    return [reader for user in node.users for reader in (readers(user) if is_view(user) else [user])]


def _elements(node: fx.Node) -> int:
    value = node.meta.get("val")
    return likely(value.numel()) if isinstance(value, torch.Tensor) else 0


__all__ = ["Foresight", "Held", "readers"]
