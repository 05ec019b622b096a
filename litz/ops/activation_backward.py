"""Gradients of activations: each a formula of the incoming gradient and the input, or the result, of the forward."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type
from litz.loop.ir import View
from litz.ops.activation import softplus_of
from litz.ops.builder import Body, Builder, Point, Val, operand
from litz.ops.pointwise import elementwise
from litz.ops.registry import lowers

aten = torch.ops.aten


@lowers(aten.gelu_backward.default)
def gelu_backward(b: Builder, node: fx.Node, grad: View, x: View, approximate: str = "none") -> View:
    def exact(body: Body, g: Val, v: Val) -> Val:
        below = body.apply("normal_cdf", v)
        density = body.apply("exp", v * v * -0.5) * (1 / math.sqrt(2 * math.pi))
        return g * (below + v * density)

    def by_tanh(body: Body, g: Val, v: Val) -> Val:
        scale, cubic = math.sqrt(2 / math.pi), 0.044715
        square = v * v
        t = body.apply("tanh", (v + square * v * cubic) * scale)
        slope = (square * (3 * cubic) + 1) * scale
        return g * ((t + 1) * 0.5 + v * 0.5 * (1 - t * t) * slope)

    return elementwise(b, node, by_tanh if approximate == "tanh" else exact, grad, x)


@lowers(aten.silu_backward.default)
def silu_backward(b: Builder, node: fx.Node, grad: View, x: View) -> View:
    def formula(body: Body, g: Val, v: Val) -> Val:
        s = body.apply("sigmoid", v)
        return g * s * (v * (1 - s) + 1)

    return elementwise(b, node, formula, grad, x)


@lowers(aten.mish_backward.default)
def mish_backward(b: Builder, node: fx.Node, grad: View, x: View) -> View:
    def formula(body: Body, g: Val, v: Val) -> Val:
        t, s = body.apply("tanh", softplus_of(body, v)), body.apply("sigmoid", v)
        return g * (t + v * s * (1 - t * t))

    return elementwise(b, node, formula, grad, x)


@lowers(aten.sigmoid_backward.default)
def sigmoid_backward(b: Builder, node: fx.Node, grad: View, y: View) -> View:
    return elementwise(b, node, lambda body, g, v: g * (1 - v) * v, grad, y)


@lowers(aten.tanh_backward.default)
def tanh_backward(b: Builder, node: fx.Node, grad: View, y: View) -> View:
    return elementwise(b, node, lambda body, g, v: g * (1 - v * v), grad, y)


@lowers(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(b: Builder, node: fx.Node, grad: View, x: View, buffer: View) -> View:
    # The buffer holds exp(-|x|) where eager filled it, and nothing where it did not: x says it all.
    return elementwise(b, node, lambda body, g, v: g * body.apply("sigmoid", -v), grad, x)


@lowers(aten.softplus_backward.default)
def softplus_backward(b: Builder, node: fx.Node, grad: View, x: View, beta: float, threshold: float) -> View:
    def formula(body: Body, g: Val, v: Val) -> Val:
        scaled = v * beta
        return body.where(scaled > threshold, g, g * body.apply("sigmoid", scaled))

    return elementwise(b, node, formula, grad, x)


@lowers(aten.logit_backward.default)
def logit_backward(b: Builder, node: fx.Node, grad: View, x: View, eps: float | None = None) -> View:
    low, high, outside = (0.0, 1.0, math.nan) if eps is None else (eps, 1 - eps, 0.0)

    def formula(body: Body, g: Val, v: Val) -> Val:
        slope = g / (v * (1 - v))
        return body.where((v < low) | (v > high), outside, slope)

    return elementwise(b, node, formula, grad, x)


# -- made of straight lines -------------------------------------------------------------------
@lowers(aten.threshold_backward.default)
def threshold_backward(b: Builder, node: fx.Node, grad: View, x: View, limit: float) -> View:
    return elementwise(b, node, lambda body, g, v: body.where(v <= limit, 0, g), grad, x)


@lowers(aten.leaky_relu_backward.default)
def leaky_relu_backward(b: Builder, node: fx.Node, grad: View, x: View, slope: float, is_result: bool) -> View:
    return elementwise(b, node, lambda body, g, v: body.where(v > 0, g, g * slope), grad, x)


@lowers(aten.elu_backward.default)
def elu_backward(
    b: Builder, node: fx.Node, grad: View, alpha: float, scale: float, input_scale: float, is_result: bool, x: View
) -> View:
    def formula(body: Body, g: Val, v: Val) -> Val:
        depth = alpha * scale
        below = v + depth if is_result else body.apply("exp", v * input_scale) * depth
        return body.where(v <= 0, g * input_scale * below, g * scale)

    return elementwise(b, node, formula, grad, x)


@lowers(aten.hardtanh_backward.default)
def hardtanh_backward(b: Builder, node: fx.Node, grad: View, x: View, low: float, high: float) -> View:
    return elementwise(b, node, lambda body, g, v: body.where((v > low) & (v < high), g, 0), grad, x)


@lowers(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(b: Builder, node: fx.Node, grad: View, x: View) -> View:
    return elementwise(b, node, lambda body, g, v: body.where((v > -3) & (v < 3), g / 6, 0), grad, x)


@lowers(aten.hardswish_backward.default)
def hardswish_backward(b: Builder, node: fx.Node, grad: View, x: View) -> View:
    def formula(body: Body, g: Val, v: Val) -> Val:
        return body.where(v <= -3, 0, body.where(v < 3, g * (v / 3 + 0.5), g))

    return elementwise(b, node, formula, grad, x)


@lowers(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(b: Builder, node: fx.Node, grad: View, x: View, width: float) -> View:
    return elementwise(b, node, lambda body, g, v: body.where((v < -width) | (v > width), g, 0), grad, x)


@lowers(aten._prelu_kernel_backward.default)
def prelu_backward(b: Builder, node: fx.Node, grad: View, x: View, weight: View) -> Any:
    dtype = compute_type(x.dtype)

    def of(body: Body, point: Point) -> tuple[Val, Val, Val]:
        g, v, w = (operand(body, point, a, dtype) for a in (grad, x, weight))
        return g, v, w

    def to_input(body: Body, point: Point) -> Val:
        g, v, w = of(body, point)
        return body.where(v > 0, g, g * w)

    def to_weight(body: Body, point: Point) -> Val:
        g, v, _ = of(body, point)
        return body.where(v > 0, 0, g * v)

    of_input, of_weight = node.meta["val"]
    return b.pointwise(of_input, to_input), b.pointwise(of_weight, to_weight)


@lowers(aten.glu_backward.default)
def glu_backward(b: Builder, node: fx.Node, grad: View, x: View, dim: int) -> Any:
    """The gate is the second half of `dim`: the two halves of the gradient are written by a kernel each."""
    dim %= len(x.sizes)
    fake = node.meta["val"]
    out = b.allocate(fake)
    half = grad.sizes[dim]
    dtype = compute_type(x.dtype)

    def values(body: Body, point: Point) -> tuple[Val, Val, Val]:
        gate = (*point[:dim], point[dim] + half, *point[dim + 1 :])
        g, v, u = body.load(grad, point), body.load(x, point), body.load(x, gate)
        return body.cast(g, dtype), body.cast(v, dtype), body.apply("sigmoid", body.cast(u, dtype))

    def to_value(body: Body, point: Point) -> Val:
        g, _, s = values(body, point)
        return g * s

    def to_gate(body: Body, point: Point) -> Val:
        g, v, s = values(body, point)
        return g * v * s * (1 - s)

    first = replace(out, sizes=grad.sizes)
    second = replace(first, offset=out.offset + half * out.strides[dim])
    b.pointwise(fake, to_value, out=first)
    b.pointwise(fake, to_gate, out=second)
    return out
