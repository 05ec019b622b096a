"""The forward as blocks, one after the other, with one value between each and the next.

In: a problem, and what its nodes take to be computed again. Out: `Blocks`. Where one value is all of the forward that
what follows reads, but for little things such as masks and tables, the forward can be computed again from there: a
layer of a transformer is such a block, or half of one.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from litz.graph.alias import base
from litz.graph.partition.maxflow import INFINITE
from litz.graph.partition.mincut import Problem
from litz.graph.sizes import likely

_LITTLE = 0.05  # of the one value, that all others together may have
_LONG = 0.25  # of the forward: what is read over such a stretch is shared by the blocks in it,
_SHARE = 0.1  # if all such values together are no more than this of all that the forward makes
_MOST = 64  # blocks; neighbours are one where there are more


@dataclass(frozen=True)
class Blocks:
    """`boundaries`: what the second block begins with, and the third, and so on. `of`: each forward value's block;
    `shared`: the little things that many blocks read."""

    boundaries: tuple[fx.Node, ...]
    of: Mapping[fx.Node, int]
    shared: frozenset[fx.Node]

    @property
    def count(self) -> int:
        return len(self.boundaries) + 1

    def nodes(self, problem: Problem, first: int, last: int) -> tuple[fx.Node, ...]:
        """Of the blocks from the first to before the last, with the arguments that they read and what else they look
        at parts of."""
        own = [n for n in problem.nodes if n in self.of and first <= self.of[n] < last]
        read = {i for n in own for i in n.all_input_nodes if i.op == "placeholder"}
        wanted = {*own, *read, *map(problem.sides.owner, own)}
        return tuple(n for n in problem.nodes if n in wanted)


def blocks_of(problem: Problem, seconds: Mapping[fx.Node, float]) -> Blocks:
    forward = [n for n in problem.nodes if n.op == "call_function" and not problem.sides.only_in_backward(n)]
    last = _last_reads(forward)
    found: list[tuple[int, fx.Node]] = []  # where a block ends, and what the next one begins with
    shared = _read_throughout(forward, last)
    work = _work_until(forward, seconds)
    for at, one, others in _narrow(forward, last, shared):
        if problem.prices[one] >= INFINITE or (found and found[-1][1] is one):
            continue
        if found and work[at] == work[found[-1][0]]:  # nothing to compute again between the two
            if problem.prices[one] > problem.prices[found[-1][1]]:
                continue
            found.pop()
        found.append((at, one))
        shared.update(others)
    every = -(-len(found) // (_MOST - 1)) or 1
    found = found[every - 1 :: every]
    boundaries = tuple(one for _, one in found)
    return Blocks(boundaries, _assigned(problem, forward, found, shared), frozenset(shared - set(boundaries)))


def _work_until(forward: list[fx.Node], seconds: Mapping[fx.Node, float]) -> list[float]:
    found, total = [], 0.0
    for node in forward:
        total += seconds.get(node, 0.0)
        found.append(total)
    return found


def _last_reads(forward: list[fx.Node]) -> dict[fx.Node, int]:
    """Where a value's memory is read last, by its place."""
    place = {node: at for at, node in enumerate(forward)}
    last: dict[fx.Node, int] = {}
    for node in forward:
        owner = base(node)
        if owner in place:
            last[owner] = max([last.get(owner, 0), *(place[u] for u in node.users if u in place)])
    return last


def _read_throughout(forward: list[fx.Node], last: Mapping[fx.Node, int]) -> set[fx.Node]:
    found = {n for at, n in enumerate(forward) if last.get(n, 0) - at > _LONG * len(forward)}
    return found if sum(map(size_of, found)) <= _SHARE * sum(map(size_of, last)) else set()


def _narrow(
    forward: list[fx.Node], last: Mapping[fx.Node, int], shared: Collection[fx.Node]
) -> Iterator[tuple[int, fx.Node, list[fx.Node]]]:
    """Where one value is nearly all that is read later: the place, that value, and the others."""
    active: dict[fx.Node, int] = {}
    total = 0
    dying: dict[int, list[fx.Node]] = {}
    for at, node in enumerate(forward):
        for gone in dying.pop(at, ()):
            total -= active.pop(gone)
        if last.get(node, 0) > at and node not in shared and size_of(node):
            active[node] = size_of(node)
            total += active[node]
            dying.setdefault(last[node], []).append(node)
        if active:
            one = max(active, key=active.__getitem__)
            if total - active[one] <= _LITTLE * active[one]:
                yield at, one, [n for n in active if n is not one]


def _assigned(
    problem: Problem, forward: list[fx.Node], ends: list[tuple[int, fx.Node]], shared: set[fx.Node]
) -> dict[fx.Node, int]:
    place = {node: at for at, node in enumerate(forward)}
    begins = {one: number for number, (_, one) in enumerate(ends, 1)}
    found: dict[fx.Node, int] = {}
    passed = 0
    for node in problem.nodes:
        if node.op != "call_function" or node in shared:
            continue
        while passed < len(ends) and node in place and place[node] > ends[passed][0]:
            passed += 1
        if node.target is operator.getitem and node.args[0] in found:
            found[node] = found[node.args[0]]  # where its tuple is
            continue
        own = begins.get(node, passed if node in place else 0)
        found[node] = max([own, *(found[n] for n in node.all_input_nodes if n in found)])
    return found


def size_of(node: fx.Node) -> int:
    value = node.meta.get("val")
    return likely(value.numel()) * value.element_size() if isinstance(value, torch.Tensor) else 0


__all__ = ["Blocks", "blocks_of", "size_of"]
