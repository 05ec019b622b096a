"""Split a joint graph by a minimum cut over bytes.

In: a `Joint`. Out: a `Split`: the forward graph, which also returns what the backward needs; and the
backward graph, which takes that and the tangents.

Every forward value is an edge whose capacity is its bytes. What must not be computed twice hangs on the
source; what the backward reads hangs on the sink. The cheapest cut is the cheapest set of tensors to keep
such that the rest of what the backward needs can be computed again from it.

Arguments and results are the caller's, who may write to them before the backward runs. Eager's formulas read some of
them there, and so may Litz; but a value that eager took from them in the forward is kept, never made again from what
they hold by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from litz.graph.alias import CHECKS, COMPUTED_AGAIN, base, is_view
from litz.graph.module import graph_module
from litz.graph.partition.maxflow import INFINITE, FlowNetwork
from litz.graph.signature import Joint
from litz.graph.sizes import likely, sizes_as_arguments
from litz.loop.draw import DRAW
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
    DRAW,
}  # fmt: skip


def split_by_minimum_cut(joint: Joint) -> Split:
    graph = joint.graph.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    primals, tangents = placeholders[: joint.primals], placeholders[joint.primals :]
    (output,) = (n for n in graph.nodes if n.op == "output")
    results = list(output.args[0])
    forward_results, gradients = results[: joint.forward_outputs], results[joint.forward_outputs :]
    sides = _sides_of(joint)
    unwritten, late = sides.alive, sides.late
    written = {p for p in primals if p not in unwritten}
    kept = _minimum_cut(graph, sides, {g for g in gradients if isinstance(g, fx.Node)})
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
    types = {n: sides.narrow_type(n) for n in saved}
    narrow = {n: _narrowed(graph, n, dtype) for n, dtype in types.items() if dtype is not None}
    copies |= narrow
    effects = [n for n in graph.nodes if _must_run(n)]
    returned = [*forward_results, *(copies.get(n, n) for n in saved), *plain]
    forward = _extract(joint.graph, primals, returned, [n for n in effects if n not in late])
    for node, fewer_bits in narrow.items():
        _widened_again(graph, node, fewer_bits)
    saved = [narrow.get(n, n) for n in saved]
    taken = [*(primals[i] for i in saved_primals), *(forward_results[i] for i in saved_results), *saved, *plain]
    backward = _extract(joint.graph, [*taken, *tangents], gradients, [n for n in effects if n in late], late)
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


@dataclass(frozen=True)
class _Sides:
    """What a value may be made again from, and by whom."""

    alive: set[fx.Node]  # inputs that keep their value, and so cost nothing
    seen: set[fx.Node]  # tensors that the caller holds, and may write to
    late: set[fx.Node]  # what only the backward can compute
    ahead: set[fx.Node]  # what the results of the forward are made of

    def owner(self, node: fx.Node) -> fx.Node:
        """The node that is kept where this one is read: a view of the caller's memory is the caller's."""
        whole = base(node)
        return whole if whole in self.seen else node

    def reads_what_is_seen(self, user: fx.Node) -> bool:
        """Whether eager, too, reads its arguments as they are in the backward."""
        return user in self.late or _is_backward(user) or "checkpoint" in user.meta

    def only_in_backward(self, node: fx.Node) -> bool:
        return node in self.late or (_is_backward(node) and node not in self.ahead)

    def read_by_then(self, nodes: Iterable[fx.Node]) -> set[fx.Node]:
        """Of these, in graph order, what eager's backward makes of the caller's tensors: not to be made before."""
        found: set[fx.Node] = set()
        for node in nodes:
            if self.only_in_backward(node) and any(
                used in found or self.owner(used) in self.seen for used in node.all_input_nodes
            ):
                found.add(node)
        return found

    def again(self, node: fx.Node) -> bool:
        """Whether the backward may compute it: cheaply once more, or because eager does it there."""
        return _again(node) or self.only_in_backward(node)

    def price(self, node: fx.Node) -> int:
        """Bytes that keeping the node's value costs; views and tuples cannot be kept themselves, only their bases, nor
        what a rule has written to be computed again."""
        value = node.meta.get("val")
        if node in self.alive:
            return 1
        if isinstance(value, (torch.SymInt, int, float, bool)):
            return 1
        if not isinstance(value, torch.Tensor) or is_view(node) or COMPUTED_AGAIN in node.meta:
            return INFINITE
        if self.narrow_type(node) is not None:
            whole = base(node.args[0]).meta["val"]  # rather this, which is there already
            return 1 + max(likely(whole.numel()), likely(value.numel())) * whole.element_size()
        return max(2, likely(value.numel()) * value.element_size())

    def narrow_type(self, node: fx.Node) -> torch.dtype | None:
        """The type that holds all of a value which was cast from fewer bits. What the caller sees is kept as it is:
        eager's backward reads that memory, whatever is in it by then."""
        if node.op != "call_function" or node.target is not aten._to_copy.default or node in self.seen:
            return None
        source = node.args[0].meta["val"].dtype  # type: ignore[union-attr]
        return source if node.meta["val"].dtype in _EXACT_IN.get(source, ()) else None


def _sides_of(joint: Joint) -> _Sides:
    nodes = joint.graph.graph.nodes
    placeholders = [n for n in nodes if n.op == "placeholder"]
    primals, tangents = placeholders[: joint.primals], placeholders[joint.primals :]
    (output,) = (n for n in nodes if n.op == "output")
    results = [n for n in output.args[0][: joint.forward_outputs] if isinstance(n, fx.Node)]
    drawn = [n for n in nodes if _is_backward(n) and _must_run(n)]
    inputs = joint.signature.inputs
    # What is written to through `.data` eager's formulas read as it is by then.
    alive = {p for p, spec in zip(primals, inputs, strict=True) if not spec.mutated or not spec.counted}
    # Those that follow are copied into the inputs they are new values of.
    returned = {base(n) for n in output.args[0][: joint.signature.results] if isinstance(n, fx.Node)}
    seen = alive | {n for n in returned if n not in primals}
    return _Sides(alive, seen, _descendants([*tangents, *drawn]), _ancestors(results))


def _minimum_cut(graph: fx.Graph, sides: _Sides, results: set[fx.Node]) -> list[fx.Node]:
    """The forward nodes to keep, in graph order, if those of the backward are `results`."""
    needed = _ancestors(list(results))
    network = FlowNetwork()
    source, sink = network.vertex(), network.vertex()
    inward: dict[fx.Node, int] = {}
    outward: dict[fx.Node, int] = {}
    early = [n for n in graph.nodes if n in needed and n not in sides.late and n.op != "output"]
    read_by_then = sides.read_by_then(early)
    for node in early:
        inward[node], outward[node] = network.vertex(), network.vertex()
        network.edge(inward[node], outward[node], INFINITE if node in read_by_then else sides.price(node))
        if node.op == "placeholder" or not sides.again(node):
            network.edge(source, inward[node], INFINITE)
    for node in early:
        owner = sides.owner(node)
        formulas = [user for user in node.users if user in needed and sides.only_in_backward(user)]
        if node in results or (formulas if owner in sides.seen else not sides.late.isdisjoint(formulas)):
            network.edge(outward[owner], sink, INFINITE)
            if owner in sides.seen:
                # Eager reads what it is by then, so that no other tensor will do.
                network.edge(source, inward[owner], INFINITE)
        for user in node.users:
            if user in inward and sides.owner(user) is not owner:
                # Of what the caller sees, keeping it is no way to compute anything of the forward's again.
                private = owner in sides.seen and not sides.reads_what_is_seen(user)
                network.edge(inward[owner] if private else outward[owner], inward[user], INFINITE)
    # Of cuts that keep as many bytes, the last: what it keeps is not computed again.
    value, reached = network.minimum_cut(source, sink)
    assert value < INFINITE, "the backward needs something that can be neither kept nor computed again"
    return [n for n in early if inward[n] in reached and outward[n] not in reached]


_EXACT_IN = {torch.bfloat16: (torch.float32, torch.float64), torch.float16: (torch.float32, torch.float64),
             torch.float32: (torch.float64,)}  # fmt: skip


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


def _is_backward(node: fx.Node) -> bool:
    """Whether eager computes it in the backward, be it for the second time."""
    return bool(node.meta.get("in_backward"))


def _again(node: fx.Node) -> bool:
    """Whether computing it twice is cheap: what fuses into its readers, and draws no random number."""
    if node.op != "call_function":
        return node.op == "get_attr"
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True  # getitem: as its tuple
    if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable:
        return False
    return torch.Tag.pointwise in target.tags or is_view(node) or target in _LIGHT


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
