"""Pointwise operators: each over numbers that matter (zero, its negative, infinities, NaN), types and broadcasts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.ops.lowering import Case, case

torch.manual_seed(3)
NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor([-INF, -70.0, -3.5, -1.0, -0.5, -0.0, 0.0, 0.2, 0.5, 1.0, 2.5, 70.0, INF, NAN])
X = torch.randn(3, 4, 5)
TRANSPOSED = torch.randn(5, 4, 3).permute(2, 1, 0)
OTHERWISE = torch.randn(3, 5, 4).permute(0, 2, 1)
SLICED = torch.randn(3, 8, 5)[:, ::2]
ROW = torch.randn(5)
COLUMN = torch.randn(4, 1)
SCALAR = torch.tensor(0.7)
UNIT = torch.rand(3, 4, 5) * 0.98 + 0.01
INTS = torch.randint(-9, 9, (3, 4, 5))
SMALL = torch.randint(1, 6, (3, 4, 5))
BYTES = torch.randint(0, 255, (3, 4, 5), dtype=torch.uint8)
BOOLS = X > 0
HALF = X.bfloat16()

UNARY = (
    "abs", "neg", "exp", "exp2", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "atan", "asinh", "erf", "erfc",
    "sigmoid", "floor", "ceil", "trunc", "round", "sign", "sgn", "frac", "isnan", "isinf", "isfinite", "isposinf",
    "isneginf", "signbit", "square", "relu", "reciprocal", "deg2rad", "rad2deg", "sinc", "nan_to_num", "logical_not",
    "angle", "digamma", "erfinv",
)  # fmt: skip
POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma", "asin", "acos", "atanh")
ACTIVATIONS = (
    "gelu", "silu", "mish", "softplus", "logsigmoid", "selu", "relu6", "celu", "elu", "tanhshrink", "softshrink",
    "hardshrink", "softsign", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "remainder", "fmod",
    "floor_divide", "copysign", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
    "heaviside", "xlogy", "logaddexp", "logaddexp2",
)  # fmt: skip
# Fake tensors of these are laid out like their second argument.
MISLAID = ("floor_divide", "copysign", "xlogy")
INTEGER = (
    "add", "sub", "mul", "div", "maximum", "minimum", "remainder", "fmod", "floor_divide", "bitwise_and", "bitwise_or",
    "bitwise_xor", "eq", "lt", "ge", "fmax",
)  # fmt: skip


def _tables() -> list[Case]:
    made = []
    for name in UNARY:
        f = getattr(torch, name)
        made += [case(f"{name}-special", f, SPECIAL), case(f"{name}-transposed", f, TRANSPOSED)]
    for name in POSITIVE:
        f = getattr(torch, name)
        made += [case(f"{name}-unit", f, UNIT), case(f"{name}-bf16", f, UNIT.bfloat16())]
    for name in ACTIVATIONS:
        f = getattr(F, name)
        # Eager's gelu takes infinity for NaN where it is vectorised.
        special = SPECIAL[1:-2] if name == "gelu" else SPECIAL
        made += [case(f"{name}-sliced", f, SLICED), case(f"{name}-special", f, special), case(f"{name}-bf16", f, HALF)]
    for name in BINARY:
        f = getattr(torch, name)
        pairs = SPECIAL[:, None].expand(14, 14), SPECIAL[None, :] + 0.0
        made += [
            case(f"{name}-same", f, X, TRANSPOSED, strides=name not in MISLAID),
            case(f"{name}-transposed", f, TRANSPOSED, OTHERWISE, strides=name not in MISLAID),
            case(f"{name}-row", f, SLICED, ROW),
            case(f"{name}-outer", f, COLUMN, ROW),
            case(f"{name}-scalar", f, X, SCALAR),
            case(f"{name}-special", f, *pairs),
        ]
    for name in INTEGER:
        f = getattr(torch, name)
        made += [case(f"{name}-int", f, INTS, SMALL), case(f"{name}-int32-int64", f, INTS.int(), SMALL)]
    for op in ("add", "sub", "mul", "div", "remainder", "floor_divide"):
        f = getattr(torch, op)
        made += [
            case(f"{op}-int-number", lambda x, f=f: f(x, 3), INTS),
            case(f"{op}-int-float", lambda x, f=f: f(x, 1.5), INTS),
        ]
    for p in (0, 1, 2, 3, 4, 5, 7, 8, -1, -2, 0.5, -0.5, 1.5, 2.0, INF):
        made.append(case(f"pow-{p}", lambda x, p=p: x**p, UNIT))
        if p in (0, 1, 2, 5, 8):
            made.append(case(f"pow-int-{p}", lambda x, p=p: x**p, INTS))
    return made


CASES: list[Case] = [
    *_tables(),
    case("pow-special", lambda x: x**3, SPECIAL),
    case("pow-tensor", lambda x, y: x**y, UNIT, X),
    case("pow-number", lambda x: 2.5**x, X),
    case("polygamma", lambda x: torch.polygamma(1, x), SPECIAL.double() + 0.01),
    case("polygamma-digamma", lambda x: torch.polygamma(0, x), X),
    case("polygamma-two", lambda x: torch.polygamma(2, x), UNIT, calls=("aten::polygamma",)),
    case("digamma-whole", lambda x: torch.digamma(x), INTS),
    case("erfinv-f64", lambda x: torch.erfinv(x), UNIT.double()),
    case("pow-int-tensor", lambda x, y: x**y, INTS, SMALL, calls=("aten::pow.Tensor_Tensor",)),
    case("abs-int", torch.abs, INTS),
    case("neg-int", torch.neg, INTS),
    case("floor-int", torch.floor, INTS),
    case("sign-int", torch.sign, INTS),
    case("exp-int", torch.exp, INTS),
    case("sigmoid-bool", torch.sigmoid, BOOLS),
    case("relu-int", torch.relu, INTS),
    case("isnan-int", torch.isnan, INTS),
    case("isfinite-int", torch.isfinite, INTS),
    case("signbit-int", torch.signbit, INTS),
    case("nan_to_num-int", torch.nan_to_num, INTS),
    case("nan_to_num-given", lambda x: torch.nan_to_num(x, 1.0, 2.0, -2.0), SPECIAL),
    case("nan_to_num-bf16", torch.nan_to_num, SPECIAL.bfloat16()),
    case("add-bool", lambda x: x + x, BOOLS),
    case("mul-bool", lambda x, y: x * y, BOOLS, X),
    case("add-alpha", lambda x, y: torch.add(x, y, alpha=2.5), X, ROW),
    case("sub-alpha-int", lambda x, y: torch.sub(x, y, alpha=2), INTS, SMALL),
    case("rsub", lambda x: 2 - x, X),
    case("add-int-and-float", lambda x, y: x + y, INTS, X),
    case("add-bf16-f32", lambda x, y: x + y, HALF, X),
    case("add-bytes", lambda x: x + 200, BYTES),
    case("div-floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), X, ROW),
    case("div-trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), X, ROW),
    case("div-trunc-bf16", lambda x, y: torch.div(x * 20, y, rounding_mode="trunc"), HALF, ROW.bfloat16()),
    case("div-floor-int", lambda x, y: torch.div(x, y, rounding_mode="floor"), INTS, SMALL),
    case("div-trunc-int", lambda x, y: torch.div(x, y, rounding_mode="trunc"), INTS, SMALL),
    case("div-trunc-number", lambda x: torch.div(x, 2, rounding_mode="trunc"), INTS),
    case("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), X, TRANSPOSED, ROW),
    case("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), X, TRANSPOSED, UNIT),
    case("lerp", lambda x, y: torch.lerp(x, y, 0.3), X, TRANSPOSED),
    case("lerp-tensor", torch.lerp, X, TRANSPOSED, UNIT),
    case("where", lambda x, y: torch.where(x > y, x, y), X, ROW),
    case("where-promotion", lambda x, y: torch.where(x > 0, x, y), X, INTS),
    case("masked_fill", lambda x: x.masked_fill(x > 0, -INF), TRANSPOSED),
    case("masked_fill-broadcast", lambda x, m: x.masked_fill(m, 2), INTS, BOOLS[0, :1]),
    case("masked_fill-tensor", lambda x, v: x.masked_fill(x > 0, v), X, SCALAR),
    case("clamp", lambda x: x.clamp(-0.5, 0.5), SPECIAL),
    case("clamp-low", lambda x: x.clamp(min=0.1), SPECIAL),
    case("clamp-tensors", lambda x, lo, hi: x.clamp(lo, hi), X, ROW, COLUMN + 3),
    case("clamp-int", lambda x: x.clamp(-2, 3), INTS),
    case("clamp-int-float", lambda x: x.clamp(-2.5, 3.5), INTS),
    case("clamp_max-tensor", lambda x, y: torch.clamp_max(x, y), X, ROW),
    case("threshold", lambda x: F.threshold(x, 0.1, 20.0), SPECIAL),
    case("prelu", F.prelu, X, torch.randn(4)),
    case("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), X),
    case("softplus-beta", lambda x: F.softplus(x, 2.0, 5.0), SPECIAL),
    case("elu-alpha", lambda x: F.elu(x, 0.3), X),
    case("hardtanh-limits", lambda x: F.hardtanh(x, -0.2, 0.4), X),
    case("logit", torch.logit, UNIT),
    case("logit-eps", lambda x: torch.logit(x, 0.1), UNIT),
    case("round-decimals", lambda x: torch.round(x, decimals=2), X),
    case("round-tens", lambda x: torch.round(x * 100, decimals=-1), X),
    case("xlogy-number", lambda x: torch.xlogy(x, 2.0), SPECIAL),
    case("xlogy-zero", lambda x: torch.xlogy(0.0, x), SPECIAL),
    case("dropout-off", lambda x: torch.native_dropout(x, 0.5, False), X),
    case("bitwise_not", torch.bitwise_not, INTS),
    case("bitwise_not-bool", torch.bitwise_not, BOOLS),
    case("bitwise-number", lambda x: (x & 6, x | 5, x ^ 3), INTS),
    case("bitwise-number-first", lambda x: torch.bitwise_and(6, x), INTS),
    case("bitwise-bool", lambda x, y: (x & y, x | y, x ^ y), BOOLS, BOOLS.flip(0)),
    case("shifts", lambda x, y: (x << y, x >> y, x << 2, x >> 1), INTS, SMALL),
    case("shift-first", lambda y: torch.bitwise_left_shift(1, y), SMALL),
    case("remainder-first", lambda y: torch.remainder(7, y), SMALL),
    case("logical-int", torch.logical_and, INTS, SMALL),
    case("compare-mixed", lambda x, y: x < y, INTS, X),
    case("compare-number", lambda x: (x == 3, x > 2.5), INTS),
    case("compare-bytes", lambda x: x > 100, BYTES),
    case("to-int", lambda x: (x * 5).to(torch.int32), X),
    case("to-bool", lambda x: x.to(torch.bool), INTS),
    case("to-half", lambda x: (x.half(), x.bfloat16(), x.double()), TRANSPOSED),
    case("to-float", lambda x: x.float(), BYTES),
    case("clone-contiguous", lambda x: (x.contiguous(), x.clone()), TRANSPOSED),
    case("copy", lambda x, y: torch.ops.aten.copy(x, y), X, ROW),
    case("scalars", lambda x: torch.exp(x) * 2 + x, SCALAR),
    case("isin", lambda x: torch.isin(x, 3), INTS),
]  # fmt: skip
