"""Replay draws: random operators become arithmetic on a reserved stretch of the generator's stream.

In: a `Joint`. Out: the same one, edited in place, where dropout is `litz::draw`, a comparison and a product. What was
drawn is then made again wherever it is read, in the forward and in the backward: the split keeps the two numbers that
say where the stretch begins (`litz::reserve`), and not the mask.

Draws with no other random operator between them share one reservation, each beginning where the one before it ends; so
the generator moves as under eager, operator by operator. Only where the target draws in kernels (`Target`).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from litz.context import Context
from litz.graph.editor import Editor
from litz.graph.signature import Joint
from litz.graph.sizes import sizes_as_arguments
from litz.loop.draw import DRAW, RESERVE, blocks_of
from litz.loop.operator import TORCHS_OWN
from litz.ops.draw import Dealing, kept_below, kept_scale
from litz.ops.random import replayed

aten = torch.ops.aten


def replay_draws(joint: Joint, ctx: Context) -> Joint:
    threads = ctx.target.drawing_threads
    if threads is not None:
        _Pass(joint.graph, ctx, threads).run()
    return joint


@dataclass
class _Stretch:
    """A reservation, and how many blocks of it are dealt out."""

    node: fx.Node
    in_backward: bool
    blocks: Any = 0


class _Pass:
    def __init__(self, graph_module: fx.GraphModule, ctx: Context, threads: int):
        self.ctx, self.threads, self.editor = ctx, threads, Editor(graph_module)
        self.stretch: _Stretch | None = None

    def run(self) -> None:
        for node in list(self.editor.graph.nodes):
            if node.op != "call_function" or not draws(node):
                continue
            dealing = replayed(node)
            if not isinstance(dealing, Dealing) or not self.ctx.spend(f"replay_draws at {node.name}"):
                self.stretch = None
                continue
            (self._dropout if node.target is aten.native_dropout.default else self._bernoulli)(node, dealing)
            self.ctx.fired("replay_draws", __file__, replay_draws.__code__.co_firstlineno)
        self.editor.graph_module.recompile()

    def _dropout(self, node: fx.Node, dealing: Dealing) -> None:
        x, p = node.args[:2]
        kept, mask = node.meta["val"]
        drawn = self._below(node, mask, dealing, kept_below(1.0 - p, kept.dtype))  # type: ignore[operator]
        scale = kept_scale(1.0 - p, kept.dtype)  # type: ignore[operator]
        # What the backward does to gradients, the forward does to values.
        product = self.editor.call(aten.native_dropout_backward.default, (x, drawn, scale), {}, node, node)
        product.meta["val"] = kept
        for part in list(node.users):
            assert part.target is operator.getitem
            part.replace_all_uses_with((product, drawn)[part.args[1]])  # type: ignore[index]
            self.editor.graph.erase_node(part)
        self.editor.graph.erase_node(node)

    def _bernoulli(self, node: fx.Node, dealing: Dealing) -> None:
        value = node.meta["val"]
        drawn = self._below(node, value, dealing, kept_below(node.args[1], value.dtype))  # type: ignore[arg-type]
        if value.dtype is not torch.bool:
            drawn = self.editor.call(aten._to_copy.default, (drawn,), {"dtype": value.dtype}, node, node)
            drawn.meta["val"] = value
        node.replace_all_uses_with(drawn)
        self.editor.graph.erase_node(node)

    def _below(self, node: fx.Node, like: torch.Tensor, dealing: Dealing, bound: int) -> fx.Node:
        """Where, in a tensor like that, the number drawn is below the bound."""
        cell, first = self._reserve(node, like)
        place = (list(like.shape), list(like.stride()), list(dealing.order))
        bits = self.editor.call(DRAW, (cell, first, *place, dealing.width, self.threads), {}, node, node)
        drawn = self.editor.call(aten.lt.Scalar, (bits, bound), {}, node, node)
        return drawn

    def _reserve(self, node: fx.Node, like: torch.Tensor) -> tuple[fx.Node, Any]:
        """The cell, and the first of the node's blocks behind it."""
        in_backward = "in_backward" in node.meta
        if self.stretch is None or self.stretch.in_backward != in_backward:
            self.stretch = _Stretch(
                self.editor.call(RESERVE, (0,), {"device": like.device}, node, node), in_backward
            )  # fmt: skip
        first = self.stretch.blocks
        self.stretch.blocks = first + blocks_of(like.numel(), self.threads)
        with sizes_as_arguments():
            self.stretch.node.args = (self.stretch.blocks,)
        return self.stretch.node, first


def draws(node: fx.Node) -> bool:
    """Whether the operator may take from the generator's stream. Fused attention does so for its dropout alone."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is not operator.getitem
    if target.namespace not in TORCHS_OWN:
        return target is not DRAW
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    names = [argument.name for argument in target._schema.arguments]
    if "_scaled_dot_product_" not in target.name() or "dropout_p" not in names:
        return True
    at = names.index("dropout_p")
    return (node.args[at] if at < len(node.args) else node.kwargs.get("dropout_p", 0.0)) != 0.0


__all__ = ["replay_draws"]
