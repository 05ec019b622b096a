"""Batch norm in evaluation, behind a convolution or a product of matrices: part of frozen weights.

In: a graph with frozen inputs. Out: the same without those batch norms. Weights that may still be trained are left
alone: folding them would freeze them.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.rules.frozen_product import folded, product_behind, why_not, wide

aten = torch.ops.aten

_NORM = call(
    aten._native_batch_norm_legit_no_training.default,
    Arg("product"),
    Arg("gamma"),
    Arg("beta"),
    Arg("mean"),
    Arg("variance"),
    Arg("momentum"),
    Arg("eps"),
)


@rule(call(operator.getitem, _NORM, 0, users=ANY), any_size=True)
def conv_bn(match: Match) -> Any:
    product = product_behind(match["product"])
    if product is None or product.channel % match.root.meta["val"].dim() != 1:
        return None
    for name in ("gamma", "beta", "mean", "variance"):
        if match[name] is not None and not match.is_frozen(match[name]):
            return match.miss(f"{name} is not frozen")
    if not isinstance(match["eps"], float):
        return match.miss("eps is known only at run time")
    scale = match.call(aten.rsqrt.default, match.call(aten.add.Tensor, wide(match, match["variance"]), match["eps"]))
    if match["gamma"] is not None:
        scale = match.call(aten.mul.Tensor, scale, wide(match, match["gamma"]))
    shift = match.call(aten.neg.default, match.call(aten.mul.Tensor, wide(match, match["mean"]), scale))
    if match["beta"] is not None:
        shift = match.call(aten.add.Tensor, shift, wide(match, match["beta"]))
    why = why_not(match, product, scale, shift)
    return match.miss(why) if why is not None else folded(match, product, scale, shift)


CONV_BN: Rules = (conv_bn,)
