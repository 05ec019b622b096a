"""The loss over a vocabulary, on a GPU: what is kept of a softmax's logarithm is two numbers a row.

In: a joint graph. Out: the same with `log_softmax` written out, so that nothing as large as its result needs to be kept
or even made: a loss reads one number of each row, and the backward makes the others again where it needs them.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule

aten = torch.ops.aten


def _on_gpu(match: Match) -> bool:
    return match["x"].meta["val"].device.type == "cuda"


_IGNORED = -100  # the label of rows that do not count, in what the rule writes


@rule(call(aten._log_softmax.default, Arg("x"), Arg("dim"), ..., users=ANY), extra_check=_on_gpu, any_size=True)
def log_softmax_by_rows(match: Match) -> Any:
    x, dim, value = match["x"], match["dim"], match.root.meta["val"]
    if not value.is_floating_point() or value.dim() == 0 or value.shape[dim] in (0, 1):
        return None
    if x.meta["val"].dtype in (torch.bfloat16, torch.float16):
        x = match.call(aten._to_copy.default, x, dtype=torch.float32)
    shifted = match.call(aten.sub.Tensor, x, match.call(aten.amax.default, x, [dim], True))
    total = match.call(aten.sum.dim_IntList, match.call(aten.exp.default, shifted), [dim], True)
    made = match.call(aten.sub.Tensor, shifted, match.call(aten.log.default, total))
    if made.meta["val"].dtype != value.dtype:
        made = match.call(aten._to_copy.default, made, dtype=value.dtype)
    return made


_TOP = call(aten.amax.default, Arg("x"), Arg("dims"), True, users=ANY)
_SHIFTED = call(aten.sub.Tensor, Arg("x"), _TOP, users=ANY, name="shifted")
_LOGARITHM = call(aten.sub.Tensor, _SHIFTED, Arg("log_total"), users=ANY)


@rule(
    call(aten.nll_loss_forward.default, _LOGARITHM, Arg("label"), None, Arg("reduction"), Arg("ignored"), users=ANY),
    extra_check=_on_gpu,
    any_size=True,
)
def nll_loss_of_labels(match: Match) -> Any:
    """Of each row, the number that its label says: from `x` itself, before anything is done to the others."""
    x, label, ignored = match["x"], match["label"], match["ignored"]
    top, log_total = match["shifted"].args[1], match["log_total"]
    if x.meta["val"].dim() != 2 or label.meta["val"].dim() != 1 or label.meta["val"].dtype != torch.int64:
        return None
    if list(match["dims"]) not in ([1], [-1]):
        return None
    skipped = match.call(aten.eq.Scalar, label, ignored)
    nothing = match.call(aten.full_like.default, label, 0)
    at = match.call(aten.unsqueeze.default, match.call(aten.where.self, skipped, nothing, label), 1)
    source, narrow = x, x.meta["val"].dtype
    if x.op == "call_function" and x.target is aten._to_copy.default:
        source = x.args[0]  # as it lies in memory
    picked = match.call(aten.gather.default, source, 1, at)
    if picked.meta["val"].dtype != narrow:
        picked = match.call(aten._to_copy.default, picked, dtype=narrow)
    picked = match.call(aten.sub.Tensor, match.call(aten.sub.Tensor, picked, top), log_total)
    marked = match.call(aten.full_like.default, label, _IGNORED)
    column = match.call(aten.where.self, skipped, marked, nothing)
    return match.call(aten.nll_loss_forward.default, picked, column, None, match["reduction"], _IGNORED)


_MEAN = 1

_ONE_EACH = call(
    aten.nll_loss_backward.default, Arg("gradient"), Arg("x"), Arg("label"), None, Arg("reduction"), Arg("ignored"),
    Arg("total_weight"), users=ANY, name="one_each",
)  # fmt: skip


@rule(
    call(aten._log_softmax_backward_data.default, _ONE_EACH, Arg("logarithm"), Arg("dim"), Arg("dtype"), users=ANY),
    extra_check=_on_gpu,
    any_size=True,
)
def sum_of_one_each(match: Match) -> Any:
    """The backward of a softmax adds up each row of gradients, of which a loss has one: at the label."""
    label, slope = match["label"], match.call(aten.neg.default, match["gradient"])
    value = match.root.meta["val"]
    if value.dim() != 2 or match["dim"] not in (1, -1) or match["logarithm"].meta["val"].dtype != torch.float32:
        return None
    if match["reduction"] == _MEAN:
        slope = match.call(aten.div.Tensor, slope, match["total_weight"])
    skipped = match.call(aten.eq.Scalar, label, match["ignored"])
    nothing = match.call(aten.full_like.default, slope, 0)
    sums = match.call(aten.unsqueeze.default, match.call(aten.where.self, skipped, nothing, slope), 1)
    shares = match.call(aten.exp.default, match["logarithm"])
    made = match.call(aten.sub.Tensor, match["one_each"], match.call(aten.mul.Tensor, shares, sums))
    return made if made.meta["val"].dtype == value.dtype else match.call(aten._to_copy.default, made, dtype=value.dtype)


LOSS: Rules = (log_softmax_by_rows, nll_loss_of_labels, sum_of_one_each)
