"""Sines, tangents and their inverses, of float32 and float64.

In: numbers of a formula. Out: the number that is the result, within two units in the last place or so. An angle is
reduced to an eighth of a turn: by multiples of a quarter in three parts, or, where it is so large that they do not
reach, by whole numbers of 192 bits.

Coefficients are found as in `gpu_exponential.py`.
"""

from __future__ import annotations

import math
from itertools import pairwise

from litz.codegen.llvm.gpu_functions import Result, Table, when
from litz.codegen.llvm.number import (
    Integer,
    Number,
    choose,
    fma,
    horner,
    nearest,
    square_root,
    with_sign_of,
)
from litz.codegen.llvm.writer import Module, Writer, literal

_HALF_PI: Table = {
    "f32": (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    "f64": (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
_FAR = {"f32": 105615.0, "f64": 2.0**30}  # angles that those parts reach
# Of (sin(r) / r - 1) / s, (cos(r) - 1 + s/2) / s^2 and (tan(r) / r - 1) / s, s = r^2, for |r| <= pi / 4.
SIN: Table = {
    "f32": (-0.16666655242443085, 0.008332191035151482, -0.00019518604676704854),
    "f64": (
        -0.16666666666666632, 0.008333333333322483, -0.0001984126982984897, 2.7557313703148686e-06,
        -2.5050759542725707e-08, 1.5896864186356276e-10,
    ),
}  # fmt: skip
COS: Table = {
    "f32": (0.04166664555668831, -0.00138873013202101, 2.443066841806285e-05),
    "f64": (
        0.0416666666666666, -0.0013888888888874467, 2.4801587289664506e-05, -2.7557314398327713e-07,
        2.087572883869499e-09, -1.1359908015194694e-11,
    ),
}  # fmt: skip
_TAN: Table = {
    "f32": (
        0.33333349227905273, 0.13332675397396088, 0.05405891314148903, 0.02128620631992817, 0.010827457532286644,
        9.821398998610675e-05, 0.004372721072286367,
    ),
    "f64": (
        0.3333333333333338, 0.13333333333325342, 0.0539682539729031, 0.02186948839932488, 0.008863237922070442,
        0.003592100886730963, 0.0014560454935020554, 0.0005888648607431183, 0.0002437503336571822,
        8.355982896250636e-05, 6.722221528149668e-05, -2.563666328066865e-05, 4.8640347896449355e-05,
        -2.4277071916445138e-05, 9.799946633890652e-06,
    ),
}  # fmt: skip
# Of (asin(x) / x - 1) / s and (atan(x) / x - 1) / s, s = x^2, for |x| <= 1/2 and |x| <= 1.
_ASIN: Table = {
    "f32": (0.16666753590106964, 0.07495249062776566, 0.04547666013240814, 0.0241481214761734, 0.04221982881426811),
    "f64": (
        0.16666666666666763, 0.07499999999970117, 0.044642857175273894, 0.03038194267570301, 0.02237221589718168,
        0.017351595613515736, 0.013981017584819925, 0.011397298070486242, 0.01078930622058971, 0.003672197543829446,
        0.02179071285116901, -0.02111693615906074, 0.03270236905448305,
    ),
}  # fmt: skip
_ATAN: Table = {
    "f32": (
        -0.33333152532577515, 0.19993767142295837, -0.14211001992225647, 0.10665769129991531, -0.07551660388708115,
        0.04320472851395607, -0.01636318489909172, 0.0029194194357842207,
    ),
    "f64": (
        -0.3333333333333307, 0.19999999999951748, -0.14285714282587963, 0.11111111007337637, -0.09090907007711836,
        0.07692279887814461, -0.06666404413854314, 0.058805297498990015, -0.05253526519735605, 0.04722347482765547,
        -0.04219241328711808, 0.03664311576877758, -0.029905680171419795, 0.021986998383567165, -0.013902504797973864,
        0.007197833457134574, -0.002885582138136629, 0.0008315496307222286, -0.0001522089274446703,
        1.3229773883747964e-05,
    ),
}  # fmt: skip


# -- of an angle --------------------------------------------------------------------------------------
def sine_of_rest(r: Number) -> Number:
    s = r * r
    return fma(r * s, horner(s, SIN[r.m.dtype]), r)


def cosine_of_rest(r: Number) -> Number:
    s = r * r
    half = 0.5 * s
    near = 1.0 - half
    return near + fma(s * s, horner(s, COS[r.m.dtype]), (1.0 - near) - half)


def sin(x: Number) -> Number:
    r, quarters = _reduced(x)
    return choose(x.eq(0.0), x, _wave(r, quarters))


def cos(x: Number) -> Number:
    r, quarters = _reduced(x)
    return _wave(r, quarters + 1)


def _wave(r: Number, quarters: Integer) -> Number:
    """The sine of a rest and of as many quarters of a turn."""
    y = choose((quarters & 1).ne(0), cosine_of_rest(r), sine_of_rest(r))
    return choose((quarters & 2).ne(0), -y, y)


def tan(x: Number) -> Number:
    r, quarters = _reduced(x)
    s = r * r
    t = fma(r * s, horner(s, _TAN[r.m.dtype]), r)
    return choose(x.eq(0.0), x, choose((quarters & 1).ne(0), -1.0 / t, t))


def _reduced(x: Number) -> tuple[Number, Integer]:
    """What is left of an angle after quarters of a turn, and how many, of which the last two bits count."""
    m = x.m
    n = nearest(x * (2.0 / math.pi))
    r = x
    for part in _HALF_PI[m.dtype]:
        r = fma(n, -part, r)
    rest, quarters = Result(m, r), m.w.slot(m.int_t, 8)
    m.w.emit(f"store {m.int_t} {n.whole().text}, ptr {quarters}")
    with when(abs(x) >= _FAR[m.dtype]):
        wide = x.text if m.dtype == "f64" else m.cast("fpext", x.text, m.t, "double")
        function = _reduced_far(m.w.module)
        pair = m.w.let(f"call {_PAIR} @{function}(double {wide})")
        far = m.w.let(f"extractvalue {_PAIR} {pair}, 0")
        count = m.w.let(f"extractvalue {_PAIR} {pair}, 1")
        if m.dtype != "f64":
            far, count = m.cast("fptrunc", far, "double", m.t), m.cast("trunc", count, "i64", m.int_t)
        rest.set(Number(m, far))
        m.w.emit(f"store {m.int_t} {count}, ptr {quarters}")
    r = choose(abs(x).eq(math.inf), math.nan, rest.get())
    return r, Integer(m, m.w.let(f"load {m.int_t}, ptr {quarters}"))


_PAIR = "{ double, i64 }"
# 2 / pi: 64 zeros, and then the bits behind the point.
_TWO_OVER_PI = (
    0x0, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0,
    0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4,
    0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
)  # fmt: skip
_HALF_PI_AT_2_62 = (3.4061215800865545e-19, 1.3277647201629795e-35)  # pi / 2 * 2^-62, in two parts


def _reduced_far(module: Module) -> str:
    """A function of doubles that are large, in whole numbers. With m, 64 bits, and e, x = m * 2^(e - 63). Times the
    bits of 2 / pi that do not make whole turns of it, from one that e says on, that is a number of 192 bits: the first
    two are the quarters, what follows is the share of the next one. Its first 128 bits do."""
    name = "litz.reduced_far"
    if name in module.defined:
        return name
    module.defined.add(name)
    w = Writer(module)
    table = module.constant_array(tuple(word - (1 << 64) if word >> 63 else word for word in _TWO_OVER_PI))
    bits = w.let("bitcast double %x to i64")
    exponent = w.let(f"and i64 {w.let(f'lshr i64 {bits}, 52')}, 2047")
    fraction = w.let(f"or i64 {w.let(f'and i64 {bits}, {(1 << 52) - 1}')}, {1 << 52}")
    mantissa = w.let(f"shl i64 {fraction}, 11")
    first = w.intrinsic("llvm.smin", "i64", w.let(f"sub i64 {exponent}, 1024"), "1023")  # of what is infinite, any
    word, shift = w.let(f"lshr i64 {first}, 6"), w.let(f"and i64 {first}, 63")
    words = [w.let(f"load i64, ptr {w.address('i64', table, w.add(word, str(k)))}") for k in range(4)]
    high, middle, low = (w.intrinsic("llvm.fshl", "i64", a, b, shift) for a, b in pairwise(words))
    wide = w.let(f"zext i64 {mantissa} to i128")
    products = [w.let(f"mul i128 {wide}, {w.let(f'zext i64 {part} to i128')}") for part in (middle, low)]
    sum_ = w.let(f"add i128 {products[0]}, {w.let(f'lshr i128 {products[1]}, 64')}")
    top = w.let(f"trunc i128 {w.let(f'lshr i128 {sum_}, 64')} to i64")
    top = w.let(f"add i64 {top}, {w.let(f'mul i64 {mantissa}, {high}')}")
    quarters = w.let(f"lshr i64 {w.let(f'add i64 {top}, {1 << 61}')}, 62")
    left = w.let(f"sub i64 {top}, {w.let(f'shl i64 {quarters}, 62')}")
    whole = w.let(f"shl i128 {w.let(f'sext i64 {left} to i128')}, 64")
    whole = w.let(f"or i128 {whole}, {w.let(f'and i128 {sum_}, {(1 << 64) - 1}')}")
    below = w.let(f"icmp slt i64 {left}, 0")
    size = w.let(f"select i1 {below}, i128 {w.let(f'sub i128 0, {whole}')}, i128 {whole}")
    w.module.declare("declare i128 @llvm.ctlz.i128(i128, i1)")
    zeros = w.let(f"call i128 @llvm.ctlz.i128(i128 {size}, i1 false)")
    trunc_zeros = f"trunc i128 {zeros} to i64"
    normal = w.let(f"shl i128 {size}, {zeros}")
    digits = w.let(f"trunc i128 {w.let(f'lshr i128 {normal}, 64')} to i64")
    first_53 = w.let(f"uitofp i64 {w.let(f'and i64 {digits}, -2048')} to double")
    others = w.let(f"uitofp i64 {w.let(f'and i64 {digits}, 2047')} to double")
    factor, factor_low = (literal(part, "f64") for part in _HALF_PI_AT_2_62)
    rest = w.intrinsic("llvm.fma", "double", first_53, factor_low, w.let(f"fmul double {others}, {factor}"))
    r = w.intrinsic("llvm.fma", "double", first_53, factor, rest)
    power = w.let(f"shl i64 {w.let(f'sub i64 1023, {w.let(trunc_zeros)}')}, 52")
    r = w.let(f"fmul double {r}, {w.let(f'bitcast i64 {power} to double')}")
    negative = w.let(f"icmp slt i64 {bits}, 0")
    r = w.let(f"select i1 {w.let(f'xor i1 {below}, {negative}')}, double {w.let(f'fneg double {r}')}, double {r}")
    count = w.let(f"select i1 {negative}, i64 {w.let(f'sub i64 0, {quarters}')}, i64 {quarters}")
    pair = w.let(f"insertvalue {_PAIR} poison, double {r}, 0")
    pair = w.let(f"insertvalue {_PAIR} {pair}, i64 {count}, 1")
    w.emit(f"ret {_PAIR} {pair}")
    w.define(name, "double %x", f"internal {_PAIR}", "noinline nounwind")
    return name


# -- the angle of --------------------------------------------------------------------------------------
def asin(x: Number) -> Number:
    size = abs(x)
    near = size <= 0.5
    left = (1.0 - size) * 0.5  # asin(x) = pi/2 - 2 asin(root of it)
    t = _asin_of_small(choose(near, size, square_root(left)))
    high, low, _ = _HALF_PI[x.m.dtype]
    return with_sign_of(choose(near, t, (high - 2.0 * t) + low), x)


def acos(x: Number) -> Number:
    size = abs(x)
    near = size <= 0.5
    t = _asin_of_small(choose(near, size, square_root((1.0 - size) * 0.5)))
    high, low, _ = _HALF_PI[x.m.dtype]
    middle = (high - with_sign_of(t, x)) + low
    far = choose(x > 0.0, 2.0 * t, (2.0 * high - 2.0 * t) + 2.0 * low)
    return choose(near, middle, far)


def _asin_of_small(x: Number) -> Number:
    s = x * x
    return fma(x * s, horner(s, _ASIN[x.m.dtype]), x)


def atan(x: Number) -> Number:
    size = abs(x)
    steep = size > 1.0
    t = _atan_of_small(choose(steep, 1.0 / size, size))
    high, low, _ = _HALF_PI[x.m.dtype]
    return with_sign_of(choose(steep, (high - t) + low, t), x)


def atan2(y: Number, x: Number) -> Number:
    high, low, _ = _HALF_PI[x.m.dtype]
    up, along = abs(y), abs(x)
    steep = up > along
    slope = choose(steep, along, up) / choose(steep, up, along)
    slope = choose(up.eq(along), choose(up.eq(0.0), 0.0, 1.0), slope)  # two infinities too
    t = _atan_of_small(slope)
    t = choose(steep, (high - t) + low, t)
    t = choose(x.bits() < 0, (2.0 * high - t) + 2.0 * low, t)
    return choose(x.is_nan() | y.is_nan(), x + y, with_sign_of(t, y))


def _atan_of_small(x: Number) -> Number:
    s = x * x
    return fma(x * s, horner(s, _ATAN[x.m.dtype]), x)


__all__ = ["acos", "asin", "atan", "atan2", "cos", "cosine_of_rest", "sin", "sine_of_rest", "tan"]
