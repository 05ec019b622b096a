"""The error function and its complement, the logarithm of gamma, and what needs care with magnitudes: of float32 and
float64.

In: numbers of a formula. Out: the number that is the result, within a few units in the last place.

Coefficients are found as in `gpu_exponential.py`.
"""

from __future__ import annotations

import math

from litz.codegen.llvm.gpu_exponential import exp, log
from litz.codegen.llvm.gpu_functions import Result, Table, when
from litz.codegen.llvm.gpu_trigonometry import cosine_of_rest, sine_of_rest
from litz.codegen.llvm.number import (
    Number,
    choose,
    choose_whole,
    fma,
    horner,
    nearest,
    of_bits,
    square_root,
    with_sign_of,
)

# Of erf(x) / x - 1 in x^2, for |x| <= 1; of float32, for |x| <= 1/2.
_ERF: Table = {
    "f32": (
        0.12837916612625122, -0.37612611055374146, 0.11282848566770554, -0.02675795368850231, 0.004718215670436621,
    ),
    "f64": (
        0.1283791670955126, -0.3761263890318411, 0.11283791670972065, -0.026866170648281285, 0.00522397765547714,
        -0.0008548328702464103, 0.00012055392196009789, -1.4927019115909157e-05, 1.6483113286472373e-06,
        -1.6576955058646027e-07, 1.6132026117848442e-08, -1.68642327460211e-09, 1.491481722970712e-10,
    ),
}  # fmt: skip
# Of (1 + 2x) exp(x^2) erfc(x) in (x - c) / (x + c), for x >= 0 as far as erfc(x) is not zero.
_ERFC: Table = {
    "f32": (
        1.2769783735275269, -0.09276413172483444, -0.16603004932403564, 0.16405755281448364, -0.05421729013323784,
        -0.008071738295257092, 0.008670397102832794, 0.001344713382422924, -0.00126666110008955,
        -0.00043164085946045816,
    ),
    "f64": (
        1.2329951186255526, -0.13962111684056322, 0.015379652102604916, 0.06809705425476817, -0.10103906603549578,
        0.09373283499607057, -0.06633036582961929, 0.03716751556744707, -0.016197733864094416, 0.005031969777648363,
        -0.0007577745506901625, -0.00019925600158503641, 0.00015062678504365517, -2.4400166386329136e-05,
        -1.1235148754872495e-05, 5.7085039640307024e-06, 3.1490019361766914e-07, -8.188047590001318e-07,
        5.457001453745979e-08, 1.0022660983125914e-07, -8.09873883630566e-09, -7.880966614785052e-09,
        1.7623194094720675e-10,
    ),
}  # fmt: skip
_CENTRE = {"f32": 2.0, "f64": 4.0}
_NOTHING_LEFT = {"f32": 10.2, "f64": 27.5}
# Of lgamma(1 + t) / t for -0.3 <= t <= 0.7, lgamma(2 + t) / t for -0.5 <= t <= 1, and lgamma(5 + t) for -2 <= t <= 3.
_GAMMA_1: Table = {
    "f32": (
        -0.5772156715393066, 0.8224668502807617, -0.40068355202674866, 0.2705935835838318, -0.20749644935131073,
        0.16940785944461823, -0.14205025136470795, 0.12403560429811478, -0.1234113946557045, 0.1253998875617981,
        -0.08947226405143738, 0.028738802298903465,
    ),
    "f64": (
        -0.5772156649015329, 0.8224670334241132, -0.40068563438652455, 0.2705808084277783, -0.20738555103025913,
        0.16955717700133724, -0.14404989663202492, 0.12550966900606922, -0.11133427134249634, 0.1000994869477387,
        -0.09095392052951258, 0.08335299070643006, -0.07693258657705525, 0.07144559357369153, -0.06669297716939854,
        0.062423383292563875, -0.05846847128965143, 0.055368131678572505, -0.05425735217372959, 0.05420540220523104,
        -0.05010981562708519, 0.03751352312560882, -0.020052652960361295, 0.006618562025921194,
        -0.0010029894873826754,
    ),
}  # fmt: skip
_GAMMA_2: Table = {
    "f32": (
        0.42278432846069336, 0.32246682047843933, -0.06735187023878098, 0.020586472004652023, -0.0073926723562181,
        0.0028526538517326117, -0.001142195425927639, 0.0005826634587720037, -0.00035052100429311395,
        0.00011153080413350835,
    ),
    "f64": (
        0.42278433509846713, 0.3224670334241131, -0.06735230105319577, 0.0205808084278047, -0.007385551028864354,
        0.002890510329873439, -0.0011927539053153053, 0.0005096695396693726, -0.00022315487028647205,
        9.945741330968473e-05, -4.492512273704008e-05, 2.0507073393549673e-05, -9.445832524396296e-06,
        4.380703064522724e-06, -2.0204705190983514e-06, 9.21791855559854e-07, -4.653712794647434e-07,
        2.8944856728109395e-07, -1.447522170234318e-07, -8.469687521998684e-10, 5.845180318366624e-08,
        -3.47287038221346e-08, 6.8406352903838395e-09,
    ),
}  # fmt: skip
_GAMMA_5: Table = {
    "f32": (
        3.178053855895996, 1.506117582321167, 0.11066122353076935, -0.008131264708936214, 0.0008932871278375387,
        -0.00011755520245060325, 1.6768592104199342e-05, -2.4820044473017333e-06, 4.803399633601657e-07,
        -1.0471113398580201e-07, 1.1363765040073304e-08,
    ),
    "f64": (
        3.1780538303479458, 1.5061176684318023, 0.11066147786855111, -0.008131622040887201, 0.0008928261747543721,
        -0.00011719326099072557, 1.7029874293341364e-05, -2.6421226109882475e-06, 4.2895272261599414e-07,
        -7.198436179751046e-08, 1.2386078401634301e-08, -2.1738670919266696e-09, 3.8767306298877137e-10,
        -6.958359377675904e-11, 1.2515585664877257e-11, -2.437252795495619e-12, 5.185667221550128e-13,
        -6.461874563787649e-14, -6.002782257522812e-15, -3.3290945229753366e-15, 3.844225447493242e-15,
        -4.6101802893999035e-16, -2.620836176965776e-16, 6.082894359502783e-17, 8.44791312691594e-18,
        -3.817909058587375e-18, 3.263745627404112e-19,
    ),
}  # fmt: skip
# Of what Stirling's formula leaves, times x, in 1 / x^2, for x >= 8.
_STIRLING: Table = {
    "f32": (0.08333330601453781, -0.002765069482848048),
    "f64": (
        0.08333333333333333, -0.0027777777777577926, 0.0007936507764346866, -0.0005952322396525914,
        0.0008407770598295902, -0.001832772470965602, 0.0026682733271369764, 0.03945013599133232,
    ),
}  # fmt: skip
_HALF_LOG_2_PI_LESS_HALF = 0.4189385332046727


# -- errors -------------------------------------------------------------------------------------------
def erf(x: Number) -> Number:
    return choose(abs(x) < 1.0, _erf_of_small(x), with_sign_of(1.0 - _erfc_of_positive(abs(x)), x))


def erfc(x: Number) -> Number:
    y = _erfc_of_positive(abs(x))
    return choose(abs(x) < 0.5, 1.0 - _erf_of_small(x), choose(x < 0.0, 2.0 - y, y))


def _erf_of_small(x: Number) -> Number:
    return fma(horner(x * x, _ERF[x.m.dtype]), x, x)


def _erfc_of_positive(x: Number) -> Number:
    most, centre = _NOTHING_LEFT[x.m.dtype], _CENTRE[x.m.dtype]
    x = choose(x > most, most, x)
    smooth = horner((x - centre) / (x + centre), _ERFC[x.m.dtype]) / fma(x, 2.0, 1.0)
    square = x * x
    y = smooth * exp(-square)
    return fma(-fma(x, x, -square), y, y)  # what the square has lost in rounding is in the exponent


# -- gamma --------------------------------------------------------------------------------------------
def lgamma(x: Number) -> Number:
    size, dtype = abs(x), x.m.dtype
    found = Result(x.m, horner(size - 5.0, _GAMMA_5[dtype]))
    with when(size >= 8.0):
        inverse = 1.0 / size
        tail = inverse * horner(inverse * inverse, _STIRLING[dtype])
        found.set(fma(size - 0.5, log(size) - 1.0, tail + _HALF_LOG_2_PI_LESS_HALF))
    with when(size < 3.0):
        t = size - 2.0
        found.set(t * horner(t, _GAMMA_2[dtype]))
    with when(size < 1.5):
        below = size < 0.7
        t = choose(below, size, size - 1.0)
        near = t * horner(t, _GAMMA_1[dtype])
        found.set(choose(below, near - log(size), near))
    with when(x < -(2.0**-60)):  # nearer to zero, the sign makes no difference
        found.set(_reflected(size, found.get()))
    y = choose(size.eq(math.inf), math.inf, found.get())
    return choose(x.is_nan(), x, y)


def _reflected(size: Number, of_size: Number) -> Number:
    """lgamma(-x) = log(pi / (x |sin(pi x)|)) - lgamma(x); infinite where x is whole."""
    off = abs(size - nearest(size))
    near = off <= 0.25
    angle = choose(near, off, 0.5 - off) * math.pi
    sine = choose(near, sine_of_rest(angle), cosine_of_rest(angle))
    y = log(math.pi / (size * sine)) - of_size
    return choose(off.eq(0.0), math.inf, y)


# -- magnitudes ---------------------------------------------------------------------------------------
def hypot(x: Number, y: Number) -> Number:
    """Scaled by powers of two, so that no square overflows or vanishes."""
    far, scale = (2.0**60, 2.0**-80) if x.m.dtype == "f32" else (2.0**500, 2.0**-600)
    a, b = abs(x), abs(y)
    more = a > b
    large, small = choose(more, a, b), choose(more, b, a)
    up, down = large > far, large < 1.0 / far
    factor = choose(up, scale, choose(down, 1.0 / scale, 1.0))
    back = choose(up, 1.0 / scale, choose(down, scale, 1.0))
    large, small = large * factor, small * factor
    found = square_root(fma(large, large, small * small)) * back
    return choose(a.eq(math.inf) | b.eq(math.inf), math.inf, found)


def nextafter(x: Number, y: Number) -> Number:
    """Numbers of one sign are ordered as their bits are."""
    bits = x.bits()
    away = choose_whole(((y > x) & (x > 0.0)) | ((y < x) & (x < 0.0)), 1, -1)
    found = of_bits(bits + away)
    least = of_bits((bits & 0) + 1)
    found = choose(x.eq(0.0), with_sign_of(least, y), found)
    found = choose(x.eq(y), y, found)
    return choose(x.is_nan() | y.is_nan(), x + y, found)


__all__ = ["erf", "erfc", "hypot", "lgamma", "nextafter"]
