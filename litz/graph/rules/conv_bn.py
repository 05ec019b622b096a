"""Convolution and batch norm in evaluation: one convolution with other weights.

In: a graph in which weights are frozen constants (`get_attr` nodes named `_frozen…`). Out: the same without
those batch norms. Weights that may still be trained are left alone: folding them would freeze them.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule

aten = torch.ops.aten

FROZEN = "_frozen"

_CONV = call(
    aten.convolution.default,
    Arg("x"),
    Arg("weight"),
    Arg("bias"),
    Arg("stride"),
    Arg("padding"),
    Arg("dilation"),
    Arg("transposed"),
    Arg("output_padding"),
    Arg("groups"),
    name="conv",
)
_NORM = call(
    aten._native_batch_norm_legit_no_training.default,
    _CONV,
    Arg("gamma"),
    Arg("beta"),
    Arg("mean"),
    Arg("variance"),
    Arg("momentum"),
    Arg("eps"),
)


def _frozen(match: Match, name: str) -> torch.Tensor | None:
    node = match[name]
    if not isinstance(node, fx.Node) or node.op != "get_attr" or not str(node.target).startswith(FROZEN):
        return None
    return getattr(match.editor.graph_module, str(node.target)).detach()


@rule(call(operator.getitem, _NORM, 0, users=ANY), any_size=True)
def conv_bn(match: Match) -> Any:
    weight, mean, variance = (_frozen(match, name) for name in ("weight", "mean", "variance"))
    if weight is None or mean is None or variance is None or match["transposed"]:
        return match.miss("the weights are not frozen") if not match["transposed"] else None
    optional = {}
    for name in ("bias", "gamma", "beta"):
        optional[name] = None if match[name] is None else _frozen(match, name)
        if match[name] is not None and optional[name] is None:
            return match.miss(f"{name} is not frozen")
    factor = torch.rsqrt(variance.double() + match["eps"])
    if optional["gamma"] is not None:
        factor = factor * optional["gamma"].double()
    shift = -mean.double() * factor
    if optional["bias"] is not None:
        shift = shift + optional["bias"].double() * factor
    if optional["beta"] is not None:
        shift = shift + optional["beta"].double()
    scaled = (weight.double() * factor.reshape(-1, *[1] * (weight.dim() - 1))).to(weight.dtype)
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    return match.call(
        aten.convolution.default,
        match["x"],
        match.constant(scaled),
        match.constant(shift.to(weight.dtype)),
        *(match[n] for n in names),
    )


CONV_BN: Rules = (conv_bn,)
