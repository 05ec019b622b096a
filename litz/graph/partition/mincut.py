"""What to keep for the backward, by a minimum cut.

In: a `Joint`, and for each forward value what keeping it costs and what computing it again costs. Out: a `Choice`.

Every forward value is an edge whose capacity is its bytes; what computing it again costs, counted in bytes too, is an
edge from the source; what the backward reads hangs on the sink. A value on the sink's side is computed again, from
what is kept or itself computed again: the cheapest cut is the cheapest way to have all that the backward reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from litz.graph.partition.cost import price
from litz.graph.partition.maxflow import INFINITE, FlowNetwork
from litz.graph.partition.sides import Sides, ancestors
from litz.graph.signature import Joint

Toll = Callable[[fx.Node], int]  # bytes that one would rather keep than compute the node again


@dataclass(frozen=True)
class Problem:
    """`nodes`: the forward's values that the backward may read, or make what it reads of, in order."""

    sides: Sides
    gradients: frozenset[fx.Node]
    needed: frozenset[fx.Node]
    nodes: tuple[fx.Node, ...]
    prices: Mapping[fx.Node, int]


@dataclass(frozen=True)
class Choice:
    kept: tuple[fx.Node, ...]  # in graph order
    again: frozenset[fx.Node]  # forward values that the backward computes once more
    bytes: int  # of what is kept in memory for the backward alone
    offloaded: frozenset[fx.Node] = frozenset()  # of those that are kept: in a file


def problem_of(joint: Joint, sides: Sides, unkept: frozenset[fx.Node] = frozenset()) -> Problem:
    """`unkept`: forward values that are to be computed again, whatever they cost."""
    graph = joint.graph.graph
    (output,) = (n for n in graph.nodes if n.op == "output")
    gradients = frozenset(n for n in output.args[0][joint.forward_outputs :] if isinstance(n, fx.Node))
    needed = frozenset(ancestors(list(gradients)))
    nodes = tuple(n for n in graph.nodes if n in needed and n not in sides.late and n.op != "output")
    by_then = sides.read_by_then(nodes)
    unkept |= by_then
    return Problem(sides, gradients, needed, nodes, {n: INFINITE if n in unkept else price(n, sides) for n in nodes})


def minimum_cut(problem: Problem, toll: Toll) -> Choice:
    network, inward, outward = network_of(problem, toll)
    # Of cuts that cost as much, the last: what it keeps is not computed again.
    value, reached = network.minimum_cut(SOURCE, SINK)
    assert value < INFINITE, "the backward needs something that can be neither kept nor computed again"
    kept = tuple(n for n in problem.nodes if inward[n] in reached and outward[n] not in reached)
    again = frozenset(n for n in problem.nodes if inward[n] not in reached)
    return Choice(kept, again, sum(problem.prices[n] for n in kept if _is_own(n, problem.sides)))


SOURCE, SINK = 0, 1
Vertices = dict[fx.Node, int]


def network_of(problem: Problem, toll: Toll) -> tuple[FlowNetwork, Vertices, Vertices]:
    """The edges, and between which vertices each node's own is. What no cut can part is one vertex from the start:
    most of the forward is, and the solver has only the rest to look at."""
    sides = problem.sides
    wanted, given = wanted_of(problem)
    network = FlowNetwork()
    assert (network.vertex(), network.vertex()) == (SOURCE, SINK)
    inward: Vertices = {}
    outward: Vertices = {}
    for node in problem.nodes:
        price = problem.prices[node]
        known = node.op == "placeholder" or node in given
        cost = INFINITE if known else 0 if sides.only_in_backward(node) else toll(node)
        end = SINK if node in wanted else None
        if cost >= INFINITE:
            inward[node] = SOURCE
        else:
            inward[node] = SINK if end is not None and price >= INFINITE else network.vertex()
            if cost:
                network.edge(SOURCE, inward[node], cost)
        if price >= INFINITE and end is None:
            outward[node] = inward[node]
            continue
        outward[node] = network.vertex() if end is None else end
        if inward[node] != outward[node]:
            network.edge(inward[node], outward[node], price)
    for node in problem.nodes:
        owner = sides.owner(node)
        for user in node.users:
            head = inward.get(user, SOURCE)
            if head == SOURCE or sides.owner(user) is owner:
                continue
            # Of what the caller sees, keeping it is no way to compute anything of the forward's again.
            private = owner in sides.seen and not sides.reads_what_is_seen(user)
            tail = inward[owner] if private else outward[owner]
            if tail not in (head, SINK):
                network.edge(tail, head, INFINITE)
    return network, inward, outward


def wanted_of(problem: Problem) -> tuple[set[fx.Node], set[fx.Node]]:
    """What the backward itself reads, by the node that is kept for it; and what of that is the caller's: eager reads
    what that is by then, so that no other tensor will do."""
    sides, needed = problem.sides, problem.needed
    wanted: set[fx.Node] = set()
    given: set[fx.Node] = set()
    for node in problem.nodes:
        owner = sides.owner(node)
        seen = owner in sides.seen
        formulas = [user for user in node.users if user in needed and sides.only_in_backward(user)]
        if node in problem.gradients or (formulas if seen else not sides.late.isdisjoint(formulas)):
            wanted.add(owner)
            if seen:
                given.add(owner)
    return wanted, given


def _is_own(node: fx.Node, sides: Sides) -> bool:
    """Whether it is kept for the backward alone, and takes memory."""
    return node not in sides.seen and isinstance(node.meta.get("val"), torch.Tensor)


__all__ = ["SINK", "SOURCE", "Choice", "Problem", "Toll", "minimum_cut", "network_of", "problem_of", "wanted_of"]
