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
    bytes: int  # of what is kept for the backward alone


def problem_of(joint: Joint, sides: Sides, unkept: frozenset[fx.Node] = frozenset()) -> Problem:
    """`unkept`: forward values that are to be computed again, whatever they cost."""
    graph = joint.graph.graph
    (output,) = (n for n in graph.nodes if n.op == "output")
    gradients = frozenset(n for n in output.args[0][joint.forward_outputs :] if isinstance(n, fx.Node))
    needed = frozenset(ancestors(list(gradients)))
    nodes = tuple(n for n in graph.nodes if n in needed and n not in sides.late and n.op != "output")
    by_then = sides.read_by_then(nodes)
    unkept |= by_then
    return Problem(
        sides, gradients, needed, nodes, {n: INFINITE if n in unkept else price(n, sides) for n in nodes}
    )


def minimum_cut(problem: Problem, toll: Toll) -> Choice:
    sides, needed = problem.sides, problem.needed
    network = FlowNetwork()
    source, sink = network.vertex(), network.vertex()
    inward: dict[fx.Node, int] = {}
    outward: dict[fx.Node, int] = {}
    for node in problem.nodes:
        inward[node], outward[node] = network.vertex(), network.vertex()
        network.edge(inward[node], outward[node], problem.prices[node])
        cost = INFINITE if node.op == "placeholder" else 0 if sides.only_in_backward(node) else toll(node)
        if cost:
            network.edge(source, inward[node], cost)
    for node in problem.nodes:
        owner = sides.owner(node)
        formulas = [user for user in node.users if user in needed and sides.only_in_backward(user)]
        if node in problem.gradients or (formulas if owner in sides.seen else not sides.late.isdisjoint(formulas)):
            network.edge(outward[owner], sink, INFINITE)
            if owner in sides.seen:
                # Eager reads what it is by then, so that no other tensor will do.
                network.edge(source, inward[owner], INFINITE)
        for user in node.users:
            if user in inward and sides.owner(user) is not owner:
                # Of what the caller sees, keeping it is no way to compute anything of the forward's again.
                private = owner in sides.seen and not sides.reads_what_is_seen(user)
                network.edge(inward[owner] if private else outward[owner], inward[user], INFINITE)
    # Of cuts that cost as much, the last: what it keeps is not computed again.
    value, reached = network.minimum_cut(source, sink)
    assert value < INFINITE, "the backward needs something that can be neither kept nor computed again"
    kept = tuple(n for n in problem.nodes if inward[n] in reached and outward[n] not in reached)
    again = frozenset(n for n in problem.nodes if inward[n] not in reached)
    return Choice(kept, again, sum(problem.prices[n] for n in kept if _is_own(n, sides)))


def _is_own(node: fx.Node, sides: Sides) -> bool:
    """Whether it is kept for the backward alone, and takes memory."""
    return node not in sides.seen and isinstance(node.meta.get("val"), torch.Tensor)


__all__ = ["Choice", "Problem", "Toll", "minimum_cut", "problem_of"]
