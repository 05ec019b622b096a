"""The scalar operators of the loop IR: one row each, the only place an operator is defined.

A row says how many arguments it takes, what type comes out, what it means (a NumPy function, which
the interpreter runs), how LLVM spells it, what it costs, and sample arguments for tests.

LLVM spellings, by the kind of the arguments:
- `fadd {t} {a}, {b}`   an instruction; `{t}` is the (vector) type, `{a} {b} {c}` the arguments
- `@llvm.sqrt`          an intrinsic, overloaded on the type
- `inline exp`          a function of `codegen/llvm/math.py`, written out in the kernel
- `sleef sinh u10`      a vector call into SLEEF, which libtorch carries
- `draw`                by `codegen/llvm/draw.py`, which has to know which lanes draw from one block
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from litz.loop.philox import philox

SAME, BOOL, GIVEN = "same", "bool", "given"


@dataclass(frozen=True)
class Scalar:
    name: str
    arity: int
    reference: Callable
    llvm: dict[str, str]  # argument kind ("float", "int", "uint", "bool") -> spelling
    result: str = SAME  # type of the last argument, bool, or stated by the `Apply`
    cost: int = 1  # in additions; 8 and more is worth keeping rather than computing twice
    samples: tuple[tuple, ...] = field(default=())

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.llvm)


F = "float"
_ALL_INT = ("int", "uint")


def _each(spelling: str, *kinds: str) -> dict[str, str]:
    return dict.fromkeys(kinds, spelling)


def _arith(float_op: str, int_op: str) -> dict[str, str]:
    return {F: float_op + " {t} {a}, {b}", **_each(int_op + " {t} {a}, {b}", *_ALL_INT)}


def _compare(float_op: str, signed: str, unsigned: str) -> dict[str, str]:
    return {
        F: f"fcmp {float_op} {{t}} {{a}}, {{b}}",
        "int": f"icmp {signed} {{t}} {{a}}, {{b}}",
        "uint": f"icmp {unsigned} {{t}} {{a}}, {{b}}",
        "bool": f"icmp {unsigned} {{t}} {{a}}, {{b}}",
    }


def _bits(op: str) -> dict[str, str]:
    return _each(op + " {t} {a}, {b}", "int", "uint", "bool")


def _larger(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # As eager: of two zeros the second, and not a number if either is none.
    return np.where((a > b) | (a != a), a, b)


def _smaller(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a < b) | (a != a), a, b)


def _libm(function: Callable[[float], float], pole: float = math.nan) -> Callable:
    def one(x: float) -> float:
        try:
            return function(float(x))
        except ValueError:
            return pole
        except OverflowError:
            return math.inf

    return np.vectorize(one, otypes=[np.float64])


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


def _floor_divide(a, b):
    if np.asarray(a).dtype.kind != "f":
        return np.floor_divide(a, np.where(np.asarray(b) == 0, 1, b))
    # As eager: floor of the exact quotient, repaired around the remainder; a zero divisor divides.
    quotient = (a - np.fmod(a, b)) / b
    quotient = np.where((np.fmod(a, b) != 0) & ((b < 0) != (np.fmod(a, b) < 0)), quotient - 1, quotient)
    floored = np.floor(quotient)
    floored = np.where(quotient - floored > 0.5, floored + 1, floored)
    floored = np.where(quotient == 0, np.copysign(0.0, a / b), floored)
    return np.where(b == 0, a / b, floored)


def _remainder(a, b):
    if np.asarray(a).dtype.kind != "f":
        return np.remainder(a, np.where(np.asarray(b) == 0, 1, b))
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def _trunc_divide(a, b):
    b = np.where(np.asarray(b) == 0, 1, b)
    return (a - np.fmod(a, b)) // b  # exact, and safe for the least number, which has no absolute value


def _shift_left(a, b):
    width = 8 * np.asarray(a).dtype.itemsize
    good = (b >= 0) & (b < width)
    return np.where(good, np.left_shift(a, np.where(good, b, 0)), 0)


def _shift_right(a, b):
    width = 8 * np.asarray(a).dtype.itemsize
    good = (b >= 0) & (b < width)
    # Shifted all the way out, as eager: the sign is left of a signed number, nothing of an unsigned one.
    rest = np.right_shift(a, np.where(good, b, width - 1).astype(np.asarray(a).dtype))
    return rest if np.asarray(a).dtype.kind == "i" else np.where(good, rest, np.zeros_like(rest))


def _sign(a):
    return np.where(np.isnan(a), 0, np.sign(a)) if np.asarray(a).dtype.kind == "f" else np.sign(a)


def _scaleb(a, b):
    exponent = np.nan_to_num(np.trunc(np.clip(b, -5000, 5000)), nan=0.0).astype(np.int32)
    return np.where(np.isnan(b), b, np.ldexp(a, exponent))


_X = ((-2.5,), (-0.0,), (0.0,), (0.3,), (1.0,), (7.25,))
_POS = ((0.0,), (1e-6,), (0.3,), (1.0,), (123.0,))
_UNIT = ((-1.0,), (-0.3,), (0.0,), (0.7,), (1.0,))
_XY = ((-2.5, 1.5), (0.0, 3.0), (4.0, -2.0), (7.25, 0.5))


def _float1(name: str, reference: Callable, llvm: str, cost: int, samples: tuple = _X) -> Scalar:
    return Scalar(name, 1, reference, {F: llvm}, SAME, cost, samples)


_ROWS = (
    # arithmetic
    Scalar("add", 2, np.add, {**_arith("fadd", "add"), **_each("or {t} {a}, {b}", "bool")}, samples=_XY),
    Scalar("sub", 2, np.subtract, _arith("fsub", "sub"), samples=_XY),
    Scalar("mul", 2, np.multiply, {**_arith("fmul", "mul"), **_each("and {t} {a}, {b}", "bool")}, samples=_XY),
    Scalar("div", 2, np.divide, {F: "fdiv {t} {a}, {b}"}, cost=4, samples=_XY),
    Scalar("floor_div", 2, _floor_divide, {F: "inline floor_div", **_each("inline floor_div", *_ALL_INT)}, cost=10, samples=_XY),
    Scalar("trunc_div", 2, _trunc_divide, {"int": "inline trunc_div", "uint": "inline trunc_div"}, cost=10, samples=((7, 2), (-7, 2), (7, -2))),
    Scalar("remainder", 2, _remainder, {F: "inline remainder", **_each("inline remainder", *_ALL_INT)}, cost=10, samples=_XY),
    Scalar("fmod", 2, np.fmod, {F: "inline fmod", "int": "inline fmod", "uint": "inline fmod"}, cost=10, samples=_XY),
    Scalar("neg", 1, np.negative, {F: "fneg {t} {a}", **_each("sub {t} zeroinitializer, {a}", *_ALL_INT)}, samples=_X),
    Scalar("abs", 1, np.abs, {F: "@llvm.fabs", "int": "inline abs", "uint": "or {t} {a}, zeroinitializer"}, samples=_X),
    Scalar("sign", 1, _sign, {F: "inline sign", "int": "inline sign", "uint": "inline sign"}, cost=2, samples=_X),
    Scalar("max", 2, _larger, {F: "inline max", "int": "@llvm.smax", "uint": "@llvm.umax", "bool": "or {t} {a}, {b}"}, samples=_XY),
    Scalar("min", 2, _smaller, {F: "inline min", "int": "@llvm.smin", "uint": "@llvm.umin", "bool": "and {t} {a}, {b}"}, samples=_XY),
    Scalar("fma", 3, lambda a, b, c: a * b + c, {F: "@llvm.fmuladd"}, samples=((1.5, 2.0, 3.0),)),
    # comparison and choice
    Scalar("eq", 2, np.equal, _compare("oeq", "eq", "eq"), BOOL, samples=_XY),
    Scalar("ne", 2, np.not_equal, _compare("une", "ne", "ne"), BOOL, samples=_XY),
    Scalar("lt", 2, np.less, _compare("olt", "slt", "ult"), BOOL, samples=_XY),
    Scalar("le", 2, np.less_equal, _compare("ole", "sle", "ule"), BOOL, samples=_XY),
    Scalar("gt", 2, np.greater, _compare("ogt", "sgt", "ugt"), BOOL, samples=_XY),
    Scalar("ge", 2, np.greater_equal, _compare("oge", "sge", "uge"), BOOL, samples=_XY),
    Scalar("isnan", 1, np.isnan, {F: "fcmp uno {t} {a}, {a}"}, BOOL, samples=((math.nan,), (1.0,))),
    Scalar("signbit", 1, np.signbit, {F: "inline signbit"}, BOOL, samples=_X),
    Scalar("where", 3, np.where, _each("inline where", F, "int", "uint", "bool"), samples=((True, 1.0, 2.0), (False, 1.0, 2.0))),
    # bits and booleans
    Scalar("and", 2, np.bitwise_and, _bits("and"), samples=((6, 3), (True, False))),
    Scalar("or", 2, np.bitwise_or, _bits("or"), samples=((6, 3), (True, False))),
    Scalar("xor", 2, np.bitwise_xor, _bits("xor"), samples=((6, 3), (True, False))),
    Scalar("not", 1, np.invert, {**_each("inline not", "int", "uint", "bool")}, samples=((6,), (True,))),
    Scalar("shl", 2, _shift_left, _each("inline shl", *_ALL_INT), cost=3, samples=((6, 3), (1, 70))),
    Scalar("shr", 2, _shift_right, _each("inline shr", *_ALL_INT), cost=3, samples=((-6, 1), (1, 70))),
    # types
    Scalar("cast", 1, lambda a: a, _each("inline cast", F, "int", "uint", "bool"), GIVEN, samples=_X),
    # rounding
    _float1("floor", np.floor, "@llvm.floor", 1),
    _float1("ceil", np.ceil, "@llvm.ceil", 1),
    _float1("trunc", np.trunc, "@llvm.trunc", 1),
    _float1("round", np.rint, "@llvm.roundeven", 1),
    # powers, exponentials, logarithms
    _float1("sqrt", np.sqrt, "@llvm.sqrt", 6, _POS),
    _float1("rsqrt", lambda a: 1 / np.sqrt(a), "inline rsqrt", 8, _POS),
    _float1("reciprocal", np.reciprocal, "inline reciprocal", 4),
    _float1("exp", np.exp, "inline exp", 12),
    _float1("exp2", np.exp2, "sleef exp2 u10", 12),
    _float1("expm1", np.expm1, "sleef expm1 u10", 20),
    _float1("log", np.log, "inline log", 14, _POS),
    _float1("log2", np.log2, "sleef log2 u10", 14, _POS),
    _float1("log10", np.log10, "sleef log10 u10", 14, _POS),
    _float1("log1p", np.log1p, "sleef log1p u10", 20, _POS),
    Scalar("scaleb", 2, _scaleb, {F: "inline scaleb"}, cost=10, samples=((1.5, 3.0), (-0.0, 200.0), (1e-30, 200.0), (3.0, -150.0), (1e-45, 149.0), (1.75, -1074.0), (1.5, 1030.0))),
    Scalar("pow", 2, np.power, {F: "sleef pow u10"}, cost=40, samples=((2.0, 3.0), (0.5, -1.5), (4.0, 0.5))),
    # trigonometry
    _float1("sin", np.sin, "sleef sin u10", 20),
    _float1("cos", np.cos, "sleef cos u10", 20),
    _float1("tan", np.tan, "sleef tan u10", 25),
    _float1("asin", np.arcsin, "sleef asin u10", 20, _UNIT),
    _float1("acos", np.arccos, "sleef acos u10", 20, _UNIT),
    _float1("atan", np.arctan, "sleef atan u10", 20),
    _float1("sinh", np.sinh, "sleef sinh u10", 25),
    _float1("cosh", np.cosh, "sleef cosh u10", 25),
    _float1("tanh", np.tanh, "inline tanh", 14),
    _float1("asinh", np.arcsinh, "inline asinh", 25),
    _float1("acosh", np.arccosh, "inline acosh", 25, ((1.0,), (2.5,), (100.0,))),
    _float1("atanh", np.arctanh, "sleef atanh u10", 25, ((-0.5,), (0.0,), (0.9,))),
    Scalar("atan2", 2, np.arctan2, {F: "sleef atan2 u10"}, cost=25, samples=_XY),
    Scalar("hypot", 2, np.hypot, {F: "sleef hypot u05"}, cost=20, samples=_XY),
    Scalar("copysign", 2, np.copysign, {F: "@llvm.copysign"}, samples=_XY),
    Scalar("nextafter", 2, np.nextafter, {F: "sleef nextafter -"}, cost=10, samples=_XY),
    # probability
    _float1("erf", _libm(math.erf), "inline erf", 16),
    _float1("erfc", _libm(math.erfc), "sleef erfc u15", 30),
    _float1("normal_cdf", _libm(_normal_cdf), "inline normal_cdf", 14),
    _float1("lgamma", _libm(math.lgamma, pole=math.inf), "sleef lgamma u10", 40, ((0.3,), (1.0,), (7.25,), (-2.5,))),
    _float1("sigmoid", lambda a: 1 / (1 + np.exp(-a)), "inline sigmoid", 16),
    # random numbers: of a seed, a counter and a place, the 32 bits that are always the same
    Scalar("philox", 3, philox, {"int": "draw"}, cost=20, samples=((0, 0, 0), (-1, -1, -1), (7, 1 << 40, 4 * 270335 + 3), (1 << 62, 5, 2))),
)  # fmt: skip

SCALARS: dict[str, Scalar] = {row.name: row for row in _ROWS}
assert len(SCALARS) == len(_ROWS), "a scalar operator is defined twice"
