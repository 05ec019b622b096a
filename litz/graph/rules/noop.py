"""No-ops: operators whose result is an operand, or a view of one.

In: a functional ATen graph. Out: the same without them. Whether the operand may be handed out in the
result's place (it could be the user's own input) is checked by the engine for every rule alike.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from litz.graph.editor import alike, same_layout
from litz.graph.pattern import ANY, Arg, ListOf, Wild, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.sizes import Extent, is_dense, size_of, sizes

aten = torch.ops.aten

_WIDER = {
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
    torch.int8: (torch.int16, torch.int32, torch.int64),
    torch.int32: (torch.int64,),
    torch.bool: (torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64),
}


def _same(match: Match, node: Any) -> Any:
    """The node, if it is a tensor of the root's shape and type; else None."""
    return node if isinstance(node, fx.Node) and alike(node.meta.get("val"), match.root.meta.get("val")) else None


# To these a zero is a zero, whatever its sign.
_BLIND_TO_SIGNS_OF_ZERO = {
    aten._softmax.default, aten._log_softmax.default, aten._safe_softmax.default, aten.exp.default, aten.exp2.default,
    aten.abs.default, aten.cos.default, aten.cosh.default, aten.sigmoid.default, aten.eq.Scalar, aten.eq.Tensor,
    aten.ne.Scalar, aten.ne.Tensor, aten.lt.Scalar, aten.lt.Tensor, aten.le.Scalar, aten.le.Tensor, aten.gt.Scalar,
    aten.gt.Tensor, aten.ge.Scalar, aten.ge.Tensor,
}  # fmt: skip


@rule(call((aten.add.Tensor, aten.sub.Tensor), Arg("a"), Arg("b"), ..., users=ANY), any_size=True)
def add_zero(match: Match) -> Any:
    if _same(match, match["a"]) and _changes_nothing(match, match.uniform(match["b"])):
        return match["a"]
    if (
        match.root.target is aten.add.Tensor
        and size_of(match.root.kwargs.get("alpha", 1)) == 1
        and _changes_nothing(match, match.uniform(match["a"]))
    ):
        return _same(match, match["b"])
    return None


def _changes_nothing(match: Match, zero: Any) -> bool:
    """Zero, and of the sign that leaves other zeros theirs: -0.0 + 0.0 is 0.0, but -0.0 - 0.0 is -0.0."""
    if zero != 0:
        return False
    result, alpha = match.root.meta["val"], size_of(match.root.kwargs.get("alpha", 1))
    if result.is_complex() or isinstance(alpha, Extent) or not math.isfinite(alpha):
        return False  # what zero times it is, NaN included, is known only at run time, or is no zero
    if result.is_floating_point():
        added = math.copysign(1.0, zero) * alpha < 0
        same_signs = added == (match.root.target is aten.add.Tensor)
    else:
        same_signs = True
    return same_signs or all(user.target in _BLIND_TO_SIGNS_OF_ZERO for user in match.root.users)


@rule(
    call(
        (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.pow.Tensor_Scalar),
        Arg("a"),
        Arg("b"),
        users=ANY,
    ),
    any_size=True,
)
def times_one(match: Match) -> Any:
    if match.root.meta["val"].is_complex():
        return None  # a product of complex numbers spreads NaN and infinity to both parts
    if _same(match, match["a"]) and match.uniform(match["b"]) == 1:
        return match["a"]
    if match.root.target is aten.mul.Tensor and match.uniform(match["a"]) == 1:
        return _same(match, match["b"])
    return None


@rule(
    call(
        (aten.bitwise_and.Tensor, aten.logical_and.default, aten.bitwise_or.Tensor, aten.logical_or.default),
        Arg("a"),
        Arg("b"),
        users=ANY,
    ),
    any_size=True,
)
def neutral_operand(match: Match) -> Any:
    """`x & true` and `x | false` of booleans."""
    if match.root.meta["val"].dtype != torch.bool:
        return None
    neutral = match.root.target in (aten.bitwise_and.Tensor, aten.logical_and.default)
    for one, other in (("a", "b"), ("b", "a")):
        kept = _same(match, match[one])
        if kept is not None and kept.meta["val"].dtype == torch.bool and match.uniform(match[other]) in (neutral,):
            return kept
    return None


@rule(call(aten.where.self, Arg("c"), Arg("a"), Arg("b"), users=ANY), any_size=True)
def known_choice(match: Match) -> Any:
    """`where` whose condition is the same everywhere."""
    condition = match.uniform(match["c"])
    if condition is None:
        return _same(match, match["a"]) if match["a"] is match["b"] else None
    return _same(match, match["a"] if condition else match["b"])


_SAME_SHAPE_VIEWS = (
    aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.slice.Tensor, aten.permute.default,
    aten.transpose.int, aten.squeeze.dim, aten.squeeze.default, aten.squeeze.dims, aten.alias.default,
    aten.detach.default, aten.lift_fresh.default, aten.contiguous.default, aten._reshape_alias.default,
)  # fmt: skip


@rule(call(_SAME_SHAPE_VIEWS, Arg("x"), ..., users=ANY), any_size=True)
def view_of_same_shape(match: Match) -> Any:
    x = match["x"]
    if not isinstance(x, fx.Node) or not same_layout(x.meta.get("val"), match.root.meta["val"]):
        return None
    if match.root.target in (aten.permute.default, aten.transpose.int) and not _moves_only_ones(match.root):
        return None
    return _same(match, x)


def _moves_only_ones(node: fx.Node) -> bool:
    """Whether a permutation leaves the dimensions of more than one element in order (a square one need not)."""
    x = node.args[0].meta["val"]  # type: ignore[union-attr]
    rank = x.dim()
    if node.target is aten.permute.default:
        order = [int(d) % rank for d in node.args[1]]  # type: ignore[arg-type, union-attr]
    else:
        order = list(range(rank))
        i, j = (int(d) % rank for d in node.args[1:3])  # type: ignore[arg-type]
        order[i], order[j] = order[j], order[i]
    real = [d for d in order if size_of(x.shape[d]) != 1]
    return real == sorted(real)


@rule(call(aten.clone.default, Arg("x"), ..., users=ANY), any_size=True)
def needless_copy(match: Match) -> Any:
    """A copy with the layout the original has: in a functional graph nobody writes to either."""
    x = match["x"]
    return (
        _same(match, x) if isinstance(x, fx.Node) and same_layout(x.meta.get("val"), match.root.meta["val"]) else None
    )


@rule(call(aten._to_copy.default, Arg("x"), ..., users=ANY), any_size=True)
def cast_to_same(match: Match) -> Any:
    x = match["x"]
    if not isinstance(x, fx.Node) or match.root.kwargs.get("layout") not in (None, torch.strided):
        return None
    return _same(match, x) if same_layout(x.meta.get("val"), match.root.meta["val"]) else None


@rule(
    call(aten._to_copy.default, call(aten._to_copy.default, Arg("x"), ..., users=ANY, name="wide"), ..., users=ANY),
    any_size=True,
)
def cast_there_and_back(match: Match) -> Any:
    """Through a wider type and back: exact, so nothing happened."""
    x = match["x"]
    source, wide = x.meta["val"].dtype, match["wide"].meta["val"].dtype
    if wide not in _WIDER.get(source, ()) or not same_layout(x.meta["val"], match.root.meta["val"]):
        return None
    return _same(match, x)


@rule(call(aten.cat.default, ListOf(Arg("xs")), ..., users=ANY), any_size=True)
def cat_of_one(match: Match) -> Any:
    xs = [x for x in match["xs"] if 0 not in sizes(x.meta["val"].shape)]
    return _same(match, xs[0]) if len(xs) == 1 else None


_TRANSPOSES = (aten.transpose.int, aten.permute.default, aten.t.default)


@rule(call(_TRANSPOSES, call(_TRANSPOSES, Arg("x"), ..., name="first", users=ANY), ..., users=ANY), any_size=True)
def transpose_twice(match: Match) -> Any:
    first, second = _order(match["first"]), _order(match.root)
    both = [first[d] for d in second]
    if both == sorted(both):
        return match["x"]
    return match.call(aten.permute.default, match["x"], both)


def _order(node: fx.Node) -> list[int]:
    rank = node.meta["val"].dim()
    if node.target is aten.permute.default:
        return [int(d) % rank for d in node.args[1]]  # type: ignore[arg-type, union-attr]
    i, j = (0, 1) if node.target is aten.t.default else (int(d) % rank for d in node.args[1:3])  # type: ignore[arg-type]
    order = list(range(rank))
    if rank > 1:
        order[i], order[j] = order[j], order[i]
    return order


_VIEWS = (aten.view.default, aten._unsafe_view.default)


@rule(call(_VIEWS, call(_VIEWS, Arg("x"), Wild(), name="first", users=ANY), Wild(), users=ANY), any_size=True)
def view_twice(match: Match) -> Any:
    """One view, if the layout of the first tensor allows it."""
    x, size = match["x"].meta["val"], list(match.root.meta["val"].shape)
    if sizes(x.shape) == sizes(size) and same_layout(x, match.root.meta["val"]):
        return match["x"]
    if not is_dense(x):
        return None
    return match.call(aten.view.default, match["x"], size)


NOOP: Rules = (
    add_zero, times_one, neutral_operand, known_choice, view_of_same_shape, needless_copy, cast_there_and_back,
    cast_to_same, cat_of_one, transpose_twice, view_twice,
)  # fmt: skip
