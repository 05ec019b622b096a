"""Exponentials, logarithms, powers and hyperbolic functions, of float32 and float64.

In: numbers of a formula. Out: the number that is the result, within two units in the last place or so.

Coefficients are minimax fits (Remez's exchange in 60 digits, weighted for the relative error of the result; the first
ones rounded to the type one after the other, the rest fitted again each time). Constants in parts are each the number
nearest to what the parts before it leave.
"""

from __future__ import annotations

import math

from litz.codegen.llvm.gpu_functions import Table, inverse
from litz.codegen.llvm.number import (
    Condition,
    Number,
    as_number,
    choose,
    fma,
    horner,
    nearest,
    of_bits,
    square_root,
    truncated,
    with_sign_of,
)

LN2: Table = {
    "f32": (0.6931471824645996, -1.9046542121259336e-09), "f64": (0.6931471805599453, 2.3190468138462996e-17),
}  # fmt: skip
_LOG2E: Table = {
    "f32": (1.4426950216293335, 1.925963033500011e-08), "f64": (1.4426950408889634, 2.0355273740931033e-17),
}  # fmt: skip
_LOG10E: Table = {
    "f32": (0.4342944920063019, -1.0103049952192578e-08), "f64": (0.4342944819032518, 1.098319650216765e-17),
}  # fmt: skip
_LOG10_OF_2: Table = {
    "f32": (0.3010300099849701, -1.432098883924482e-08), "f64": (0.3010299956639812, -2.8037281277851704e-18),
}  # fmt: skip
_TWELFTH: Table = {
    "f32": (0.0833333358168602, -2.4835269396561444e-09), "f64": (0.08333333333333333, 4.625929269271485e-18),
}  # fmt: skip
# Of (exp(r) - 1 - r) / r^2, for |r| <= log(2) / 2.
_EXP: Table = {
    "f32": (0.5, 0.16666539013385773, 0.04166661202907562, 0.008367099799215794, 0.0013917606556788087),
    "f64": (
        0.5, 0.16666666666666677, 0.04166666666666667, 0.008333333333321483, 0.001388888888887862, 0.00019841269886272,
        2.4801587350676303e-05, 2.755724423107227e-06, 2.7557238653040795e-07, 2.5108991535908565e-08,
        2.0929429737754382e-09,
    ),
}  # fmt: skip
# Of (log((1 + s) / (1 - s)) / s - 2) / z, z = s^2, for 1 + f = (1 + s) / (1 - s) between the roots of 1/2 and 2.
_LOG: Table = {
    "f32": (0.6666677594184875, 0.3997756838798523, 0.29871460795402527),
    "f64": (
        0.6666666666666735, 0.3999999999940937, 0.2857142874368122, 0.22222198429623377, 0.18183572317264332,
        0.1531383321497064, 0.1479824752484618,
    ),
}  # fmt: skip
# Of (log((1 + q/2) / (1 - q/2)) - q - q^3/12) / q^5, in q^2.
_LOG_REST: Table = {
    "f32": (0.01250004768371582, 0.0022302414290606976, 0.0004574150370899588),
    "f64": (
        0.012499999999999994, 0.002232142857144052, 0.00043402777769103003, 8.877841233111463e-05,
        1.8779978412622508e-05, 4.0699064101711624e-06, 8.907833030832607e-07, 2.2855163988093725e-07,
    ),
}  # fmt: skip
# Of (sinh(x) / x - 1) / s and (tanh(x) / x - 1) / s, s = x^2, for |x| <= 1 and |x| <= 0.55.
_SINH: Table = {
    "f32": (0.1666666716337204, 0.008333311416208744, 0.00019842635083477944, 2.7839255380968098e-06),
    "f64": (
        0.16666666666666669, 0.008333333333332915, 0.00019841269841589242, 2.755731910848901e-06,
        2.5052130674197688e-08, 1.6056687289344957e-10, 7.775682797327298e-13,
    ),
}  # fmt: skip
_TANH: Table = {
    "f64": (
        -0.3333333333333333, 0.1333333333333293, -0.05396825396794825, 0.021869488524503093, -0.008863235269279561,
        0.0035921243173294235, -0.0014557988788289746, 0.0005897949373115826, -0.0002380771008656476,
        9.365594415152248e-05, -3.256088132647308e-05, 7.218835552482213e-06,
    ),
}  # fmt: skip
_MANTISSA = {"f32": 23, "f64": 52}
_BIAS = {"f32": 127, "f64": 1023}
_TINY = {"f32": 2.0**-126, "f64": 2.0**-1022}  # numbers below are denormal
_ROOT_OF_HALF = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}  # its bits
# Beyond these, exp(x) is infinite, even halved, or zero; and expm1(x) -1 or infinite.
_EXP_RANGE = {"f32": (-105.0, 90.0), "f64": (-746.0, 712.0)}
_EXPM1_RANGE = {"f32": (-20.0, 88.8), "f64": (-40.0, 709.9)}
_LARGE = {"f32": 1e6, "f64": 1e9}  # one beside the square of such a number is nothing


# -- exponentials -----------------------------------------------------------------------------------
def _between(x: Number, low: float, high: float) -> Number:
    """The nearest number in these bounds; what is no number stays so."""
    x = choose(x > high, high, x)
    return choose(x < low, low, x)


def _reduced(x: Number) -> tuple[Number, Number]:
    """The number of times that log(2) goes into it, and the rest."""
    high, low = LN2[x.m.dtype]
    n = nearest(x * _LOG2E[x.m.dtype][0])
    return n, fma(n, -low, fma(n, -high, x))


def _exp_rest(r: Number) -> Number:
    """exp(r) - 1 - r"""
    return r * r * horner(r, _EXP[r.m.dtype])


def _scaled(y: Number, n: Number) -> Number:
    """Times two to a whole number, in two factors: neither overflows, and the result may be infinite or denormal."""
    dtype, whole = y.m.dtype, n.whole()
    half = whole >> 1
    for exponent in (half, whole - half):
        y = y * of_bits((exponent + _BIAS[dtype]) << _MANTISSA[dtype])
    return y


def exp(x: Number, halvings: float = 0.0) -> Number:
    """`halvings`: how often the result, which may be infinite, is halved."""
    n, r = _reduced(_between(x, *_EXP_RANGE[x.m.dtype]))
    return _scaled(1.0 + (r + _exp_rest(r)), n - halvings if halvings else n)


def exp2(x: Number) -> Number:
    high, low = LN2[x.m.dtype]
    x = _between(x, -1080.0, 1030.0)
    n = nearest(x)
    part = x - n
    r = part * high
    lost = fma(part, low, fma(part, high, -r))
    return _scaled(1.0 + (r + (lost + _exp_rest(r))), n)


def expm1(x: Number) -> Number:
    x = _between(x, *_EXPM1_RANGE[x.m.dtype])
    n, r = _reduced(x)
    high, low = LN2[x.m.dtype]
    lost = fma(n, -low, fma(n, -high, x) - r)  # what the rest has lost in rounding
    near = r + (_exp_rest(r) + lost)
    half = _scaled(Number(x.m, x.m.c(1.0)), n - 1.0)  # of two to the n, which may be infinite
    y = choose(n.eq(0.0), near, fma(half, near, half - 0.5) * 2.0)
    return with_sign_of(y, x)


# -- logarithms -------------------------------------------------------------------------------------
def _log_parts(x: Number) -> tuple[Number, Number]:
    """k and f of a positive number, which is 2^k * (1 + f)."""
    dtype = x.m.dtype
    bits_of_mantissa = _MANTISSA[dtype]
    lift = 2.0 ** (bits_of_mantissa + 1)
    tiny = x < _TINY[dtype]
    bits = choose(tiny, x * lift, x).bits()
    exponent = (bits - _ROOT_OF_HALF[dtype]) >> bits_of_mantissa
    k = as_number(exponent) - choose(tiny, bits_of_mantissa + 1.0, 0.0)
    return k, of_bits(bits - (exponent << bits_of_mantissa)) - 1.0


def _log_rest(f: Number) -> Number:
    """log(1 + f) - f"""
    s = f * inverse(f + 2.0)
    z = s * s
    half_square = 0.5 * f * f
    return fma(s, half_square + z * horner(z, _LOG[f.m.dtype]), -half_square)


def _of_positive(x: Number, y: Number) -> Number:
    """A logarithm at its limits."""
    y = choose(x.eq(math.inf), math.inf, y)
    y = choose(x.eq(0.0), -math.inf, y)
    return choose(x >= 0.0, y, math.nan)


def log(x: Number) -> Number:
    high, low = LN2[x.m.dtype]
    k, f = _log_parts(x)
    return _of_positive(x, fma(k, high, f + fma(k, low, _log_rest(f))))


def log2(x: Number) -> Number:
    k, f = _log_parts(x)
    return _of_positive(x, k + _times(f, _log_rest(f), _LOG2E[x.m.dtype]))


def log10(x: Number) -> Number:
    high, low = _LOG10_OF_2[x.m.dtype]
    k, f = _log_parts(x)
    return _of_positive(x, fma(k, high, fma(k, low, _times(f, _log_rest(f), _LOG10E[x.m.dtype]))))


def _times(f: Number, rest: Number, factor: tuple[float, ...]) -> Number:
    high, low = factor
    return fma(f, high, fma(rest, high, f * low))


def log1p(x: Number) -> Number:
    """log(u) with u = 1 + x, and what u has lost in rounding; near zero, x itself is what the series takes."""
    high, low = LN2[x.m.dtype]
    u = x + 1.0
    lost = choose(x > 1.0, 1.0 - (u - x), x - (u - 1.0)) * inverse(u)
    k, f = _log_parts(u)
    near = (x > -0.29) & (x < 0.41)
    k, f, lost = choose(near, 0.0, k), choose(near, x, f), choose(near, 0.0, lost)
    y = fma(k, high, f + (fma(k, low, _log_rest(f)) + lost))
    y = choose(x.eq(math.inf), math.inf, y)
    y = choose(x.eq(-1.0), -math.inf, y)
    return with_sign_of(choose(x >= -1.0, y, math.nan), x)


def logaddexp(x: Number, y: Number) -> Number:
    """log(exp(x) + exp(y)), which is what a scan of it joins."""
    apart = choose(x.eq(y), 0.0, x - y)  # equal infinities are not apart
    return choose(x > y, x, y) + log1p(exp(-abs(apart)))


# -- powers -----------------------------------------------------------------------------------------
def power(x: Number, y: Number) -> Number:
    """Two to y * log2(|x|), the logarithm in two numbers: its error is multiplied by as much as the exponent."""
    dtype, size = x.m.dtype, abs(x)
    high, low = _log2_in_two(size)
    t = y * high
    rest = fma(y, high, -t) + y * low
    limit = 2.0 * _BIAS[dtype]
    beyond = abs(t) > limit
    t, rest = _between(t, -limit, limit), choose(beyond, 0.0, rest)
    n = nearest(t)
    part = t - n
    ln2, ln2_low = LN2[dtype]
    r = part * ln2
    lost = fma(part, ln2, -r) + fma(part, ln2_low, rest * ln2)
    p = r + _exp_rest(r)
    found = _scaled(1.0 + fma(lost, p + 1.0, p), n)
    return _power_at_limits(x, y, size, found)


def _log2_in_two(x: Number) -> tuple[Number, Number]:
    """log(1 + f) = q + q^3/12 + q^5 P(q^2) with q = 2f / (2 + f); all but the last term in two numbers."""
    dtype = x.m.dtype
    k, f = _log_parts(x)
    r = inverse(f + 2.0)
    q = 2.0 * f * r
    q_low = r * fma(-q, f, 2.0 * (f - q))
    square = q * q
    square_low = fma(2.0 * q, q_low, fma(q, q, -square))
    cube = square * q
    cube_low = fma(square, q, -cube) + fma(square, q_low, square_low * q)
    twelfth, twelfth_low = _TWELFTH[dtype]
    third = cube * twelfth
    third_low = fma(cube, twelfth, -third) + fma(cube, twelfth_low, cube_low * twelfth)
    high = q + third
    low = (third - (high - q)) + (q_low + fma(cube * square, horner(square, _LOG_REST[dtype]), third_low))
    scale, scale_low = _LOG2E[dtype]
    log = high * scale
    log_low = fma(high, scale, -log) + fma(high, scale_low, low * scale)
    whole = k + log
    rest = (log - (whole - k)) + log_low
    total = whole + rest
    return total, rest - (total - whole)


def _power_at_limits(x: Number, y: Number, size: Number, found: Number) -> Number:
    zero, endless = size.eq(0.0), size.eq(math.inf)
    vanishes = (zero & (y > 0.0)) | (endless & (y < 0.0))
    found = choose(zero | endless, choose(vanishes, 0.0, math.inf), found)
    is_whole = truncated(y).eq(y)
    is_odd = is_whole & truncated(y * 0.5).ne(y * 0.5)
    found = choose(_is_negative(x) & is_odd, -found, found)
    found = choose((x < 0.0) & ~is_whole & ~endless, math.nan, found)
    found = choose(x.is_nan() | y.is_nan(), x + y, found)
    certain = y.eq(0.0) | x.eq(1.0) | (size.eq(1.0) & abs(y).eq(math.inf))
    return choose(certain, 1.0, found)


def _is_negative(x: Number) -> Condition:
    """A minus zero too."""
    return x.bits() < 0


# -- hyperbolic functions ---------------------------------------------------------------------------
def sinh(x: Number) -> Number:
    s = x * x
    near = fma(x * s, horner(s, _SINH[x.m.dtype]), x)
    half = exp(abs(x), halvings=1.0)
    return with_sign_of(choose(abs(x) < 1.0, near, half - 0.25 / half), x)


def cosh(x: Number) -> Number:
    half = exp(abs(x), halvings=1.0)
    return half + 0.25 / half


def tanh(x: Number) -> Number:
    s = x * x
    near = fma(x * s, horner(s, _TANH[x.m.dtype]), x)
    far = 1.0 - 2.0 / (exp(2.0 * abs(x)) + 1.0)
    return with_sign_of(choose(abs(x) < 0.55, near, far), x)


def asinh(x: Number) -> Number:
    size = abs(x)
    square = size * size
    near = size + square / (square_root(square + 1.0) + 1.0)
    return with_sign_of(_log_of_sum(size, near), x)


def acosh(x: Number) -> Number:
    beyond = x - 1.0
    found = _log_of_sum(x, beyond + square_root(beyond * (beyond + 2.0)))
    return choose(x >= 1.0, found, math.nan)


def _log_of_sum(x: Number, near: Number) -> Number:
    """log(1 + near); of a large number, log(2x)."""
    large = x > _LARGE[x.m.dtype]
    return log1p(choose(large, x - 1.0, near)) + choose(large, math.log(2.0), 0.0)


def atanh(x: Number) -> Number:
    size = abs(x)
    return with_sign_of(0.5 * log1p(2.0 * size / (1.0 - size)), x)


__all__ = [
    "LN2", "acosh", "asinh", "atanh", "cosh", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2",
    "logaddexp", "power", "sinh", "tanh",
]  # fmt: skip
