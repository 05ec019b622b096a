"""Gradients of losses: one formula an element; a mean divides by the count, and its gradient is one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import is_float
from litz.loop.expr import ONE, ZERO
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Val, computed, numel, operand, sizes_of
from litz.ops.loss import MEAN
from litz.ops.registry import lowers
from litz.ops.update import common_shape

aten = torch.ops.aten


def _backward(
    b: Builder, node: fx.Node, reduction: int, slope: Callable[..., Val], grad: View, x: View, y: View, *rest: View
) -> Any:
    """`grad * slope(body, x, y, ...)`, divided by the count of elements where the loss is their mean."""
    fake = node.meta["val"]
    dtype = computed(fake)
    if not is_float(dtype) or numel(sizes_of(fake)) is ZERO:
        return NotImplemented
    count = numel(common_shape((x, y))) if reduction == MEAN else ONE

    def element(body: Body, point: Point) -> Val:
        g, *values = (operand(body, point, a, dtype) for a in (grad, x, y, *rest))
        if count is not ONE:
            g = g * (1 / count.int if count.is_int else body.cast(1 / body.const(count, "f64"), dtype))
        return slope(body, *values) * g

    return b.pointwise(fake, element)


@lowers(aten.mse_loss_backward.default)
def mse_loss_backward(b: Builder, node: fx.Node, grad: View, x: View, y: View, reduction: int) -> Any:
    return _backward(b, node, reduction, lambda body, u, v: (u - v) * 2, grad, x, y)


@lowers(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(
    b: Builder, node: fx.Node, grad: View, x: View, y: View, reduction: int, beta: float
) -> Any:
    def slope(body: Body, u: Val, v: Val) -> Val:
        gap = u - v
        inner = gap / beta if beta else gap
        return body.where(gap <= -beta, -1, body.where(gap >= beta, 1, inner))

    return _backward(b, node, reduction, slope, grad, x, y)


@lowers(aten.huber_loss_backward.default)
def huber_loss_backward(b: Builder, node: fx.Node, grad: View, x: View, y: View, reduction: int, delta: float) -> Any:
    def slope(body: Body, u: Val, v: Val) -> Val:
        gap = u - v
        return body.where(gap <= -delta, -delta, body.where(gap >= delta, delta, gap))

    return _backward(b, node, reduction, slope, grad, x, y)


@lowers(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    b: Builder, node: fx.Node, grad: View, x: View, y: View, weight: View | None = None, reduction: int = MEAN
) -> Any:
    # As eager: what is certain has a finite slope, but for halves, which do not hold that number.
    least = torch.tensor(1e-12).to(node.meta["val"].dtype).item()

    def slope(body: Body, u: Val, v: Val, *w: Val) -> Val:
        found = (u - v) / body.apply("max", (1 - u) * u, least)
        return found * w[0] if w else found

    return _backward(b, node, reduction, slope, grad, x, y, *([] if weight is None else [weight]))


@lowers(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(b: Builder, node: fx.Node, grad: View, x: View, y: View, reduction: int) -> Any:
    return _backward(b, node, reduction, lambda body, u, v: -v * body.apply("sigmoid", -(u * v)), grad, x, y)
