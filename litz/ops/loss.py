"""Losses: a distance for each element, then nothing, its mean or its sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.ir import View
from litz.ops.activation import softplus_of
from litz.ops.builder import Body, Builder, Point, Space, Val, computed, numel, operand
from litz.ops.norm import over
from litz.ops.reduce import all_dims, fold
from litz.ops.registry import lowers
from litz.ops.update import common_shape

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2  # how ATen numbers its reductions


def _loss(b: Builder, node: fx.Node, reduction: int, formula: Callable[..., Val], *args: View) -> Any:
    """`formula(body, *values)` an element, and the reduction of it; fusion makes one kernel of the two."""
    fake = node.meta["val"]
    dtype = computed(fake)
    if not is_float(dtype):
        return NotImplemented

    def element(body: Body, point: Point) -> Val:
        return formula(body, *(operand(body, point, a, dtype) for a in args))

    if reduction == NONE:
        return b.pointwise(fake, element)
    each = b.pointwise(fake, element, out=b.scratch(common_shape(args), dtype))
    out, count = b.allocate(fake), numel(each.sizes)

    def use(body: Body, kept: Point, total: Val) -> None:
        body.store(out, (), total / count if reduction == MEAN else total)

    fold(b, each, all_dims(each, None), "sum", dtype, None, use)
    return out


@lowers(aten.mse_loss.default)
def mse_loss(b: Builder, node: fx.Node, x: View, y: View, reduction: int = MEAN) -> Any:
    return _loss(b, node, reduction, lambda body, u, v: (u - v) * (u - v), x, y)


@lowers(aten.smooth_l1_loss.default)
def smooth_l1_loss(b: Builder, node: fx.Node, x: View, y: View, reduction: int = MEAN, beta: float = 1.0) -> Any:
    def formula(body: Body, u: Val, v: Val) -> Val:
        gap = body.apply("abs", u - v)
        return gap if beta == 0 else body.where(gap < beta, gap * 0.5 * gap / beta, gap - 0.5 * beta)

    return _loss(b, node, reduction, formula, x, y)


@lowers(aten.huber_loss.default)
def huber_loss(b: Builder, node: fx.Node, x: View, y: View, reduction: int = MEAN, delta: float = 1.0) -> Any:
    def formula(body: Body, u: Val, v: Val) -> Val:
        gap = body.apply("abs", u - v)
        return body.where(gap < delta, gap * 0.5 * gap, (gap - 0.5 * delta) * delta)

    return _loss(b, node, reduction, formula, x, y)


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    b: Builder, node: fx.Node, x: View, y: View, weight: View | None = None, reduction: int = MEAN
) -> Any:
    def formula(body: Body, u: Val, v: Val, *w: Val) -> Val:
        wrong = body.position(~((u >= 0) & (u <= 1) & (v >= 0) & (v <= 1)), 1, wrap=False, fault="probability")
        u = u + body.cast(body.index(wrong), u.dtype)  # adds nothing, and keeps the check alive
        # As eager: a certainty that was wrong costs 100 and not infinity.
        yes, no = (body.apply("max", log, -100) for log in (body.apply("log", u), body.apply("log1p", -u)))
        loss = (v - 1) * no - v * yes
        return loss * w[0] if w else loss

    return _loss(b, node, reduction, formula, x, y, *([] if weight is None else [weight]))


@lowers(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    b: Builder, node: fx.Node, x: View, y: View, weight: View | None = None, pos_weight: View | None = None,
    reduction: int = MEAN,
) -> Any:  # fmt: skip
    def formula(body: Body, u: Val, v: Val, *more: Val) -> Val:
        rest = list(more)
        cost = softplus_of(body, -u)
        if pos_weight is not None:
            cost = cost * ((rest.pop(0) - 1) * v + 1)
        loss = (1 - v) * u + cost
        return loss * rest[0] if rest else loss

    given = [view for view in (pos_weight, weight) if view is not None]
    return _loss(b, node, reduction, formula, x, y, *given)


@lowers(aten.soft_margin_loss.default)
def soft_margin_loss(b: Builder, node: fx.Node, x: View, y: View, reduction: int = MEAN) -> Any:
    return _loss(b, node, reduction, lambda body, u, v: softplus_of(body, -(u * v)), x, y)


# -- the logarithm of the right class ---------------------------------------------------------
def _label(body: Body, x: View, target: View, place: Point, ignored: int) -> tuple[Val, Any]:
    """Whether the row counts, and its class as an index; a row that does not count reads class 0."""
    given = body.load(target, place)
    counts = given.ne(ignored)
    return counts, body.position(body.where(counts, given, 0), x.sizes[1], wrap=False)


@lowers(aten.nll_loss_forward.default)
def nll_loss(
    b: Builder, node: fx.Node, x: View, target: View, weight: View | None, reduction: int, ignored: int
) -> Any:
    if len(x.sizes) != 2 or target.dtype != "i64" or numel(x.sizes) == 0:
        return NotImplemented
    dtype = compute_type(x.dtype)
    out, total_weight = (b.allocate(fake) for fake in node.meta["val"])
    space, body = Space(), Body()
    row = space.over(x.sizes[:1])[0] if reduction == NONE else space.reduce_over(x.sizes[0])
    counts, label = _label(body, x, target, (row,), ignored)
    share = body.const(1, dtype) if weight is None else body.cast(body.load(weight, (label,)), dtype)
    share = body.where(counts, share, 0)
    loss = body.where(counts, -body.cast(body.load(x, (row, label)), dtype) * share, 0)
    if reduction == NONE:
        body.store(out, (row,), loss)
        b.emit(space, body)
        return out, b.pointwise(node.meta["val"][1], lambda body, point: body.const(0, dtype), out=total_weight)
    shares = over(space, body, "sum", share)
    loss = over(space, body, "sum", loss)
    body.store(out, (), loss / shares if reduction == MEAN else loss)
    body.store(total_weight, (), shares)
    b.emit(space, body)
    return out, total_weight


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: Builder, node: fx.Node, grad: View, x: View, target: View, weight: View | None, reduction: int, ignored: int,
    total_weight: View,
) -> Any:  # fmt: skip
    if len(x.sizes) < 2 or target.dtype != "i64":
        return NotImplemented
    dtype = compute_type(x.dtype)

    def formula(body: Body, point: Point) -> Val:
        column, place = point[1], (point[0], *point[2:])
        counts, label = _label(body, x, target, place, ignored)
        slope = -body.cast(body.load(grad, place if reduction == NONE else ()), dtype)
        if weight is not None:
            slope = slope * body.cast(body.load(weight, (label,)), dtype)
        if reduction == MEAN:
            slope = slope / body.cast(body.load(total_weight, ()), dtype)
        return body.where(counts & body.index(label).eq(body.index(column)), slope, 0)

    return b.pointwise(node.meta["val"], formula)
