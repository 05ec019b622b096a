"""Split a joint graph by a minimum cut over bytes.

In: a `Joint`. Out: a `Split`: the forward graph, which also returns what the backward needs; and the
backward graph, which takes that and the tangents.

Every forward value is an edge whose capacity is its bytes. What must not be computed twice hangs on the
source; what the backward reads hangs on the sink. The cheapest cut is the cheapest set of tensors to keep
such that the rest of what the backward needs can be computed again from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from litz.graph.alias import CHECKS
from litz.graph.module import graph_module
from litz.graph.partition.maxflow import INFINITE, FlowNetwork
from litz.graph.signature import Joint
from litz.graph.sizes import likely, sizes_as_arguments
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

    @property
    def first_saved(self) -> int:
        """Where the tensors for the backward alone begin among its inputs."""
        return len(self.saved_primals) + len(self.saved_results)


# Cheap to compute again although not marked pointwise.
_LIGHT = {
    aten.clone.default, aten._to_copy.default, aten.full.default, aten.full_like.default, aten.zeros_like.default,
    aten.ones_like.default, aten.arange.default, aten.arange.start, aten.arange.start_step, aten.scalar_tensor.default,
    aten._unsafe_view.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.copy.default,
    aten.constant_pad_nd.default, aten.empty.memory_format, aten.zeros.default, aten.ones.default,
    aten.max_pool2d_with_indices.default,  # its indices are twice the size of its result
}  # fmt: skip


def split_by_minimum_cut(joint: Joint) -> Split:
    graph = joint.graph.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    primals, tangents = placeholders[: joint.primals], placeholders[joint.primals :]
    (output,) = (n for n in graph.nodes if n.op == "output")
    results = list(output.args[0])
    forward_results, gradients = results[: joint.forward_outputs], results[joint.forward_outputs :]
    late = _descendants(tangents)
    needed = _ancestors([g for g in gradients if isinstance(g, fx.Node)])
    written = {primals[i] for i in joint.signature.mutated}
    unwritten = {p for p in primals if p not in written}
    kept = _minimum_cut(graph, unwritten, late, needed, {g for g in gradients if isinstance(g, fx.Node)})
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
    early = [n for n in graph.nodes if n not in late]
    returned = [*forward_results, *(copies.get(n, n) for n in saved), *plain]
    forward = _extract(joint.graph, primals, returned, [n for n in early if _must_run(n)])
    taken = [*(primals[i] for i in saved_primals), *(forward_results[i] for i in saved_results), *saved, *plain]
    backward = _extract(joint.graph, [*taken, *tangents], gradients, [], late)
    return Split(forward, backward, saved_primals, saved_results, len(saved), len(taken))


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


def _descendants(roots: list[fx.Node]) -> set[fx.Node]:
    found = set(roots)
    todo = list(roots)
    while todo:
        for user in todo.pop().users:
            if user not in found and user.op != "output":
                found.add(user)
                todo.append(user)
    return found


def _ancestors(roots: list[fx.Node], stop: Collection[fx.Node] = ()) -> set[fx.Node]:
    """The nodes and all they are made of, without going past `stop`."""
    found = {n for n in roots if n not in stop}
    todo = list(found)
    while todo:
        for other in todo.pop().all_input_nodes:
            if other not in found and other not in stop:
                found.add(other)
                todo.append(other)
    return found


def _minimum_cut(
    graph: fx.Graph, alive: set[fx.Node], late: set[fx.Node], needed: set[fx.Node], results: set[fx.Node]
) -> list[fx.Node]:
    """The forward nodes to keep, in graph order. `alive`: inputs that keep their value, and so cost nothing."""
    network = FlowNetwork()
    source, sink = network.vertex(), network.vertex()
    inward: dict[fx.Node, int] = {}
    outward: dict[fx.Node, int] = {}
    early = [n for n in graph.nodes if n in needed and n not in late and n.op != "output"]
    for node in early:
        inward[node], outward[node] = network.vertex(), network.vertex()
        network.edge(inward[node], outward[node], _price(node, alive))
        if node.op == "placeholder" or not _again(node):
            network.edge(source, inward[node], INFINITE)
    for node in early:
        for user in node.users:
            if user in inward:
                network.edge(outward[node], inward[user], INFINITE)
            elif user in late and user in needed:
                network.edge(outward[node], sink, INFINITE)
    for node in early:
        if node in results:
            network.edge(outward[node], sink, INFINITE)
    value, reached = network.minimum_cut(source, sink)
    assert value < INFINITE, "the backward needs something that can be neither kept nor computed again"
    return [n for n in early if inward[n] in reached and outward[n] not in reached]


def _price(node: fx.Node, alive: set[fx.Node]) -> int:
    """Bytes that keeping the node's value costs; views and tuples cannot be kept themselves, only their bases."""
    value = node.meta.get("val")
    if node in alive:
        return 1
    if isinstance(value, (torch.SymInt, int, float, bool)):
        return 1
    if not isinstance(value, torch.Tensor) or _is_view(node):
        return INFINITE
    return max(2, likely(value.numel()) * value.element_size())


def _is_view(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target is aten._unsafe_view.default:
        return True
    return any(a.alias_info is not None and not a.alias_info.is_write for a in target._schema.arguments)


def _again(node: fx.Node) -> bool:
    """Whether the backward may compute it again: what fuses into its readers, and draws no random number."""
    if node.op != "call_function":
        return node.op == "get_attr"
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True  # getitem: as its tuple
    if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable:
        return False
    return torch.Tag.pointwise in target.tags or _is_view(node) or target in _LIGHT


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
    required = _ancestors(roots, stop=set(inputs))
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


def _must_run(node: fx.Node) -> bool:
    """Writes to inputs, and random draws: those after them depend on their having happened; and what may raise."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target is aten.copy_.default or torch.Tag.nondeterministic_seeded in target.tags or target in CHECKS
