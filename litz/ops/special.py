"""Special functions that no instruction and no library of vectors has: series and Newton steps, in float64 throughout.

Float32 gains a result as exact as its inputs allow, and needs no coefficients of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import DTYPES, compute_type, is_float
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Val, computed, dtype_of, operand
from litz.ops.pointwise import elementwise
from litz.ops.registry import lowers

aten = torch.ops.aten


def _horner(x: Val, coefficients: Sequence[float]) -> Val:
    """The polynomial with these coefficients, the constant one first."""
    total: Val | float = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    assert isinstance(total, Val)
    return total


# -- the inverse of the error function --------------------------------------------------------
_NEAR = (
    (0.886226899, -1.645349621, 0.914624893, -0.140543331),
    (1, -2.118377725, 1.442710462, -0.329097515, 0.012229801),
)
_FAR = (-1.970840454, -1.624906493, 3.429567803, 1.641345311), (1, 3.543889200, 1.637067800)


@lowers(aten.erfinv.default)
def erfinv(b: Builder, node: fx.Node, x: View) -> View:
    def formula(body: Body, y: Val) -> Val:
        size = body.apply("abs", y)
        square = y * y
        near = y * _horner(square, _NEAR[0]) / _horner(square, _NEAR[1])
        root = body.apply("sqrt", -body.apply("log", (1 - size) / 2))
        far = body.apply("copysign", _horner(root, _FAR[0]), y) / _horner(root, _FAR[1])
        found = body.where(size <= 0.7, near, far)
        for _ in range(2):
            slope = body.apply("exp", -(found * found)) * (2 / math.sqrt(math.pi))
            found = found - (body.apply("erf", found) - y) / slope
        edge = body.apply("copysign", body.const(math.inf, y.dtype), y)
        # Where the size is above one, or y is no number, the logarithm was none either.
        return body.where(size.eq(1), edge, body.where(size < 1, found, math.nan))

    return elementwise(b, node, formula, x, common="f64")


# -- powers of two ----------------------------------------------------------------------------
@lowers(aten.ldexp.Tensor)
def ldexp(b: Builder, node: fx.Node, x: View, exponent: View) -> View:
    def scaled(body: Body, v: Val, e: Val) -> Val:
        # Cut to 32 bits, as eager cuts it; beyond the limits every number overflows, or vanishes.
        whole = body.apply("min", body.apply("max", body.cast(e, "i32"), -5000), 5000)
        return body.apply("scaleb", v, body.cast(whole, v.dtype))

    fake = node.meta["val"]
    dtype, whole = computed(fake), DTYPES[exponent.dtype].kind in ("int", "uint")
    if whole and is_float(x.dtype):
        return b.pointwise(
            fake,
            lambda body, at: scaled(body, operand(body, at, x, dtype), operand(body, at, exponent, exponent.dtype)),
        )
    # Eager multiplies by a power of two, in the type that it gives the power.
    power = dtype_of(fake) if not is_float(exponent.dtype) else exponent.dtype
    two = compute_type(power)

    def product(body: Body, at: Point) -> Val:
        factor = body.apply("pow", body.const(2, two), operand(body, at, exponent, two))
        return operand(body, at, x, dtype) * body.cast(body.cast(factor, power), dtype)

    return b.pointwise(fake, product)


# -- derivatives of log(gamma) ----------------------------------------------------------------
_PSI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def _digamma(body: Body, x: Val) -> Val:
    negative = x < 0
    at = body.where(negative, 1 - x, x)
    steps: Val | float = 0.0
    for _ in range(10):  # the asymptotic series is good from 10 on
        small = at < 10
        steps = body.where(small, steps - 1 / at, steps)
        at = body.where(small, at + 1, at)
    inverse = 1 / (at * at)
    series = body.apply("log", at) - 0.5 / at - inverse * _horner(inverse, _PSI)
    psi = steps + series
    whole = body.apply("trunc", x)
    mirrored = psi - math.pi / body.apply("tan", (x - whole) * math.pi)
    found = body.where(negative, body.where(x.eq(whole), math.nan, mirrored), psi)
    return body.where(x.eq(0), body.apply("copysign", body.const(math.inf, x.dtype), -x), found)


def _trigamma(body: Body, x: Val) -> Val:
    low = x < 0.5
    sine = body.apply("sin", x * math.pi)
    at = body.where(low, 1 - x, x)
    total = body.where(low, -(math.pi * math.pi) / (sine * sine), 0.0)
    for _ in range(6):
        total = total + 1 / (at * at)
        at = at + 1
    inverse = 1 / (at * at)
    total = total + (1 + 1 / (2 * at) + inverse * (1 / 6 - inverse * (1 / 30 - inverse * (1 / 42)))) / at
    return body.where(low, -total, total)


@lowers(aten.digamma.default)
def digamma(b: Builder, node: fx.Node, x: View) -> View:
    return elementwise(b, node, _digamma, x, common="f64")


@lowers(aten.polygamma.default)
def polygamma(b: Builder, node: fx.Node, order: int, x: View) -> Any:
    if order > 1:
        return b.library(node, (order, x), {})
    return elementwise(b, node, _trigamma if order else _digamma, x, common="f64")
