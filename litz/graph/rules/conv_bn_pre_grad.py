"""Convolution and batch norm in evaluation, while gradients are recorded: one convolution.

In: a torch-level graph, normalised. Out: the same, where the batch norm is in the convolution's weights, which
are made anew at each call and stay trainable. The result of the convolution is then not kept for the backward.
Without gradients nothing is gained: the batch norm runs on the convolution's tile while it is in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.nn import functional

from litz.graph.mutation import disturbed
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule

_CONV = call(
    (torch.conv1d, torch.conv2d, torch.conv3d),
    *(Arg(name) for name in ("x", "weight", "bias", "stride", "padding", "dilation", "groups")),
    name="conv",
)


@rule(
    call(
        functional.batch_norm, _CONV, Arg("mean"), Arg("variance"), Arg("gamma"), Arg("beta"), False, Arg("momentum"),
        Arg("eps"), users=ANY,
    )
)  # fmt: skip
def conv_bn_pre_grad(match: Match) -> Any:
    conv, given = match["conv"], ("x", "weight", "bias", "mean", "variance", "gamma", "beta")
    tensors = [match[name].meta.get("val") for name in given if isinstance(match[name], fx.Node)]
    if not torch.is_grad_enabled() or not match.root.meta["val"].requires_grad:
        return match.miss("no gradient is recorded")
    if any(not isinstance(t, torch.Tensor) or t.dtype != match.root.meta["val"].dtype for t in tensors):
        return match.miss("its tensors have different types")
    if match["x"].meta["val"].dim() != match["weight"].meta["val"].dim():
        return match.miss("without a batch, the channels of the convolution are not those of the batch norm")
    if torch.is_autocast_enabled(match.root.meta["val"].device.type):
        return match.miss("types are chosen by the place it runs in")
    if not isinstance(match["mean"], fx.Node) or not isinstance(match["variance"], fx.Node):
        return match.miss("it has no running statistics")
    writer = disturbed(conv, match.root, (conv,))
    if writer is not None:
        return match.miss("it may write to what the convolution reads", writer)
    factor = match.call(torch.rsqrt, match.call(torch.add, match["variance"], match["eps"]))
    if match["gamma"] is not None:
        factor = match.call(torch.mul, factor, match["gamma"])
    ones = [1] * (match["weight"].meta["val"].dim() - 1)
    weight = match.call(torch.mul, match["weight"], match.call(torch.reshape, factor, [-1, *ones]))
    shift = match["mean"] if match["bias"] is None else match.call(torch.sub, match["mean"], match["bias"])
    bias = match.call(torch.neg, match.call(torch.mul, shift, factor))
    if match["beta"] is not None:
        bias = match.call(torch.add, bias, match["beta"])
    rest = [match[name] for name in ("stride", "padding", "dilation", "groups")]
    return match.call(conv.target, match["x"], weight, bias, *rest)


CONV_BN_PRE_GRAD: Rules = (conv_bn_pre_grad,)
