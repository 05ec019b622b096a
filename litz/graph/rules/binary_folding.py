"""Binary folding: a product with frozen weights, and then a constant added, subtracted, multiplied or divided by.

In: a graph with frozen inputs. Out: the same without the second operator: the constant is part of weights and bias.
The constant is a number, or has one for each channel of the product's result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.rules.frozen_product import Channels, Product, folded, for_channels, product_behind, why_not

aten = torch.ops.aten

_ADDS = {aten.add.Tensor, aten.add.Scalar}
_SUBTRACTS = {aten.sub.Tensor, aten.sub.Scalar}
_SUBTRACTS_FROM = {aten.rsub.Tensor, aten.rsub.Scalar}
_MULTIPLIES = {aten.mul.Tensor, aten.mul.Scalar}
_DIVIDES = {aten.div.Tensor, aten.div.Scalar}
_BINARY = (*_ADDS, *_SUBTRACTS, *_SUBTRACTS_FROM, *_MULTIPLIES, *_DIVIDES)


@rule(call(_BINARY, Arg("a"), Arg("b"), ..., users=ANY), any_size=True)
def binary_folding(match: Match) -> Any:
    found = _operands(match)
    if found is None:
        return None
    product, constant, is_first = found
    if match.root.meta["val"].dim() != (product.views or (product.node,))[0].meta["val"].dim():
        return match.miss("the constant has more dimensions than the product")
    affine = _affine(match, product, constant, is_first)
    if affine is None:
        return match.miss("the constant is not one finite number, or one for each channel")
    scale, shift = affine
    why = why_not(match, product, scale, shift)
    return match.miss(why) if why is not None else folded(match, product, scale, shift)


def _operands(match: Match) -> tuple[Product, Any, bool] | None:
    """The product, the constant, and whether the product comes first."""
    a, b = match["a"], match["b"]
    for first, second, is_first in ((a, b, True), (b, a, False)):
        if isinstance(second, fx.Node) and not match.is_frozen(second):
            continue
        if not isinstance(second, (fx.Node, int, float)) or isinstance(second, bool):
            continue
        product = product_behind(first)
        if product is not None and not match.is_frozen(product.node):
            return product, second, is_first
    return None


def _affine(match: Match, product: Product, constant: Any, is_first: bool) -> tuple[Channels, Channels] | None:
    """What each channel is multiplied by, and what is added; None where it is not of that form."""
    target, alpha = match.root.target, match.root.kwargs.get("alpha", 1)
    if len(match.root.args) > 2:
        alpha = match.root.args[2]
    if not isinstance(alpha, (int, float)):
        return None

    def by(value: Any, factor: float) -> Channels:
        if isinstance(value, (int, float)):
            return for_channels(match, value * factor, product, lambda node: node)
        times = lambda node: node if factor == 1 else match.call(aten.mul.Tensor, node, factor)  # noqa: E731
        return for_channels(match, value, product, times)

    scale: Channels = None
    shift: Channels = None
    if target in _MULTIPLIES:
        scale = by(constant, 1.0)
        return None if scale is None else (scale, None)
    if target in _DIVIDES:
        if not is_first or constant == 0:
            return None
        if isinstance(constant, (int, float)):
            scale = by(1.0 / constant, 1.0)
        else:
            scale = for_channels(match, constant, product, lambda node: match.call(aten.reciprocal.default, node))
        return None if scale is None else (scale, None)
    # first ± alpha · second, and `rsub` with the two exchanged.
    second_is_product = is_first == (target in _SUBTRACTS_FROM)
    sign = 1.0 if target in _ADDS else -1.0
    factor = sign * float(alpha)
    if second_is_product:
        scale, shift = (None if factor == 1 else factor), by(constant, 1.0)
    else:
        shift = by(constant, factor)
    return None if shift is None else (scale, shift)


BINARY_FOLDING: Rules = (binary_folding,)
