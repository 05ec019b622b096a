"""Pointwise operators: ATen's elementwise functions as formulas over scalar operators.

Types follow eager: the result's type (read off the fake tensor) says in what type the formula is
computed; comparisons compute in the promoted type of their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from litz.compat import ignores_a_lone_bound_of_nan
from litz.loop.dtype import DTYPES, compute_type, from_torch, is_float, to_torch
from litz.loop.expr import ONE
from litz.loop.ir import View
from litz.loop.scalar import SCALARS
from litz.ops.builder import Body, Builder, Numeral, Point, Val, computed, dtype_of, operand
from litz.ops.registry import lowers, lowers_later

aten = torch.ops.aten


def elementwise(b: Builder, node: fx.Node, formula: Callable[..., Val], *args: Any, common: str | None = None) -> View:
    """The result like `node`'s fake tensor, each element `formula(body, *values)` of the broadcast arguments.

    As in eager, arguments are brought to the `common` type first, the result's if not said: 2049 is 2048 beside a
    float16, and 0.1 is the float16 next to it. `exact_second` says which are not.
    """
    fake = node.meta["val"]
    dtype = computed(fake) if common is None else compute_type(common)
    rounded = dtype_of(fake) if common is None else common
    types = [dtype if place == 1 and exact_second(node, arg) else rounded for place, arg in enumerate(args)]

    def values(body: Body, point: Point) -> list[Val]:
        return [body.cast(operand(body, point, a, t), dtype) for a, t in zip(args, types, strict=True)]

    return b.pointwise(fake, lambda body, point: formula(body, *values(body, point)))


def exact_second(node: fx.Node, second: Any) -> bool:
    """Eager multiplies and divides by a number, or a tensor of one element, in the type it computes in."""
    return node.target in _BY_NUMBERS and not (isinstance(second, View) and any(s is not ONE for s in second.sizes))


_BY_NUMBERS = (
    aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode,
    aten.floor_divide.default, aten.floor_divide.Scalar,
)  # fmt: skip


def promoted(node: fx.Node, *positions: int) -> str:
    """The type eager compares the arguments in."""
    values = [node.args[i].meta["val"] if isinstance(node.args[i], fx.Node) else node.args[i] for i in positions]
    dtype = values[0].dtype if len(values) == 1 else torch.result_type(*values)  # type: ignore[arg-type]
    name = from_torch(dtype)
    assert name is not None
    return name


def _computes(op: str, node: fx.Node) -> bool:
    """Whether there is such an operator for the type of the result: fakes take bits of floats, which eager refuses."""
    return DTYPES[computed(node.meta["val"])].kind in SCALARS[op].kinds


# -- one scalar operator each: (ATen operator, scalar operator) ----------------------------------
_UNARY = {
    "abs": aten.abs.default, "acos": aten.acos.default, "acosh": aten.acosh.default, "asin": aten.asin.default,
    "asinh": aten.asinh.default, "atan": aten.atan.default, "atanh": aten.atanh.default, "cos": aten.cos.default,
    "cosh": aten.cosh.default, "erf": aten.erf.default, "erfc": aten.erfc.default, "exp": aten.exp.default,
    "exp2": aten.exp2.default, "expm1": aten.expm1.default, "lgamma": aten.lgamma.default, "log": aten.log.default,
    "log10": aten.log10.default, "log1p": aten.log1p.default, "log2": aten.log2.default, "neg": aten.neg.default,
    "reciprocal": aten.reciprocal.default, "rsqrt": aten.rsqrt.default, "sigmoid": aten.sigmoid.default,
    "sin": aten.sin.default, "sinh": aten.sinh.default, "sqrt": aten.sqrt.default, "tan": aten.tan.default,
    "tanh": aten.tanh.default,
}  # fmt: skip
for _name, _target in _UNARY.items():

    def _unary(b: Builder, node: fx.Node, x: View, _op: str = _name) -> View:
        return elementwise(b, node, lambda body, v: body.apply(_op, v), x)

    lowers(_target)(_unary)

_ROUNDING = {
    "floor": aten.floor.default, "ceil": aten.ceil.default, "trunc": aten.trunc.default, "round": aten.round.default,
    "sign": aten.sign.default,
}  # fmt: skip
for _name, _target in _ROUNDING.items():

    def _rounding(b: Builder, node: fx.Node, x: View, _op: str = _name) -> Any:
        if x.dtype == "b1":
            return NotImplemented
        unchanged = not is_float(x.dtype) and _op != "sign"
        return elementwise(b, node, lambda body, v: v if unchanged else body.apply(_op, v), x)

    lowers(_target)(_rounding)

_BINARY = {
    "atan2": (aten.atan2.default,), "hypot": (aten.hypot.default,),
    "copysign": (aten.copysign.Tensor, aten.copysign.Scalar),
    "max": (aten.maximum.default,), "min": (aten.minimum.default,),
    "mul": (aten.mul.Tensor, aten.mul.Scalar), "div": (aten.div.Tensor, aten.div.Scalar),
    "and": (aten.bitwise_and.Tensor, aten.bitwise_and.Scalar), "or": (aten.bitwise_or.Tensor, aten.bitwise_or.Scalar),
    "xor": (aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar),
    "shl": (
        aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar,
        aten.__lshift__.Tensor, aten.__lshift__.Scalar,
    ),
    "shr": (
        aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar,
        aten.__rshift__.Tensor, aten.__rshift__.Scalar,
    ),
}  # fmt: skip
for _name, _targets in _BINARY.items():

    def _binary(b: Builder, node: fx.Node, x: Any, y: Any, _op: str = _name) -> Any:
        if not _computes(_op, node):
            return NotImplemented
        return elementwise(b, node, lambda body, u, v: body.apply(_op, u, v), x, y)

    lowers(*_targets)(_binary)


@lowers(aten.nextafter.default)
def nextafter(b: Builder, node: fx.Node, x: Any, y: Any) -> Any:
    dtype = dtype_of(node.meta["val"])
    if compute_type(dtype) == dtype:
        return elementwise(b, node, lambda body, u, v: body.apply("nextafter", u, v), x, y)
    form = torch.finfo(node.meta["val"].dtype)

    def formula(body: Body, u: Val, v: Val) -> Val:
        """In float32: further by a little more than half the distance to the neighbour, and then rounded to it."""
        step = body.apply("max", body.apply("abs", u) * (form.eps / 2 * (1 + form.eps / 4)), form.tiny * form.eps)
        moved = body.where(v > u, u + step, u - step)
        moved = body.where(moved.eq(0), body.apply("copysign", moved, u), moved)
        finite = body.apply("abs", u) <= form.max
        moved = body.where(finite, moved, body.apply("copysign", body.const(form.max, u.dtype), u))
        return body.where(u.eq(v), v, body.where(u.eq(u) & v.eq(v), moved, math.nan))

    return elementwise(b, node, formula, x, y)


# -- division with a remainder ----------------------------------------------------------------
def divisor(body: Body, v: Val) -> Val:
    """`v` as the divisor of whole numbers: a zero among them is an error, as in eager."""
    if is_float(v.dtype) or v.dtype == "b1":
        return v
    zero = body.position(v.eq(0), 1, wrap=False, fault="zero")
    return v + body.cast(body.index(zero), v.dtype)  # adds nothing, and keeps the check alive


_DIVISION = {
    "remainder": (aten.remainder.Tensor, aten.remainder.Scalar), "fmod": (aten.fmod.Tensor, aten.fmod.Scalar),
    "floor_div": (aten.floor_divide.default, aten.floor_divide.Scalar),
}  # fmt: skip
for _name, _targets in _DIVISION.items():

    def _division(b: Builder, node: fx.Node, x: Any, y: Any, _op: str = _name) -> Any:
        if not isinstance(y, View) and y != 0:
            return elementwise(b, node, lambda body, u, v: body.apply(_op, u, v), x, y)
        return elementwise(b, node, lambda body, u, v: body.apply(_op, u, divisor(body, v)), x, y)

    lowers(*_targets)(_division)

_COMPARE = {
    "eq": (aten.eq.Tensor, aten.eq.Scalar), "ne": (aten.ne.Tensor, aten.ne.Scalar),
    "lt": (aten.lt.Tensor, aten.lt.Scalar), "le": (aten.le.Tensor, aten.le.Scalar),
    "gt": (aten.gt.Tensor, aten.gt.Scalar), "ge": (aten.ge.Tensor, aten.ge.Scalar),
}  # fmt: skip
for _name, _targets in _COMPARE.items():

    def _compare(b: Builder, node: fx.Node, x: Any, y: Any, _op: str = _name) -> Any:
        return elementwise(b, node, lambda body, u, v: body.apply(_op, u, v), x, y, common=promoted(node, 0, 1))

    lowers(*_targets)(_compare)


# -- arithmetic with a factor -----------------------------------------------------------------
def _scaled(body: Body, value: Val, factor: Numeral, rounded: str | None = None) -> Val:
    """`rounded`: the type that eager has the factor in, if not that of the value. Half precisions are such a type."""
    if not isinstance(factor, (int, float)):
        return value * body.cast(body.const(factor, rounded or value.dtype), value.dtype)
    if rounded in ("f16", "bf16"):
        factor = torch.tensor(factor, dtype=to_torch(rounded)).item()
    return value if factor == 1 else value * factor


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(b: Builder, node: fx.Node, x: Any, y: Any, alpha: float = 1) -> View:
    rounded = dtype_of(node.meta["val"])
    return elementwise(b, node, lambda body, u, v: u + _scaled(body, v, alpha, rounded), x, y)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(b: Builder, node: fx.Node, x: Any, y: Any, alpha: float = 1) -> View:
    rounded = dtype_of(node.meta["val"])
    return elementwise(b, node, lambda body, u, v: u - _scaled(body, v, alpha, rounded), x, y)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(b: Builder, node: fx.Node, x: Any, y: Any, alpha: float = 1) -> View:
    rounded = dtype_of(node.meta["val"])
    return elementwise(b, node, lambda body, u, v: v - _scaled(body, u, alpha, rounded), x, y)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Builder, node: fx.Node, x: Any, y: Any, rounding_mode: str | None = None) -> View:
    rounded = from_torch(node.meta["val"].dtype)
    assert rounded is not None

    def formula(body: Body, u: Val, v: Val) -> Val:
        if rounding_mode is None:
            return u / v
        if rounding_mode == "floor":
            return body.apply("floor_div", u, divisor(body, v))
        if not is_float(u.dtype):
            return body.apply("trunc_div", u, divisor(body, v))
        if exact_second(node, y):
            return body.apply("trunc", u / v)
        # As eager: a half-precision quotient is rounded before it is cut, and may round up to a whole number.
        return body.apply("trunc", body.cast(body.cast(u / v, rounded), u.dtype))

    return elementwise(b, node, formula, x, y)


@lowers(aten.addcmul.default)
def addcmul(b: Builder, node: fx.Node, x: View, y: View, z: View, value: float = 1) -> View:
    return elementwise(b, node, lambda body, u, v, w: u + _scaled(body, v, value) * w, x, y, z)


@lowers(aten.addcdiv.default)
def addcdiv(b: Builder, node: fx.Node, x: View, y: View, z: View, value: float = 1) -> View:
    return elementwise(b, node, lambda body, u, v, w: u + _scaled(body, v, value) / w, x, y, z)


@lowers_later("prims::fma")  # Dynamo writes it for addcmul and its like with a tensor for a factor
def fma(b: Builder, node: fx.Node, x: View, y: View, z: View) -> View:
    return elementwise(b, node, lambda body, u, v, w: u * v + w, x, y, z)


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: Builder, node: fx.Node, x: View, y: View, weight: Any) -> View:
    def formula(body: Body, u: Val, v: Val, w: Val) -> Val:
        small = body.apply("abs", w) < 0.5
        return body.where(small, u + w * (v - u), v - (v - u) * (1 - w))

    if isinstance(weight, View):
        return elementwise(b, node, formula, x, y, weight)
    return elementwise(b, node, lambda body, u, v: formula(body, u, v, body.const(weight, u.dtype)), x, y)


# Powers up to this are products: exact for integers, and far cheaper than `pow` for the rest.
_MOST_PRODUCTS = 8


def _repeated_product(body: Body, value: Val, times: int) -> Val:
    if times == 0:
        return body.const(1, value.dtype)
    if times == 1:
        return value
    root = _repeated_product(body, value, times // 2)
    return root * root * value if times % 2 else root * root


@lowers(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(b: Builder, node: fx.Node, x: Any, y: Any) -> Any:
    dtype = computed(node.meta["val"])
    # A root differs from a power at minus zero and minus infinity, and of halves eager takes powers.
    roots = (0.5, -0.5) if dtype_of(node.meta["val"]) != "f16" else ()

    def formula(body: Body, u: Val, v: Val) -> Val:
        power = body.apply("pow", u, v)
        if roots and isinstance(y, torch.SymFloat):  # which eager compares, where it knows it
            power = body.where(v.eq(0.5), body.apply("sqrt", u), power)
            return body.where(v.eq(-0.5), body.apply("rsqrt", u), power)
        return power

    if isinstance(y, (int, float)) and isinstance(x, View):
        if 0 <= y <= _MOST_PRODUCTS and float(y).is_integer() and dtype != "b1":
            return elementwise(b, node, lambda body, u: _repeated_product(body, u, int(y)), x)
        if is_float(dtype) and y in (*roots, -1):
            op = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[y]
            return elementwise(b, node, lambda body, u: body.apply(op, u), x)
    return elementwise(b, node, formula, x, y) if is_float(dtype) else NotImplemented


# -- choice and comparison --------------------------------------------------------------------
@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(b: Builder, node: fx.Node, condition: View, x: Any, y: Any) -> Any:
    fake = node.meta["val"]
    dtype = from_torch(fake.dtype)
    if dtype is None:
        return NotImplemented

    def formula(body: Body, point: tuple) -> Val:
        return body.where(
            operand(body, point, condition, "b1"), operand(body, point, x, dtype), operand(body, point, y, dtype)
        )

    return b.pointwise(fake, formula)


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: Builder, node: fx.Node, x: View, mask: View, value: Any) -> View:
    def formula(body: Body, point: tuple) -> Val:
        filling = operand(body, point, value, x.dtype)
        return body.where(operand(body, point, mask, "b1"), filling, operand(body, point, x, x.dtype))

    return b.pointwise(node.meta["val"], formula)


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(b: Builder, node: fx.Node, x: View, low: Any = None, high: Any = None) -> View:
    dtype = computed(node.meta["val"])

    # Two bounds of one element each are spread over the tensor, and count as numbers.
    both = [bound for bound in (low, high) if isinstance(bound, View) and all(size is ONE for size in bound.sizes)]
    spread = len(both) == 2
    alone = node.target is aten.clamp.default and (low is None or high is None)
    ignored = alone and is_float(dtype) and ignores_a_lone_bound_of_nan()

    def formula(body: Body, point: tuple) -> Val:
        value = operand(body, point, x, dtype)
        for name, bound in (("max", low), ("min", high)):
            if bound is not None:
                limit = operand(body, point, bound, dtype)
                # Of two zeros, eager takes its own with numbers for bounds, and the bound's with a tensor.
                pair = (value, limit) if isinstance(bound, View) and not spread else (limit, value)
                bounded = body.apply(name, *pair)
                value = body.where(body.apply("isnan", limit), value, bounded) if ignored else bounded
        return value

    return b.pointwise(node.meta["val"], formula)


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(b: Builder, node: fx.Node, x: View, low: Any) -> View:
    return clamp(b, node, x, low, None)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(b: Builder, node: fx.Node, x: View, high: Any) -> View:
    return clamp(b, node, x, None, high)


@lowers(aten.isnan.default)
def isnan(b: Builder, node: fx.Node, x: View) -> View:
    if not is_float(x.dtype):
        return elementwise(b, node, lambda body, v: body.const(False, "b1"), x, common=x.dtype)
    return elementwise(b, node, lambda body, v: body.apply("isnan", v), x, common=compute_type(x.dtype))


@lowers(aten.isinf.default)
def isinf(b: Builder, node: fx.Node, x: View) -> View:
    if not is_float(x.dtype):
        return elementwise(b, node, lambda body, v: body.const(False, "b1"), x, common=x.dtype)
    dtype = compute_type(x.dtype)
    return elementwise(b, node, lambda body, v: body.apply("abs", v).eq(math.inf), x, common=dtype)


@lowers(aten.signbit.default)
def signbit(b: Builder, node: fx.Node, x: View) -> Any:
    if is_float(x.dtype):
        return elementwise(b, node, lambda body, v: body.apply("signbit", v), x, common=compute_type(x.dtype))
    if x.dtype == "b1":
        return NotImplemented
    return elementwise(b, node, lambda body, v: v < 0, x, common=x.dtype)


_LOGICAL = {"and": aten.logical_and.default, "or": aten.logical_or.default, "xor": aten.logical_xor.default}
for _name, _target in _LOGICAL.items():

    def _logical(b: Builder, node: fx.Node, x: View, y: View, _op: str = _name) -> View:
        return elementwise(b, node, lambda body, u, v: body.apply(_op, u, v), x, y, common="b1")

    lowers(_target)(_logical)


@lowers(aten.logical_not.default)
def logical_not(b: Builder, node: fx.Node, x: View) -> View:
    return elementwise(b, node, lambda body, v: ~v, x, common="b1")


@lowers(aten.bitwise_not.default)
def bitwise_not(b: Builder, node: fx.Node, x: View) -> Any:
    return elementwise(b, node, lambda body, v: ~v, x) if _computes("not", node) else NotImplemented


# -- activations ------------------------------------------------------------------------------
@lowers(aten.relu.default)
def relu(b: Builder, node: fx.Node, x: View) -> View:
    return elementwise(b, node, lambda body, v: body.apply("max", body.const(0, v.dtype), v), x)


@lowers(aten.gelu.default)
def gelu(b: Builder, node: fx.Node, x: View, approximate: str = "none") -> View:
    def formula(body: Body, v: Val) -> Val:
        if approximate == "tanh":
            inner = (v + v * v * v * 0.044715) * math.sqrt(2 / math.pi)
            return v * 0.5 * (body.apply("tanh", inner) + 1)
        return v * body.apply("normal_cdf", v)

    return elementwise(b, node, formula, x)


@lowers(aten.silu.default)
def silu(b: Builder, node: fx.Node, x: View) -> View:
    return elementwise(b, node, lambda body, v: v * body.apply("sigmoid", v), x)


@lowers(aten.leaky_relu.default)
def leaky_relu(b: Builder, node: fx.Node, x: View, slope: float = 0.01) -> View:
    return elementwise(b, node, lambda body, v: body.where(v > 0, v, v * slope), x)


@lowers(aten.elu.default)
def elu(b: Builder, node: fx.Node, x: View, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> View:
    def formula(body: Body, v: Val) -> Val:
        below = body.apply("expm1", v * input_scale) * alpha
        return body.where(v < 0, below, v) * scale

    return elementwise(b, node, formula, x)


@lowers(aten.hardtanh.default)
def hardtanh(b: Builder, node: fx.Node, x: View, low: float = -1, high: float = 1) -> View:
    return clamp(b, node, x, low, high)


@lowers(aten.hardsigmoid.default)
def hardsigmoid(b: Builder, node: fx.Node, x: View) -> View:
    def formula(body: Body, v: Val) -> Val:
        return body.apply("min", body.apply("max", v + 3, 0), 6) / 6

    return elementwise(b, node, formula, x)


@lowers(aten.hardswish.default)
def hardswish(b: Builder, node: fx.Node, x: View) -> View:
    def formula(body: Body, v: Val) -> Val:
        return v * body.apply("min", body.apply("max", v + 3, 0), 6) / 6

    return elementwise(b, node, formula, x)


# -- copies and conversions -------------------------------------------------------------------
@lowers(
    aten.clone.default, aten._to_copy.default, aten.lift_fresh.default, aten.lift_fresh_copy.default,
    aten.contiguous.default,
)  # fmt: skip
def copy(b: Builder, node: fx.Node, x: View, **_: Any) -> Any:
    out = from_torch(node.meta["val"].dtype)
    if out is None:
        return NotImplemented
    return b.pointwise(node.meta["val"], lambda body, point: operand(body, point, x, x.dtype))


@lowers(aten.copy.default)
def copy_over(b: Builder, node: fx.Node, x: View, source: View, non_blocking: bool = False) -> View:
    return b.pointwise(node.meta["val"], lambda body, point: operand(body, point, source, source.dtype))
