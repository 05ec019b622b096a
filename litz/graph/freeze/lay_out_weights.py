"""Weights of convolutions and products that are frozen lie as the kernel that reads them walks over them.

In: a `Joint` with inputs marked as frozen, whose images lie as they will. Out: the same one, in which such a weight is
a copy of itself in another order, which `hoist` takes out. A generated convolution reads vectors of output channels,
from whole lines of the window; a library's takes the order of its image, and would make that copy at each call. A
product of a single row reads each column in one piece.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.context import Context
from litz.graph.editor import Editor, is_channels_last
from litz.graph.freeze.frozen import FROZEN, is_frozen
from litz.graph.rewrite import is_symbolic
from litz.graph.signature import Joint
from litz.loop.expr import ONE
from litz.ops.builder import Builder
from litz.ops.conv import READS_OUTPUT_CHANNELS, form_of
from litz.ops.matmul import is_row_along_depth

aten = torch.ops.aten

# Where each has its weight, behind what it is multiplied with.
_WEIGHT: dict[Any, int] = {aten.convolution.default: 1, aten.mm.default: 1, aten.addmm.default: 2}


def lay_out_weights(joint: Joint, ctx: Context) -> Joint:
    graph = joint.graph.graph
    if not any(FROZEN in node.meta for node in graph.nodes if node.op == "placeholder"):
        return joint
    editor, known = Editor(joint.graph), dict[fx.Node, bool]()
    laid_out: dict[tuple[fx.Node, str], fx.Node] = {}
    for node in list(graph.nodes):
        at = _WEIGHT.get(node.target)
        if at is None or not is_frozen(node.args[at], known):
            continue
        weight, order = node.args[at], _order(node, ctx)
        if order is None:
            continue
        if (weight, order) not in laid_out:
            if not ctx.spend(f"lay_out_weights at {node.name}"):
                break
            laid_out[weight, order] = _in_order(editor, weight, order)
            ctx.fired("lay_out_weights", __file__, lay_out_weights.__code__.co_firstlineno)
        node.update_arg(at, laid_out[weight, order])
    joint.graph.recompile()
    return joint


def _order(node: fx.Node, ctx: Context) -> str | None:
    """The order that the weight is read in, if it is another than it has."""
    if node.target is not aten.convolution.default:
        return "columns" if _is_row_across(node, ctx) else None
    x, weight = node.args[0].meta["val"], node.args[1].meta["val"]  # type: ignore[union-attr]
    if is_symbolic((x, weight)):
        return None
    builder = Builder(ctx)
    views = (builder.allocate(x, "input"), builder.allocate(weight, "input"))
    settings = tuple(tuple(a) if isinstance(a, (list, tuple)) else a for a in node.args[3:])
    form = form_of(builder, node.meta["val"], *views, settings)
    if form in READS_OUTPUT_CHANNELS:
        return None if weight.stride(0) == 1 else "output channels"
    if form is None and is_channels_last(x) and not is_channels_last(weight) and weight.dim() == 4:
        return "channels last"
    return None


def _is_row_across(node: fx.Node, ctx: Context) -> bool:
    """Whether it multiplies a single row with columns that do not lie in one piece."""
    x, weight = (arg.meta["val"] for arg in node.args[_WEIGHT[node.target] - 1 :][:2])  # type: ignore
    if is_symbolic((x, weight)) or weight.stride(0) == 1:
        return False
    builder = Builder(ctx)
    row, columns = builder.allocate(x, "input"), builder.allocate(weight, "input")
    return is_row_along_depth(builder, row, replace(columns, strides=(ONE, columns.sizes[0])))


def _in_order(editor: Editor, weight: Any, order: str) -> fx.Node:
    before = weight.next
    while before.op == "placeholder":
        before = before.next
    if order == "channels last":
        return editor.call(aten.clone.default, (weight,), {"memory_format": torch.channels_last}, before, weight)
    inwards = [*range(2, weight.meta["val"].dim()), 1, 0]
    turned = editor.call(aten.permute.default, (weight, inwards), {}, before, weight)
    dense = {"memory_format": torch.contiguous_format}
    copy = editor.call(aten.clone.default, (turned,), dense, before, weight)
    back = [inwards.index(dim) for dim in range(len(inwards))]
    return editor.call(aten.permute.default, (copy, back), {}, before, weight)


__all__ = ["lay_out_weights"]
