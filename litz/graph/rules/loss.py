"""Losses over many classes: the logarithms of a softmax are computed again wherever they are read, and not kept.

In: a functional ATen graph. Out: the same, where `log_softmax` ahead of `nll_loss` is written out. It takes two numbers
a row to compute an element again; all of them, in float32, are twice the logits in bfloat16, to be written in the
forward, kept, and read in the backward. The loss reads one element a row, which is computed from the logit there; and
what its gradient sums over each row is known: it has one element that is not zero.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import fx

from litz.graph.alias import COMPUTED_AGAIN, escapes, is_seen, is_view
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.rules.gpu import on_gpu

aten = torch.ops.aten

# Beside those that are pointwise.
_READERS = {
    aten.nll_loss_forward.default,
    aten.nll_loss_backward.default,
    aten._log_softmax_backward_data.default,
    aten._to_copy.default,
}
_MEAN, _SUM = 1, 2


@rule(call(aten._log_softmax.default, Arg("x"), Arg("dim"), ..., users=ANY), extra_check=on_gpu, any_size=True)
def log_softmax_again(match: Match) -> Any:
    x, dims = match["x"], [match["dim"]]
    if not x.meta["val"].dim() or escapes(match.root) or not _is_of_a_loss(match.root):
        return None
    narrow = _before_cast(match, x)
    if is_seen(narrow) and any(_is_read_in_backward(user) for user in match.root.users):
        if narrow.meta["val"].dtype == match.root.meta["val"].dtype:
            return None  # as many bytes would be kept
        # The user may write to it before the backward runs, which is to be of what it is now.
        x = match.call(aten.clone.default, narrow)
    x = _wide(match, x)
    shifted = match.call(aten.sub.Tensor, x, match.call(aten.amax.default, x, dims, True))
    exponentials = match.call(aten.exp.default, shifted)
    total = match.call(aten.sum.dim_IntList, exponentials, dims, True)
    logarithms = match.call(aten.sub.Tensor, shifted, match.call(aten.log.default, total))
    result = _of_type(match, logarithms, match.root.meta["val"].dtype)
    for node in (shifted, exponentials, logarithms, result):
        node.meta[COMPUTED_AGAIN] = True
    return result


def _is_read_in_backward(node: fx.Node) -> bool:
    return node.target in (aten.nll_loss_backward.default, aten._log_softmax_backward_data.default)


def _is_of_a_loss(node: fx.Node) -> bool:
    """Whether its readers are those of a loss, and kernels of ours that can compute what they read."""
    readers, todo = set(), [node]
    while todo:
        for user in todo.pop().users:
            if is_view(user):
                todo.append(user)
            else:
                readers.add(user.target)
    if aten.nll_loss_forward.default not in readers:
        return False
    return all(r in _READERS or torch.Tag.pointwise in getattr(r, "tags", ()) for r in readers)


class _Logarithms(NamedTuple):
    """`x - top - rest`, of each row: what `log_softmax_again` has made."""

    x: fx.Node
    top: fx.Node
    rest: fx.Node


def _taken_apart(node: Any) -> _Logarithms | None:
    while isinstance(node, fx.Node) and node.target is aten._to_copy.default:
        node = node.args[0]
    shifted = node.args[0] if isinstance(node, fx.Node) and node.target is aten.sub.Tensor else None
    if not isinstance(shifted, fx.Node) or shifted.target is not aten.sub.Tensor:
        return None
    (x, top), rest = shifted.args, node.args[1]
    known = top.target is aten.amax.default and rest.target is aten.log.default  # type: ignore[union-attr]
    return _Logarithms(x, top, rest) if known else None  # type: ignore[arg-type]


_LOSS = call(
    aten.nll_loss_forward.default,
    *(Arg(name) for name in ("logarithms", "target", "weight", "reduction", "ignored")),
    users=ANY,
)


@rule(call(operator.getitem, _LOSS, Arg("which"), users=ANY), extra_check=on_gpu, any_size=True)
def cross_entropy(match: Match) -> Any:
    apart, dtype = _taken_apart(match["logarithms"]), match.root.meta["val"].dtype
    if apart is None or match["weight"] is not None or match["reduction"] not in (_MEAN, _SUM):
        return None
    target = match["target"]
    if target.meta["val"].dim() != 1 or match["logarithms"].meta["val"].dim() != 2:
        return None
    counts = match.call(aten.ne.Scalar, target, match["ignored"])
    share = match.call(aten._to_copy.default, counts, dtype=torch.float32)
    total = match.call(aten.sum.default, share)
    if match["which"] == 1:
        return _of_type(match, total, dtype)
    device = target.meta["val"].device
    first = match.call(aten.where.self, counts, target, match.full([], 0, torch.int64, device))
    places = match.call(aten.unsqueeze.default, first, 1)
    picked = match.call(aten.gather.default, _before_cast(match, apart.x), 1, places)
    shifted = match.call(aten.sub.Tensor, _wide(match, picked), apart.top)
    logarithm = match.call(aten.sub.Tensor, shifted, apart.rest)
    # Rounded as the logarithms are, one of which it is.
    logarithm = _wide(match, _of_type(match, logarithm, match["logarithms"].meta["val"].dtype))
    loss = match.call(aten.neg.default, match.call(aten.squeeze.dim, logarithm, 1))
    zero = match.full([], 0.0, loss.meta["val"].dtype, device)
    loss = match.call(aten.sum.default, match.call(aten.where.self, counts, loss, zero))
    return _of_type(match, match.call(aten.div.Tensor, loss, total) if match["reduction"] == _MEAN else loss, dtype)


@rule(
    call(
        aten._log_softmax_backward_data.default,
        call(
            aten.nll_loss_backward.default,
            *(Arg(name) for name in ("tangent", "logarithms", "target", "weight", "reduction", "ignored", "total")),
            name="slopes",
            users=ANY,
        ),
        Arg("out"),
        1,
        ...,
        users=ANY,
    ),
    extra_check=on_gpu,
    any_size=True,
)
def cross_entropy_backward(match: Match) -> Any:
    slopes, out = match["slopes"], match["out"]
    dtype = slopes.meta["val"].dtype
    if match["weight"] is not None or out.meta["val"].dim() != 2 or dtype == torch.float64:
        return None
    one = match.call(aten.neg.default, _wide(match, match["tangent"]))
    if match["reduction"] == _MEAN:
        one = match.call(aten.div.Tensor, one, _wide(match, match["total"]))
    counts = match.call(aten.ne.Scalar, match["target"], match["ignored"])
    zero = match.full([], 0.0, torch.float32, out.meta["val"].device)
    # Rounded as the slopes are, which it is the sum of.
    row = _wide(match, _of_type(match, match.call(aten.where.self, counts, one, zero), dtype))
    row = match.call(aten.unsqueeze.default, row, 1)
    shares = match.call(aten.mul.Tensor, match.call(aten.exp.default, _wide(match, out)), row)
    result = match.call(aten.sub.Tensor, _wide(match, slopes), shares)
    return _of_type(match, result, match.root.meta["val"].dtype)


def _before_cast(match: Match, x: fx.Node) -> fx.Node:
    """What the node is a wider copy of, seen as the node is; itself where it is none: one that is read element by
    element, here and there, would have to be in memory."""
    cast = x
    while is_view(cast) and isinstance(cast.args[0], fx.Node):
        cast = cast.args[0]
    source = cast.args[0] if cast.target is aten._to_copy.default else None
    if not isinstance(source, fx.Node) or not source.meta["val"].is_floating_point():
        return x
    if cast is x:
        return source
    try:
        return match.call(aten.view.default, source, list(x.meta["val"].shape))
    except RuntimeError:  # its layout does not allow that
        return x


def _wide(match: Match, node: fx.Node) -> fx.Node:
    dtype = node.meta["val"].dtype
    return node if dtype in (torch.float32, torch.float64) else _of_type(match, node, torch.float32)


def _of_type(match: Match, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    return node if node.meta["val"].dtype == dtype else match.call(aten._to_copy.default, node, dtype=dtype)


LOSS: Rules = (log_softmax_again, cross_entropy, cross_entropy_backward)
