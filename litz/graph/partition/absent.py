"""The backward for a call in which some results were not used, and so have no tangent.

In: a backward graph and the tangents that do not exist. Out: a graph of its own without what they alone reach;
a gradient of which nothing is left is None.

A backward is linear in its tangents: a node all of whose arguments from tangents are zero is zero, whatever it
computes. So zeros are followed, not calculated, and none of them meets an infinity on its way. The backward of a
function of the user's own need not be linear: it runs on zeros if any of its tangents exists, and else not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import fx

from litz.graph.editor import same_layout
from litz.graph.module import graph_module
from litz.graph.sizes import sizes_as_arguments

aten = torch.ops.aten


def without_tangents(backward: fx.GraphModule, first: int, absent: Collection[int]) -> fx.GraphModule:
    """`first` is the position of the first tangent among the inputs; `absent` counts from there."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    with sizes_as_arguments():
        outputs = graph.graph_copy(backward.graph, copies, return_output_node=True)
    assert isinstance(outputs, tuple)
    graph.output(outputs[0])
    tangents = [n for n in graph.nodes if n.op == "placeholder"][first:]
    if absent:
        _drop(graph, set(tangents), {tangents[i] for i in absent})
    return graph_module(backward, graph)


def _drop(graph: fx.Graph, late: set[fx.Node], zero: set[fx.Node]) -> None:
    runs: dict[int, bool] = {}  # calls of functions of the user's own: whether their backward does
    for node in list(graph.nodes):
        mine = [a for a in node.all_input_nodes if a in late]
        if not mine:
            continue
        if node.op == "output":
            node.args = (tuple(None if n in zero else n for n in node.args[0]),)
            break
        late.add(node)
        known = [a for a in mine if a in zero]
        own = node.meta.get("own_backward")
        if own is not None and own not in runs:
            runs[own] = any(tangent not in zero for tangent in _given_to(own, graph, late))
        if len(known) == len(mine) and not runs.get(own):
            zero.add(node)
        elif known:
            _without_zeros(graph, node, known)
    graph.eliminate_dead_code()


def _given_to(own: int, graph: fx.Graph, late: set[fx.Node]) -> Iterator[fx.Node]:
    """The tangents that come in to the backward of one call."""
    for node in graph.nodes:
        if node.meta.get("own_backward") == own:
            yield from (a for a in node.all_input_nodes if a in late and a.meta.get("own_backward") != own)


def _without_zeros(graph: fx.Graph, node: fx.Node, known: list[fx.Node]) -> None:
    """A node that adds something to what is zero."""
    if node.target is aten.add.Tensor and not node.kwargs:
        (other,) = (a for a in node.args if a not in known)
        if isinstance(other, fx.Node) and _alike(other, node):
            node.replace_all_uses_with(other)
            return
    for zeros in known:
        value = zeros.meta["val"]
        with graph.inserting_before(node), sizes_as_arguments():
            filled = graph.call_function(
                aten.full.default, (list(value.shape), 0), {"dtype": value.dtype, "device": value.device}
            )
        # Laid out as what it stands for: the node may see layouts.
        filled.meta = {**zeros.meta, "val": value.new_empty_strided(value.shape, value.stride())}
        node.replace_input_with(zeros, filled)


def _alike(one: fx.Node, other: fx.Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return isinstance(b, torch.Tensor) and a.dtype == b.dtype and same_layout(a, b)
