"""Products with frozen weights: what rules that fold into the weights have in common.

In: a convolution or a product of matrices. Out: a `Product`, and the same one with each channel of its result scaled
and shifted. What is done to weights is done in float64, and rounded once, also where several rules fold one after the
other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

import torch
from torch import fx

from litz.graph.rewrite import Match
from litz.graph.sizes import sizes

aten = torch.ops.aten

Channels = Union[fx.Node, float, None]  # a number for each channel, in float64; one for all; or nothing to do
_ROUNDED = "rounded"  # in the `meta` of a cast: it ends a folding, and the next one goes on from what was cast
_VIEWS = (aten.view.default, aten._unsafe_view.default)


@dataclass(frozen=True)
class Product:
    """`axis`: the dimension of the weight that counts channels. `channel`: that of the result. `views`: between the
    product and who reads it, outermost first."""

    node: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    axis: int
    channel: int
    channels: int
    views: tuple[fx.Node, ...] = ()

    @property
    def dtype(self) -> torch.dtype:
        return self.node.meta["val"].dtype


def product_behind(node: Any) -> Product | None:
    """The product that the node is, or is a view of that keeps its channels apart."""
    views = []
    while isinstance(node, fx.Node) and node.target in _VIEWS:
        views.append(node)
        node = node.args[0]
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return None
    if node.target is aten.convolution.default and not views:
        return _convolution(node)
    if node.target is aten.mm.default:
        return _matrix(node, node.args[1], None, views)
    is_plain = node.target is aten.addmm.default and len(node.args) == 3 and not node.kwargs
    return _matrix(node, node.args[2], node.args[0], views) if is_plain else None


def _convolution(node: fx.Node) -> Product | None:
    _, weight, bias, *_, transposed, _, groups = node.args
    if transposed and groups != 1:
        return None  # a channel of the result is in several places of the weight
    axis = 1 if transposed else 0
    return Product(node, weight, bias, axis, 1, weight.meta["val"].shape[axis])  # type: ignore[arg-type, union-attr]


def _matrix(node: fx.Node, weight: Any, bias: Any, views: list[fx.Node]) -> Product | None:
    channels = node.meta["val"].shape[1]
    if isinstance(channels, torch.SymInt) or (bias is not None and sizes(bias.meta["val"].shape) != (channels,)):
        return None
    for view in views:
        shape = view.meta["val"].shape
        if not shape or isinstance(shape[-1], torch.SymInt) or shape[-1] != channels:
            return None
    return Product(node, weight, bias, 1, -1, channels, tuple(views))


def why_not(match: Match, product: Product, scale: Channels, shift: Channels) -> str | None:
    """What keeps the product from being scaled and shifted."""
    if not product.dtype.is_floating_point or match.root.meta["val"].dtype != product.dtype:
        return "the result has another type than the product"
    if not match.is_frozen(product.weight):
        return "the weights are not frozen"
    if product.bias is not None and not match.is_frozen(product.bias):
        return "the bias is not frozen"
    if any(len(node.users) != 1 for node in (product.node, *product.views)):
        return "others read the product as it is"
    if product.dtype.itemsize < 4 and scale is not None and not _is_exact(scale):
        return "weights of 16 bits would be rounded once more, each by itself"
    return None


def _is_exact(scale: Channels) -> bool:
    return isinstance(scale, float) and abs(math.frexp(scale)[0]) == 0.5


def folded(match: Match, product: Product, scale: Channels, shift: Channels) -> fx.Node:
    """The product, each channel of it times `scale` plus `shift`."""
    weight, bias = product.weight, product.bias
    if scale is not None:
        by = scale
        if isinstance(by, fx.Node):
            shape = [1] * product.weight.meta["val"].dim()
            shape[product.axis] = by.meta["val"].shape[0]
            by = match.call(aten.view.default, by, shape)
        weight = rounded(match, match.call(aten.mul.Tensor, wide(match, weight), by), product.dtype)
    if bias is not None or shift is not None:
        bias = rounded(match, _shifted(match, product, scale, shift), product.dtype)
    if product.node.target is aten.convolution.default:
        new = match.call(aten.convolution.default, product.node.args[0], weight, bias, *product.node.args[3:])
    elif bias is None:
        new = match.call(aten.mm.default, product.node.args[0], weight)
    else:
        x = product.node.args[0 if product.node.target is aten.mm.default else 1]
        new = match.call(aten.addmm.default, bias, x, weight)
    for view in reversed(product.views):
        new = match.call(view.target, new, *view.args[1:])
    return new


def _shifted(match: Match, product: Product, scale: Channels, shift: Channels) -> fx.Node:
    """The bias in float64: what it was, scaled, and what is added."""
    if product.bias is None:
        assert shift is not None
        if isinstance(shift, fx.Node):
            return shift if shift.meta["val"].shape[0] == product.channels else _spread(match, shift, product.channels)
        device = product.weight.meta["val"].device
        return match.full([product.channels], shift, torch.float64, device)
    found = wide(match, product.bias)
    found = found if scale is None else match.call(aten.mul.Tensor, found, scale)
    return found if shift is None else match.call(aten.add.Tensor, found, shift)


def _spread(match: Match, one: fx.Node, channels: int) -> fx.Node:
    return match.call(aten.clone.default, match.call(aten.expand.default, one, [channels]))


def wide(match: Match, node: fx.Node) -> fx.Node:
    """The node in float64; before it was rounded, if a rule has folded into it already."""
    if _ROUNDED in node.meta:
        return node.args[0]  # type: ignore[return-value]
    if node.meta["val"].dtype is torch.float64:
        return node
    return match.call(aten._to_copy.default, node, dtype=torch.float64)


def rounded(match: Match, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    if dtype is torch.float64:
        return node
    cast = match.call(aten._to_copy.default, node, dtype=dtype)
    cast.meta[_ROUNDED] = True
    return cast


def for_channels(match: Match, value: Any, product: Product, made: Callable[[fx.Node], fx.Node]) -> Channels:
    """A constant that is one number for each channel of the result, or one for all; `made` of it in float64. None if
    it is not."""
    if isinstance(value, (int, float)):
        return float(value) if math.isfinite(value) else None
    shape = sizes(value.meta["val"].shape)
    rank = match.root.meta["val"].dim()
    if len(shape) > rank or value.meta["val"].is_complex():
        return None
    at = product.channel % rank - (rank - len(shape))
    if any(size != 1 for place, size in enumerate(shape) if place != at):
        return None
    count = shape[at] if at >= 0 else 1
    if count not in (1, product.channels):
        return None  # the product's one channel would become several
    return made(match.call(aten.view.default, wide(match, value), [count]))


__all__ = ["Channels", "Product", "folded", "for_channels", "product_behind", "rounded", "why_not", "wide"]
