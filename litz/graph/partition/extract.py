"""A joint graph as two: a forward that also returns what the backward needs, and a backward that takes it.

In: a `Joint`, and which of the forward's values are kept. Out: a `Split`. What the backward needs and is not given it
computes again, right before it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from litz.graph.module import graph_module
from litz.graph.partition.cost import narrow_type
from litz.graph.partition.sides import Sides, ancestors, must_run
from litz.graph.signature import Joint
from litz.graph.sizes import sizes_as_arguments
from litz.loop.offload import OFFLOAD
from litz.ops.sizes import number_held, size_sources, whole_held

aten = torch.ops.aten


@dataclass(frozen=True)
class Split:
    forward: fx.GraphModule
    backward: fx.GraphModule
    saved_primals: tuple[int, ...]  # arguments the backward reads
    saved_results: tuple[int, ...]  # of the forward's own results, those the backward reads
    saved: int  # tensors that follow the forward's own results, for the backward alone
    taken: int  # inputs of the backward before the tangents: all of these in this order, then plain numbers
    offloaded: frozenset[int] = frozenset()  # of those for the backward alone, by place: which are in files

    @property
    def first_saved(self) -> int:
        """Where the tensors for the backward alone begin among its inputs."""
        return len(self.saved_primals) + len(self.saved_results)

    @property
    def in_memory(self) -> list[int]:
        """Inputs of the backward that are for it alone, and take memory."""
        return [self.first_saved + place for place in range(self.saved) if place not in self.offloaded]


def split_at(
    joint: Joint, sides: Sides, kept: Sequence[fx.Node], offloaded: Collection[fx.Node] = (), folder: str = ""
) -> Split:
    """The two graphs, if of the forward's values the backward is given these; `offloaded` wait in files."""
    graph = joint.graph.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    primals, tangents = placeholders[: joint.primals], placeholders[joint.primals :]
    (output,) = (n for n in graph.nodes if n.op == "output")
    results = list(output.args[0])
    forward_results, gradients = results[: joint.forward_outputs], results[joint.forward_outputs :]
    unwritten, late = sides.alive, sides.late
    written = {p for p in primals if p not in unwritten}
    plain = [n for n in kept if not isinstance(n.meta.get("val"), torch.Tensor)]
    plain += [n for n in _measured(graph, placeholders) if n not in plain]
    # A float that varies is used in the backward as a size is.
    held = [p for p in primals if (number_held(p.meta.get("val")) or whole_held(p.meta.get("val"))) is not None]
    tensors = [n for n in dict.fromkeys((*kept, *held)) if isinstance(n.meta.get("val"), torch.Tensor)]
    number = {n: i for i, n in reversed(list(enumerate(forward_results))) if isinstance(n, fx.Node)}
    place = {n: i for i, n in enumerate(primals)}
    saved_primals = tuple(place[n] for n in tensors if n in unwritten)
    saved_results = tuple(number[n] for n in tensors if n in number and n not in place)
    saved = [n for n in tensors if n in written or (n not in place and n not in number)]
    # An input that the forward writes to is kept as it was before.
    copies = {n: _copied(graph, n, placeholders[-1]) for n in saved if n in written}
    types = {n: narrow_type(n, sides) for n in saved}
    narrow = {n: _narrowed(graph, n, dtype) for n, dtype in types.items() if dtype is not None}
    copies |= narrow
    away = {n: _offloaded(graph, n, folder) for n in saved if n in offloaded}
    copies |= away
    effects = [n for n in graph.nodes if must_run(n)]
    returned = [*forward_results, *(copies.get(n, n) for n in saved), *plain]
    forward = _extract(joint.graph, primals, returned, [n for n in effects if n not in late])
    for node, fewer_bits in narrow.items():
        _widened_again(graph, node, fewer_bits)
    saved = [narrow.get(n, n) for n in saved]
    in_files = frozenset(place for place, n in enumerate(saved) if n in away)
    taken = [*(primals[i] for i in saved_primals), *(forward_results[i] for i in saved_results), *saved, *plain]
    backward = _extract(joint.graph, [*taken, *tangents], gradients, [n for n in effects if n in late], late)
    return Split(forward, backward, saved_primals, saved_results, len(saved), len(taken), in_files)


def _measured(graph: fx.Graph, inputs: list[fx.Node]) -> list[fx.Node]:
    """A node for each size known only at run time: shapes in the backward are made of them, without any edge."""
    found = []
    for source in size_sources(n.meta.get("val") for n in inputs):
        assert source.input is not None
        node = inputs[source.input]
        if source.dim is None and isinstance(node.meta["val"], torch.Tensor):
            continue  # the tensor that holds it is kept itself
        if source.dim is not None:
            with graph.inserting_after(inputs[-1]):
                size = graph.call_function(aten.sym_size.int, (node, source.dim))
            size.meta["val"] = node.meta["val"].shape[source.dim]
            node = size
        found.append(node)
    return found


def _copied(graph: fx.Graph, node: fx.Node, after: fx.Node) -> fx.Node:
    with graph.inserting_after(after):
        copy = graph.call_function(aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy


def _offloaded(graph: fx.Graph, node: fx.Node, folder: str) -> fx.Node:
    with graph.inserting_after(node):
        away = graph.call_function(OFFLOAD, (node, folder))
    value = node.meta["val"]
    away.meta = {**node.meta, "val": value.new_empty_strided(value.shape, value.stride())}
    return away


def _narrowed(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    with graph.inserting_after(node):
        narrow = graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    narrow.meta = {**node.meta, "val": node.meta["val"].to(dtype)}
    return narrow


def _widened_again(graph: fx.Graph, node: fx.Node, narrow: fx.Node) -> None:
    """All who read the node read what is made of the narrow one instead."""
    with graph.inserting_after(narrow):
        wide = graph.call_function(aten._to_copy.default, (narrow,), {"dtype": node.meta["val"].dtype})
    wide.meta = dict(node.meta)
    for user in [user for user in node.users if user is not narrow]:
        user.replace_input_with(node, wide)


def _extract(
    module: fx.GraphModule,
    inputs: list[fx.Node],
    outputs: list[Any],
    effects: list[fx.Node],
    late: set[fx.Node] | None = None,
) -> fx.GraphModule:
    """The part of the graph that computes `outputs` from `inputs`, and the nodes run for their effects.

    In a backward, what is not `late` is computed again: each such node comes right before the first that reads
    it, and not where it stood, or it would be alive from the start.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        fresh = graph.placeholder(node.name)
        fresh.meta = dict(node.meta)
        copies[node] = fresh
    roots = [*(n for n in outputs if isinstance(n, fx.Node)), *effects]
    required = ancestors(roots, stop=set(inputs))
    with sizes_as_arguments():
        for root in [n for n in module.graph.nodes if n in required and (late is None or n in late)] + roots:
            for node in _missing(root, copies):
                assert node.op != "placeholder", f"{node} is needed on a side that does not have it"
                copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[o] if isinstance(o, fx.Node) else o for o in outputs))
    return graph_module(module, graph)


def _missing(root: fx.Node, known: Mapping[fx.Node, Any]) -> Iterator[fx.Node]:
    """The node and what it needs that is not known, arguments first. `known` grows as these are used."""
    todo = [root]
    while todo:
        node = todo[-1]
        unknown = [n for n in node.all_input_nodes if n not in known] if node not in known else []
        if unknown:
            todo += reversed(unknown)
            continue
        todo.pop()
        if node not in known:
            yield node


__all__ = ["Split", "split_at"]
