"""Replay draws: random operators become arithmetic on a reserved stretch of the generator's stream.

In: a `Joint`. Out: the same one, edited in place, where dropout is `litz::draw`, a comparison and a product, and coins
and a few uniform numbers are made of `litz::draw` likewise. What was drawn is then made again wherever it is read, in
the forward and in the backward: the split keeps the two numbers that say where the stretch begins (`litz::reserve`),
and not the mask.

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
            if node.target is aten.native_dropout.default:
                self._dropout(node, dealing)
            elif node.target is aten.bernoulli.p:
                self._coins(node, dealing)
            else:
                self._uniform(node, dealing)
            self.ctx.fired("replay_draws", __file__, replay_draws.__code__.co_firstlineno)
        if self.editor.created:
            self.editor.graph_module.recompile()

    def _dropout(self, node: fx.Node, dealing: Dealing) -> None:
        x, p = node.args[:2]
        kept, mask = node.meta["val"]
        probability = 1.0 - p  # type: ignore[operator]
        bits = self._bits(node, mask, dealing)
        drawn = self._call(aten.lt.Scalar, bits, kept_below(probability, kept.dtype), like=node)
        # What the backward does to gradients, the forward does to values.
        scale = kept_scale(probability, kept.dtype)
        product = self._call(aten.native_dropout_backward.default, x, drawn, scale, like=node)
        product.meta["val"] = kept
        for part in list(node.users):
            assert part.target is operator.getitem
            part.replace_all_uses_with((product, drawn)[part.args[1]])  # type: ignore[index]
            self.editor.graph.erase_node(part)
        self.editor.graph.erase_node(node)

    def _coins(self, node: fx.Node, dealing: Dealing) -> None:
        value, p = node.meta["val"], node.args[1]
        bits = self._bits(node, value, dealing)
        bound = kept_below(p, value.dtype)  # type: ignore[arg-type]
        self._stands_for(node, self._call(aten.lt.Scalar, bits, bound, like=node))

    def _uniform(self, node: fx.Node, dealing: Dealing) -> None:
        """Eager's numbers are above 0 and up to 1; what is 1 in the result's type becomes 0."""
        bits = self._bits(node, node.meta["val"], dealing)
        wide = self._call(aten._to_copy.default, bits, like=node, dtype=torch.float32)
        scaled = self._call(aten.mul.Tensor, wide, 2.0**-32, like=node)
        drawn = self._cast(self._call(aten.add.Tensor, scaled, 2.0**-33, like=node), node)
        is_one = self._call(aten.eq.Scalar, drawn, 1.0, like=node)
        self._stands_for(node, self._call(aten.masked_fill.Scalar, drawn, is_one, 0.0, like=node))

    def _stands_for(self, node: fx.Node, drawn: fx.Node) -> None:
        drawn = self._cast(drawn, node)
        drawn.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(drawn)
        self.editor.graph.erase_node(node)

    def _cast(self, drawn: fx.Node, like: fx.Node) -> fx.Node:
        dtype = like.meta["val"].dtype
        if drawn.meta["val"].dtype is dtype:
            return drawn
        return self._call(aten._to_copy.default, drawn, like=like, dtype=dtype)

    def _bits(self, node: fx.Node, value: torch.Tensor, dealing: Dealing) -> fx.Node:
        """What the node draws, as numbers of 32 bits, in a tensor like the value."""
        cell, first = self._reserve(node, value)
        place = (list(value.shape), list(value.stride()), list(dealing.order))
        return self._call(DRAW, cell, first, *place, dealing.width, self.threads, like=node)

    def _call(self, target: Any, *args: Any, like: fx.Node, **kwargs: Any) -> fx.Node:
        return self.editor.call(target, args, kwargs, like, like)

    def _reserve(self, node: fx.Node, value: torch.Tensor) -> tuple[fx.Node, Any]:
        """The cell, and the first of the node's blocks behind it."""
        in_backward = "in_backward" in node.meta
        if self.stretch is None or self.stretch.in_backward != in_backward:
            self.stretch = _Stretch(self._call(RESERVE, 0, like=node, device=value.device), in_backward)
        first = self.stretch.blocks
        self.stretch.blocks = first + blocks_of(value.numel(), self.threads)
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
