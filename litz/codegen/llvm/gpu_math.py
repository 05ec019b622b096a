"""Functions for a GPU: those that it has better means for than polynomials alone, its own powers of two and
reciprocals, and those that come from a library elsewhere.

In: as of `math.py`. Out: the text of the result. The hardware's approximations are good to two units in the last
place, which is what eager's kernels have too. Where a result is rounded to 16 bits in any case (`codegen/coarse.py`
says where), the functions of `COARSE` do: they are good to 15 bits or more of it, at half of the cost; or to 10 where
it is a bfloat16, which has 8, and that saves as much again.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from litz.codegen.coarse import BITS
from litz.codegen.llvm import gpu_exponential, gpu_special, gpu_trigonometry
from litz.codegen.llvm.arithmetic import Arithmetic
from litz.codegen.llvm.gpu_functions import Formula, Own, called
from litz.codegen.llvm.math import LOG2_OF_TAIL, NO_TAIL

_LOG2E = struct.unpack("<f", struct.pack("<f", math.log2(math.e)))[0]
_LOG2E_REST = math.log2(math.e) - _LOG2E


def _each(m: Arithmetic, function: str, x: str) -> str:
    """An intrinsic of one number, for every lane."""
    m.w.module.declare(f"declare float @{function}(float)")
    if m.lanes == 1:
        return m.w.let(f"call float @{function}(float {x})")
    whole = "poison"
    for lane in range(m.lanes):
        one = m.w.let(f"extractelement {m.t} {x}, i32 {lane}")
        done = m.w.let(f"call float @{function}(float {one})")
        whole = m.w.let(f"insertelement {m.t} {whole}, float {done}, i32 {lane}")
    return whole


def _exp(m: Arithmetic, args: Sequence[str]) -> str:
    # Two to the t, and one more factor for what the product has lost in rounding. Within the bounds nothing there is
    # infinite; NaN goes through.
    x = m.w.intrinsic("llvm.minimum", m.t, args[0], m.c(150.0))
    x = m.w.intrinsic("llvm.maximum", m.t, x, m.c(-150.0))
    t = m.i("fmul", x, m.c(_LOG2E))
    lost = m.fma(x, m.c(_LOG2E), m.w.let(f"fneg {m.t} {t}"))
    lost = m.fma(x, m.c(_LOG2E_REST), lost)
    return m.i("fmul", _each(m, "llvm.nvvm.ex2.approx.f", t), m.fma(lost, m.c(math.log(2.0)), m.c(1.0)))


def _one_over(m: Arithmetic, args: Sequence[str]) -> str:
    return _each(m, "llvm.nvvm.rcp.approx.ftz.f", args[0])


def _rsqrt(m: Arithmetic, args: Sequence[str]) -> str:
    return _each(m, "llvm.nvvm.rsqrt.approx.f", args[0])


def _normal_cdf(m: Arithmetic, args: Sequence[str]) -> str:
    # As in `math.py`, with the tail two to its logarithm.
    size = m.fabs(args[0])
    beyond = m.cmp("ogt", size, m.c(NO_TAIL))
    t = m.horner(m.select(beyond, m.c(NO_TAIL), size), LOG2_OF_TAIL)
    tail = m.select(beyond, m.c(0.0), _each(m, "llvm.nvvm.ex2.approx.f", t))
    return m.select(m.cmp("ogt", args[0], m.c(0.0)), m.i("fsub", m.c(1.0), tail), tail)


def _exp2(m: Arithmetic, args: Sequence[str]) -> str:
    return _each(m, "llvm.nvvm.ex2.approx.f", args[0])


def _max(m: Arithmetic, args: Sequence[str]) -> str:
    return m.w.intrinsic("llvm.maximum", m.t, *args)


def _min(m: Arithmetic, args: Sequence[str]) -> str:
    return m.w.intrinsic("llvm.minimum", m.t, *args)


# Of both types; what the hardware or `math.py` has for float32 is not among them.
_OF_ANY_TYPE: dict[str, Formula] = {
    "expm1": gpu_exponential.expm1, "log2": gpu_exponential.log2, "log10": gpu_exponential.log10,
    "log1p": gpu_exponential.log1p, "logaddexp": gpu_exponential.logaddexp, "pow": gpu_exponential.power,
    "sinh": gpu_exponential.sinh, "cosh": gpu_exponential.cosh, "asinh": gpu_exponential.asinh,
    "acosh": gpu_exponential.acosh, "atanh": gpu_exponential.atanh,
    "sin": gpu_trigonometry.sin, "cos": gpu_trigonometry.cos, "tan": gpu_trigonometry.tan,
    "asin": gpu_trigonometry.asin, "acos": gpu_trigonometry.acos, "atan": gpu_trigonometry.atan,
    "atan2": gpu_trigonometry.atan2,
    "erfc": gpu_special.erfc, "lgamma": gpu_special.lgamma, "hypot": gpu_special.hypot,
    "nextafter": gpu_special.nextafter,
}  # fmt: skip
_LONG = ("lgamma", "logaddexp")  # a scan has many of the latter
_OF_DOUBLES: dict[str, Formula] = {
    "exp": gpu_exponential.exp, "exp2": gpu_exponential.exp2, "log": gpu_exponential.log,
    "tanh": gpu_exponential.tanh, "erf": gpu_special.erf,
}  # fmt: skip

OWN: dict[tuple[str, str], Own] = {
    ("exp", "f32"): _exp, ("exp2", "f32"): _exp2, ("one_over", "f32"): _one_over, ("rsqrt", "f32"): _rsqrt,
    ("normal_cdf", "f32"): _normal_cdf, ("max", "f32"): _max, ("min", "f32"): _min,
    **{
        (name, dtype): called(name, formula, name in _LONG)
        for name, formula in _OF_ANY_TYPE.items()
        for dtype in ("f32", "f64")
    },
    **{(name, "f64"): called(name, formula) for name, formula in _OF_DOUBLES.items()},
}  # fmt: skip


# -- of results that are rounded to 16 bits -------------------------------------------------------------
def _coarse_exp(m: Arithmetic, args: Sequence[str]) -> str:
    # One factor with what the argument was multiplied by, if it was.
    return _coarse_exp2(m, [m.i("fmul reassoc", args[0], m.c(_LOG2E))])


def _coarse_exp2(m: Arithmetic, args: Sequence[str]) -> str:
    return _each(m, "llvm.nvvm.ex2.approx.ftz.f", args[0])


def _coarse_exp_of_difference(m: Arithmetic, args: Sequence[str]) -> str:
    # What is subtracted is often the same for a whole row, and multiplied once for it.
    a, b = args
    less = m.w.let(f"fneg {m.t} {m.i('fmul', b, m.c(_LOG2E))}")
    return _each(m, "llvm.nvvm.ex2.approx.ftz.f", m.fma(a, m.c(_LOG2E), less))


def _odds_sigmoid(m: Arithmetic, args: Sequence[str]) -> str:
    """1 / sigmoid(x) - 1"""
    return _coarse_exp2(m, [m.i("fmul", args[0], m.c(-_LOG2E))])


def _share(odds: Own) -> Own:
    return lambda m, args: _one_over(m, [m.i("fadd", odds(m, args), m.c(1.0))])


def _share_times(odds: Own) -> Own:
    """Times a constant, of which the inverse is given."""

    def times(m: Arithmetic, args: Sequence[str]) -> str:
        x, inverse = args
        return _one_over(m, [m.fma(odds(m, [x]), inverse, inverse)])

    return times


_TANH_IS_X = 2.0**-7  # below, to 15 bits


def _coarse_tanh(m: Arithmetic, args: Sequence[str]) -> str:
    # 1 - 2 / (1 + exp(2x)); near zero that would cancel.
    e = _each(m, "llvm.nvvm.ex2.approx.ftz.f", m.i("fmul", args[0], m.c(2 * _LOG2E)))
    y = m.fma(_one_over(m, [m.i("fadd", e, m.c(1.0))]), m.c(-2.0), m.c(1.0))
    return m.select(m.cmp("olt", m.fabs(args[0]), m.c(_TANH_IS_X)), args[0], y)


# As LOG2_OF_TAIL, fitted to 15 bits of the tail: weighted least squares, weighted anew by the error 300 times.
_COARSE_LOG2_OF_TAIL = (
    -1.0000433921813965, -1.1504753828048706, -0.46058669686317444, -0.05174973979592323, 0.007403561845421791,
    -0.0006461100419983268, 2.5182631361531094e-05,
)  # fmt: skip


def _coarse_normal_cdf(m: Arithmetic, args: Sequence[str]) -> str:
    size = m.fabs(args[0])
    t = m.horner(m.w.intrinsic("llvm.minimum", m.t, size, m.c(NO_TAIL)), _COARSE_LOG2_OF_TAIL)
    tail = _each(m, "llvm.nvvm.ex2.approx.ftz.f", t)
    tail = m.select(m.cmp("ogt", size, m.c(NO_TAIL)), m.c(0.0), tail)
    return m.select(m.cmp("ogt", args[0], m.c(0.0)), m.i("fsub", m.c(1.0), tail), tail)


def _coarse_div(m: Arithmetic, args: Sequence[str]) -> str:
    m.w.module.declare("declare float @llvm.nvvm.div.full(float, float)")
    parts = []
    for lane in range(m.lanes):
        a, b = args if m.lanes == 1 else (m.w.let(f"extractelement {m.t} {x}, i32 {lane}") for x in args)
        parts.append(m.w.let(f"call float @llvm.nvvm.div.full(float {a}, float {b})"))
    if m.lanes == 1:
        return parts[0]
    whole = "poison"
    for lane, part in enumerate(parts):
        whole = m.w.let(f"insertelement {m.t} {whole}, float {part}, i32 {lane}")
    return whole


# Of 1 / cdf(x) - 1, the logarithm to base two, over x, in x^2: fitted as the coefficients of `gpu_exponential.py` are,
# for 10 bits of the cdf where x > -4. From there on the error may grow as the root of 1 / (x cdf(x)) does: it is one in
# a hundred at -5, of what is less than a millionth.
_LOG2_OF_ODDS = (-2.297462224960327, -0.10936643183231354, 0.0014116454403847456, -1.2460237485356629e-05)


def _odds_normal_cdf(m: Arithmetic, args: Sequence[str]) -> str:
    """1 / cdf(x) - 1. No side is chosen and nothing is bounded: far away it is zero or infinite, as its inverse is."""
    x = args[0]
    return _coarse_exp2(m, [m.i("fmul", x, m.horner(m.i("fmul", x, x), _LOG2_OF_ODDS))])


_COARSE: dict[str, Own] = {
    "exp": _coarse_exp, "exp of difference": _coarse_exp_of_difference, "exp2": _coarse_exp2,
    "sigmoid": _share(_odds_sigmoid), "sigmoid times": _share_times(_odds_sigmoid), "tanh": _coarse_tanh,
    "normal_cdf": _coarse_normal_cdf, "div": _coarse_div,
}  # fmt: skip
COARSE: dict[tuple[str, int], Own] = {
    **{(name, bits): function for name, function in _COARSE.items() for bits in BITS.values()},
    ("normal_cdf", BITS["bf16"]): _share(_odds_normal_cdf),
    ("normal_cdf times", BITS["bf16"]): _share_times(_odds_normal_cdf),
}

__all__ = ["COARSE", "OWN"]
