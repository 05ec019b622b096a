"""Activations beyond the common ones of `pointwise.py`, each a formula."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Val, operand
from litz.ops.pointwise import elementwise
from litz.ops.registry import lowers

aten = torch.ops.aten


def softplus_of(body: Body, v: Val) -> Val:
    """`log(1 + exp(v))` without overflow: exp only ever sees what is not positive."""
    return body.apply("max", v, 0) + body.apply("log1p", body.apply("exp", -body.apply("abs", v)))


@lowers(aten.softplus.default)
def softplus(b: Builder, node: fx.Node, x: View, beta: float = 1, threshold: float = 20) -> View:
    def formula(body: Body, v: Val) -> Val:
        scaled = v * beta
        return body.where(scaled > threshold, v, softplus_of(body, scaled) / beta)

    return elementwise(b, node, formula, x)


@lowers(aten.mish.default)
def mish(b: Builder, node: fx.Node, x: View) -> View:
    return elementwise(b, node, lambda body, v: v * body.apply("tanh", softplus_of(body, v)), x)


@lowers(aten.log_sigmoid_forward.default)
def log_sigmoid(b: Builder, node: fx.Node, x: View) -> Any:
    """The second result is eager's scratch for its own backward: like the first and filled, or on GPUs empty."""
    fakes = node.meta["val"]
    dtype = compute_type(x.dtype)

    def small(body: Body, v: Val) -> Val:
        return body.apply("exp", -body.apply("abs", v))

    def formula(body: Body, v: Val) -> Val:
        return body.apply("min", v, 0) - body.apply("log1p", small(body, v))

    out = b.pointwise(fakes[0], lambda body, point: formula(body, operand(body, point, x, dtype)))
    if fakes[1].shape != fakes[0].shape:
        return out, b.allocate(fakes[1])
    kept = b.pointwise(fakes[1], lambda body, point: small(body, operand(body, point, x, dtype)))
    return out, kept


@lowers(aten.threshold.default)
def threshold(b: Builder, node: fx.Node, x: View, limit: float, value: float) -> View:
    # Written so that NaN, which is not below anything, is kept.
    return elementwise(b, node, lambda body, v: body.where(v <= limit, value, v), x)


@lowers(aten.celu.default)
def celu(b: Builder, node: fx.Node, x: View, alpha: float = 1) -> View:
    return elementwise(b, node, lambda body, v: body.where(v < 0, body.apply("expm1", v / alpha) * alpha, v), x)


@lowers(aten.hardshrink.default)
def hardshrink(b: Builder, node: fx.Node, x: View, width: float = 0.5) -> View:
    return elementwise(b, node, lambda body, v, w: body.where(body.apply("abs", v) <= w, 0, v), x, width)


@lowers(aten.softshrink.default)
def softshrink(b: Builder, node: fx.Node, x: View, width: float = 0.5) -> View:
    def formula(body: Body, v: Val) -> Val:
        nearer = body.where(v > width, v - width, v + width)
        return body.where(body.apply("abs", v) <= width, 0, nearer)

    return elementwise(b, node, formula, x)


@lowers(aten._prelu_kernel.default)
def prelu(b: Builder, node: fx.Node, x: View, weight: View) -> View:
    return elementwise(b, node, lambda body, v, w: body.where(v > 0, v, v * w), x, weight)


# -- odd functions of one and two numbers -----------------------------------------------------
@lowers(aten.logit.default)
def logit(b: Builder, node: fx.Node, x: View, eps: float | None = None) -> View:
    def formula(body: Body, v: Val) -> Val:
        if eps is not None:
            v = body.apply("min", body.apply("max", v, eps), 1 - eps)
        return body.apply("log", v / (1 - v))

    return elementwise(b, node, formula, x)


@lowers(aten.sinc.default)
def sinc(b: Builder, node: fx.Node, x: View) -> View:
    def formula(body: Body, v: Val) -> Val:
        angle = v * math.pi
        return body.where(v.eq(0), 1, body.apply("sin", angle) / angle)

    return elementwise(b, node, formula, x)


@lowers(aten.logaddexp.default)
def logaddexp(b: Builder, node: fx.Node, x: View, y: View) -> Any:
    def formula(body: Body, u: Val, v: Val) -> Val:
        gap = body.apply("exp", -body.apply("abs", u - v))
        same_infinity = body.apply("abs", u).eq(math.inf) & u.eq(v)
        return body.where(same_infinity, u, body.apply("max", u, v) + body.apply("log1p", gap))

    return elementwise(b, node, formula, x, y)


@lowers(aten.logaddexp2.default)
def logaddexp2(b: Builder, node: fx.Node, x: View, y: View) -> Any:
    def formula(body: Body, u: Val, v: Val) -> Val:
        gap = body.apply("exp2", -body.apply("abs", u - v))
        same_infinity = body.apply("abs", u).eq(math.inf) & u.eq(v)
        return body.where(same_infinity, u, body.apply("max", u, v) + body.apply("log1p", gap) * (1 / math.log(2)))

    return elementwise(b, node, formula, x, y)


@lowers(aten.xlogy.Tensor, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self)
def xlogy(b: Builder, node: fx.Node, x: Any, y: Any) -> View:
    def formula(body: Body, u: Val, v: Val) -> Val:
        product = body.where(u.eq(0), 0, u * body.apply("log", v))
        return body.where(body.apply("isnan", v), v, product)

    return elementwise(b, node, formula, x, y)


@lowers(aten.deg2rad.default)
def deg2rad(b: Builder, node: fx.Node, x: View) -> View:
    return elementwise(b, node, lambda body, v: v * (math.pi / 180), x)


@lowers(aten.rad2deg.default)
def rad2deg(b: Builder, node: fx.Node, x: View) -> View:
    return elementwise(b, node, lambda body, v: v * (180 / math.pi), x)
