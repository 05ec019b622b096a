"""Choosing between numbers by what they are: NaN-ignoring extremes, steps, repairs of NaN and infinity, rounding."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Val, computed, operand
from litz.ops.pointwise import divisor, elementwise, promoted
from litz.ops.registry import lowers

aten = torch.ops.aten


@lowers(aten.fmax.default)
def fmax(b: Builder, node: fx.Node, x: View, y: View) -> View:
    return _ignoring_nan(b, node, "max", x, y)


@lowers(aten.fmin.default)
def fmin(b: Builder, node: fx.Node, x: View, y: View) -> View:
    return _ignoring_nan(b, node, "min", x, y)


def _ignoring_nan(b: Builder, node: fx.Node, op: str, x: View, y: View) -> View:
    def formula(body: Body, u: Val, v: Val) -> Val:
        chosen = body.apply(op, v, u)  # of two zeros, eager takes the first
        if not is_float(u.dtype):
            return chosen
        return body.where(body.apply("isnan", u), v, body.where(body.apply("isnan", v), u, chosen))

    return elementwise(b, node, formula, x, y)


@lowers(aten.angle.default)
def angle(b: Builder, node: fx.Node, x: View) -> View:
    def formula(body: Body, v: Val) -> Val:
        turned = body.where(v < 0, body.const(math.pi, v.dtype), 0.0)
        return body.where(body.apply("isnan", v), v, turned)

    return elementwise(b, node, formula, x)


@lowers(aten.heaviside.default)
def heaviside(b: Builder, node: fx.Node, x: View, at_zero: View) -> Any:
    if x.dtype == "b1":
        return NotImplemented

    def formula(body: Body, u: Val, v: Val) -> Val:
        return body.where(u.eq(0), v, body.cast(u > 0, u.dtype))

    return elementwise(b, node, formula, x, at_zero)


@lowers(aten.sgn.default)
def sgn(b: Builder, node: fx.Node, x: View) -> Any:
    return NotImplemented if x.dtype == "b1" else elementwise(b, node, lambda body, v: body.apply("sign", v), x)


@lowers(aten.frac.default)
def frac(b: Builder, node: fx.Node, x: View) -> Any:
    if not is_float(x.dtype):
        return NotImplemented
    return elementwise(b, node, lambda body, v: v - body.apply("trunc", v), x)


@lowers(aten.round.decimals)
def round_decimals(b: Builder, node: fx.Node, x: View, decimals: int = 0) -> Any:
    if not is_float(x.dtype):
        return NotImplemented
    # As eager: a negative count divides first, since 10**-n is not exact.
    ten = float(10 ** abs(decimals))

    def formula(body: Body, v: Val) -> Val:
        if decimals == 0:
            return body.apply("round", v)
        return body.apply("round", v / ten) * ten if decimals < 0 else body.apply("round", v * ten) / ten

    return elementwise(b, node, formula, x)


@lowers(aten.nan_to_num.default)
def nan_to_num(
    b: Builder, node: fx.Node, x: View, nan: float | None = None, posinf: float | None = None,
    neginf: float | None = None,
) -> Any:  # fmt: skip
    if not is_float(x.dtype):
        return b.pointwise(node.meta["val"], lambda body, point: operand(body, point, x, x.dtype))
    limits = torch.finfo(node.meta["val"].dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf

    def formula(body: Body, v: Val) -> Val:
        finite = body.where(v.eq(math.inf), high, body.where(v.eq(-math.inf), low, v))
        return body.where(body.apply("isnan", v), 0.0 if nan is None else nan, finite)

    return elementwise(b, node, formula, x)


_INFINITE = {math.inf: aten.isposinf.default, -math.inf: aten.isneginf.default}
for _value, _target in _INFINITE.items():

    def _is_infinite(b: Builder, node: fx.Node, x: View, _value: float = _value) -> View:
        if not is_float(x.dtype):
            return elementwise(b, node, lambda body, v: body.const(False, "b1"), x, common=x.dtype)
        return elementwise(b, node, lambda body, v: v.eq(_value), x, common=compute_type(x.dtype))

    lowers(_target)(_is_infinite)


@lowers(aten.isfinite.default)
def isfinite(b: Builder, node: fx.Node, x: View) -> View:
    if not is_float(x.dtype):
        return elementwise(b, node, lambda body, v: body.const(True, "b1"), x, common=x.dtype)
    dtype = compute_type(x.dtype)
    return elementwise(b, node, lambda body, v: body.apply("abs", v) < math.inf, x, common=dtype)


# -- a number on the left ---------------------------------------------------------------------
_SCALAR_FIRST = {
    "and": aten.bitwise_and.Scalar_Tensor, "or": aten.bitwise_or.Scalar_Tensor, "xor": aten.bitwise_xor.Scalar_Tensor,
    "shl": aten.bitwise_left_shift.Scalar_Tensor, "shr": aten.bitwise_right_shift.Scalar_Tensor,
    "remainder": aten.remainder.Scalar_Tensor,
}  # fmt: skip
for _name, _target in _SCALAR_FIRST.items():

    def _scalar_first(b: Builder, node: fx.Node, x: float, y: View, _op: str = _name) -> Any:
        if computed(node.meta["val"]) == "b1" and _op not in ("and", "or", "xor"):
            return NotImplemented
        if _op == "remainder":
            return elementwise(b, node, lambda body, u, v: body.apply(_op, u, divisor(body, v)), x, y)
        return elementwise(b, node, lambda body, u, v: body.apply(_op, u, v), x, y)

    lowers(_target)(_scalar_first)


@lowers(aten.isin.Tensor_Scalar)
def isin_scalar(
    b: Builder, node: fx.Node, x: View, value: float, assume_unique: bool = False, invert: bool = False
) -> Any:
    def formula(body: Body, v: Val, w: Val) -> Val:
        return v.ne(w) if invert else v.eq(w)

    return elementwise(b, node, formula, x, value, common=promoted(node, 0, 1))
