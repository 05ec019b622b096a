"""Scalar operators that LLVM has no instruction for, written out in the kernel.

In: a writer and operands of one type and width. Out: the operand that holds the result.
float32 functions are polynomials fitted to less than one unit in the last place on the reduced
interval (a call into a library costs more than they do); float64 goes to SLEEF.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Sequence

from litz.codegen.llvm.arithmetic import Arithmetic
from litz.codegen.llvm.convert import convert
from litz.codegen.llvm.functions import sleef
from litz.codegen.llvm.writer import Operand, Writer

Inline = Callable[["Arithmetic", Sequence[str]], str]


def inline(writer: Writer, name: str, args: Sequence[Operand], result: str) -> Operand:
    first = args[-1]
    arithmetic = Arithmetic(writer, first.dtype, first.lanes)
    if name == "cast":
        return Operand(convert(arithmetic, args[0].text, result), result, first.lanes)
    own = writer.module.dialect.own.get((name, first.dtype))
    if own is not None:
        return Operand(own(arithmetic, [a.text for a in args]), result, first.lanes)
    if first.dtype == "f64" and name in _SLEEF_IN_DOUBLE:
        return sleef(writer, name, "u10", args)
    return Operand(_INLINE[name](arithmetic, [a.text for a in args]), result, first.lanes)


_SLEEF_IN_DOUBLE = {"exp", "log", "tanh", "erf"}


# -- exponentials and logarithms ----------------------------------------------------------------
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187e-06
_EXP = (0.5, 0.16666576266288757, 0.04166637361049652, 0.008363179862499237, 0.0013941106153652072)
_LOG = (
    0.3333333134651184, -0.24999980628490448, 0.2000068873167038, -0.16669151186943054, 0.14251138269901276,
    -0.12396684288978577, 0.11634844541549683, -0.11660119891166687, 0.07332224398851395,
)  # fmt: skip


def _exp(m: Arithmetic, args: Sequence[str]) -> str:
    # exp(x) = 2**n * exp(r) with |r| <= ln(2)/2; comparisons are ordered so that NaN goes through.
    x = m.select(m.cmp("ogt", args[0], m.c(89.0)), m.c(89.0), args[0])
    x = m.select(m.cmp("olt", x, m.c(-104.0)), m.c(-104.0), x)
    n = m.w.intrinsic("llvm.roundeven", m.t, m.i("fmul", x, m.c(pymath.log2(pymath.e))))
    r = m.fma(n, m.c(-_LN2_HIGH), x)
    r = m.fma(n, m.c(-_LN2_LOW), r)
    p = m.horner(r, _EXP)
    y = m.i("fadd", m.fma(m.i("fmul", r, r), p, r), m.c(1.0))
    # The power of two in two factors: neither overflows, and results may be infinite or denormal.
    whole = m.cast("fptosi", n, m.t, m.int_t)
    half = m.i("ashr", whole, m.c(1, "i32"), m.int_t)
    rest = m.i("sub", whole, half, m.int_t)
    for exponent in (half, rest):
        biased = m.i("shl", m.i("add", exponent, m.c(127, "i32"), m.int_t), m.c(23, "i32"), m.int_t)
        y = m.i("fmul", y, m.cast("bitcast", biased, m.int_t, m.t))
    return y


def _log(m: Arithmetic, args: Sequence[str]) -> str:
    x = args[0]
    # Denormals are scaled up into the normal range first.
    tiny = m.cmp("olt", x, m.c(1.1754943508222875e-38))
    scaled = m.select(tiny, m.i("fmul", x, m.c(2.0**23)), x)
    bits = m.cast("bitcast", scaled, m.t, m.int_t)
    # Mantissa in [sqrt(1/2), sqrt(2)).
    shifted = m.i("sub", bits, m.c(0x3F3504F3, "i32"), m.int_t)
    exponent = m.i("ashr", shifted, m.c(23, "i32"), m.int_t)
    mantissa = m.cast("bitcast", m.i("sub", bits, m.i("shl", exponent, m.c(23, "i32"), m.int_t), m.int_t), m.int_t, m.t)
    e = m.cast("sitofp", exponent, m.int_t, m.t)
    e = m.i("fadd", e, m.select(tiny, m.c(-23.0), m.c(0.0)))
    f = m.i("fsub", mantissa, m.c(1.0))
    f2 = m.i("fmul", f, f)
    tail = m.i("fmul", m.i("fmul", f2, f), m.horner(f, _LOG))
    tail = m.fma(f2, m.c(-0.5), tail)
    tail = m.fma(e, m.c(_LN2_LOW), tail)
    y = m.fma(e, m.c(_LN2_HIGH), m.i("fadd", f, tail))
    y = m.select(m.cmp("oeq", x, m.c(pymath.inf)), m.c(pymath.inf), y)
    y = m.select(m.cmp("oeq", x, m.c(0.0)), m.c(-pymath.inf), y)
    return m.select(m.cmp("ult", x, m.c(0.0)), m.c(pymath.nan), y)


def _scaleb(m: Arithmetic, args: Sequence[str]) -> str:
    """The first times two to the second, a whole number, rounded once."""
    x, n = args
    low, high = m.cmp("olt", n, m.c(-5000)), m.cmp("ogt", n, m.c(5000))
    whole = m.cast("fptosi", m.select(low, m.c(-5000), m.select(high, m.c(5000), n)), m.t, m.int_t)
    if m.dtype == "f32":
        # In doubles, where neither factor nor product is ever denormal.
        wide = Arithmetic(m.w, "f64", m.lanes)
        exponent = _between(wide, m.cast("sext", whole, m.int_t, wide.int_t), -400, 400)
        product = wide.i("fmul", m.cast("fpext", x, m.t, wide.t), _power_of_two(wide, exponent))
        y = m.cast("fptrunc", product, wide.t, m.t)
    else:
        y = x
        for _ in range(2):
            # Down in steps that leave the last one to round: what is in between must not be denormal.
            for beyond, limit, step in (("sgt", 1023, 1023), ("slt", -1022, 53 - 1022)):
                far = m.w.let(f"icmp {beyond} {m.int_t} {whole}, {m.c(limit, 'i64')}")
                y = m.i("fmul", y, m.select(far, m.c(2.0**step), m.c(1.0)))
                rest = m.i("sub", whole, m.c(step, "i64"), m.int_t)
                whole = m.select(far, rest, whole, m.int_t)
        y = m.i("fmul", y, _power_of_two(m, _between(m, whole, -1022, 1023)))
    return m.select(m.cmp("uno", n, n), n, y)


def _between(m: Arithmetic, whole: str, low: int, high: int) -> str:
    whole = m.w.intrinsic("llvm.smax", m.int_t, whole, m.c(low, m.int_dtype))
    return m.w.intrinsic("llvm.smin", m.int_t, whole, m.c(high, m.int_dtype))


def _power_of_two(m: Arithmetic, exponent: str) -> str:
    """Two to an integer, which must be the exponent of a normal float64."""
    biased = m.i("shl", m.i("add", exponent, m.c(1023, "i64"), m.int_t), m.c(52, "i64"), m.int_t)
    return m.cast("bitcast", biased, m.int_t, m.t)


def _sigmoid(m: Arithmetic, args: Sequence[str]) -> str:
    e = _exp_of(m, m.w.let(f"fneg {m.t} {args[0]}"))
    return _one_over(m, m.i("fadd", e, m.c(1.0)))


def _exp_of(m: Arithmetic, x: str) -> str:
    return inline(m.w, "exp", [Operand(x, m.dtype, m.lanes)], m.dtype).text


def _one_over(m: Arithmetic, x: str) -> str:
    """A reciprocal inside of a formula, which need not be rounded right."""
    own = m.w.module.dialect.own.get(("one_over", m.dtype))
    return m.i("fdiv", m.c(1.0), x) if own is None else own(m, [x])


_TANH = (
    -0.3333333432674408, 0.1333330124616623, -0.05395878478884697, 0.02176475338637829, -0.008329602889716625,
    0.0022759058047086,
)  # fmt: skip


def _tanh(m: Arithmetic, args: Sequence[str]) -> str:
    x = args[0]
    s = m.i("fmul", x, x)
    near = m.fma(m.i("fmul", s, m.horner(s, _TANH)), x, x)
    e = _exp_of(m, m.i("fmul", m.fabs(x), m.c(2.0)))
    # Halved and doubled again, a reciprocal is what two divided by the same would be.
    far = m.fma(m.c(-2.0), _one_over(m, m.i("fadd", e, m.c(1.0))), m.c(1.0))
    # Both have the sign of x, which the sum in `near` loses where x is -0.0.
    return m.w.intrinsic("llvm.copysign", m.t, m.select(m.cmp("olt", m.fabs(x), m.c(0.63)), near, far), x)


_ERF_NEAR = (
    0.12837916612625122, -0.37612634897232056, 0.11283695697784424, -0.026859384030103683, 0.005200917366892099,
    -0.0008140653953887522, 8.358809282071888e-05,
)  # fmt: skip
_ERF_FAR = (
    -0.00017587823094800115, 1.1295208930969238, 0.6333346366882324, 0.10829399526119232, -0.02512865513563156,
    0.004174655769020319, -0.00043522162013687193, 2.1162155462661758e-05,
)  # fmt: skip


def _erf(m: Arithmetic, args: Sequence[str]) -> str:
    # Near zero an odd polynomial; beyond, 1 - exp(-q(|x|)) where q is -log(erfc), flat one past 4.
    x = args[0]
    s = m.i("fmul", x, x)
    near = m.fma(m.horner(s, _ERF_NEAR), x, x)
    size = m.fabs(x)
    capped = m.select(m.cmp("ogt", size, m.c(4.0)), m.c(4.0), size)
    q = m.horner(capped, _ERF_FAR)
    far = m.i("fsub", m.c(1.0), _exp_of(m, m.w.let(f"fneg {m.t} {q}")))
    far = m.w.intrinsic("llvm.copysign", m.t, far, x)
    return m.select(m.cmp("olt", size, m.c(0.92)), near, far)


# Minimax polynomials: the binary logarithm of the normal distribution's tail for 0 <= x <= 5.65, where it matters most
# near 0 (weighted by the tail), and 2**x for |x| <= 1/2.
LOG2_OF_TAIL = (
    -1.0, -1.1511048078536987, -0.45921579003334045, -0.05245717614889145, 0.006974303629249334,
    -3.03442902804818e-05, -0.00025723554426804185, 6.58025819575414e-05, -7.934743734949734e-06,
    3.9608877955288335e-07,
)  # fmt: skip
_EXP2 = (
    1.0, 0.6931471824645996, 0.24022652208805084, 0.05550327152013779, 0.009617994539439678, 0.001340043148957193,
    0.00015478022396564484,
)  # fmt: skip
NO_TAIL = 5.65  # where it is less than half of a unit in the last place of 1


def _normal_cdf(m: Arithmetic, args: Sequence[str]) -> str:
    # The tail on the side of x, 2**t(|x|), with t its logarithm; the other side is what is left of 1.
    x = args[0]
    if m.dtype == "f64":
        scaled = m.i("fmul", x, m.c(pymath.sqrt(0.5)))
        erf = sleef(m.w, "erf", "u10", [Operand(scaled, m.dtype, m.lanes)]).text
        return m.i("fmul", m.i("fadd", erf, m.c(1.0)), m.c(0.5))
    size = m.fabs(x)
    beyond = m.cmp("ogt", size, m.c(NO_TAIL))
    t = m.horner(m.select(beyond, m.c(NO_TAIL), size), LOG2_OF_TAIL)
    n = m.w.intrinsic("llvm.roundeven", m.t, t)
    fraction = m.horner(m.i("fsub", t, n), _EXP2)
    whole = m.cast("fptosi", n, m.t, m.int_t)
    power = m.i("shl", m.i("add", whole, m.c(127, "i32"), m.int_t), m.c(23, "i32"), m.int_t)
    tail = m.i("fmul", fraction, m.cast("bitcast", power, m.int_t, m.t))
    tail = m.select(beyond, m.c(0.0), tail)
    return m.select(m.cmp("ogt", x, m.c(0.0)), m.i("fsub", m.c(1.0), tail), tail)


def _asinh(m: Arithmetic, args: Sequence[str]) -> str:
    x = args[0]
    near = sleef(m.w, "asinh", "u10", [Operand(x, m.dtype, m.lanes)]).text
    return m.select(_squares_overflow(m, x), m.w.intrinsic("llvm.copysign", m.t, _log_of_twice(m, x), x), near)


def _acosh(m: Arithmetic, args: Sequence[str]) -> str:
    x = args[0]
    near = sleef(m.w, "acosh", "u10", [Operand(x, m.dtype, m.lanes)]).text
    far = m.i("and", m.cmp("ogt", x, m.c(0.0)), _squares_overflow(m, x), m.bool_t)
    return m.select(far, _log_of_twice(m, x), near)


def _squares_overflow(m: Arithmetic, x: str) -> str:
    """SLEEF's inverse hyperbolics square their argument, and give infinity where this is true."""
    return m.cmp("ogt", m.fabs(x), m.c(1e18 if m.dtype == "f32" else 1e150))


def _log_of_twice(m: Arithmetic, x: str) -> str:
    log = inline(m.w, "log", [Operand(m.fabs(x), m.dtype, m.lanes)], m.dtype).text
    return m.i("fadd", log, m.c(pymath.log(2.0)))


# -- arithmetic -----------------------------------------------------------------------------------
def _rsqrt(m: Arithmetic, args: Sequence[str]) -> str:
    return m.i("fdiv", m.c(1.0), m.w.intrinsic("llvm.sqrt", m.t, args[0]))


def _reciprocal(m: Arithmetic, args: Sequence[str]) -> str:
    return m.i("fdiv", m.c(1.0), args[0])


def _safe_divisor(m: Arithmetic, b: str) -> str:
    """A machine division by zero would kill the process; masked-out lanes hold zeros."""
    return m.select(m.cmp("eq", b, m.c(0)), m.c(1), b)


def _int_division(m: Arithmetic, op: str, a: str, b: str) -> str:
    unsigned = m.kind == "uint"
    b = _safe_divisor(m, b)
    if unsigned:
        return m.i("u" + op, a, b)
    # The smallest number divided by -1 overflows: negate instead.
    minus = m.cmp("eq", b, m.c(-1))
    plain = m.i("s" + op, a, m.select(minus, m.c(1), b))
    return m.select(minus, m.i("sub", m.c(0), a) if op == "div" else m.c(0), plain)


def _trunc_div(m: Arithmetic, args: Sequence[str]) -> str:
    return _int_division(m, "div", *args)


def _fmod(m: Arithmetic, args: Sequence[str]) -> str:
    if m.kind != "float":
        return _int_division(m, "rem", *args)
    x, size, divisor = args[0], m.fabs(args[0]), m.fabs(args[1])
    rest = m.w.slot(m.t)
    m.w.emit(f"store {m.t} {_rest(m, size, divisor)}, ptr {rest}")
    near = m.cmp("olt", size, m.i("fmul", divisor, m.c(2.0**22 if m.dtype == "f32" else 2.0**51)))
    every = near if m.lanes == 1 else m.w.intrinsic("llvm.vector.reduce.and", m.bool_t, near, result="i1")
    with m.w.when(m.w.let(f"xor i1 {every}, true")):
        m.w.emit(f"store {m.t} {_rest_of_large(m, size, divisor)}, ptr {rest}")
    return m.w.intrinsic("llvm.copysign", m.t, m.w.let(f"load {m.t}, ptr {rest}"), x)


def _rest_of_large(m: Arithmetic, x: str, divisor: str) -> str:
    """The same for a quotient of more bits than the type has: taken off in pieces of fifty bits, in doubles."""
    w, wide = m.w, Arithmetic(m.w, "f64", m.lanes)
    most = 2046 if m.dtype == "f64" else 250  # bits of a quotient beyond those of the last piece
    if m.dtype != "f64":
        x, divisor = (m.cast("fpext", a, m.t, wide.t) for a in (x, divisor))
    rest = w.slot(wide.t)
    w.emit(f"store {wide.t} {x}, ptr {rest}")
    with w.loop("0", str(most // 50 + 2)) as step:
        shift = w.let(f"sub i64 {most}, {w.mul(step, '50')}")
        shift = w.intrinsic("llvm.smax", "i64", shift, "0")
        first = w.minimum(shift, "1023")
        scaled = divisor
        for exponent in (first, w.let(f"sub i64 {shift}, {first}")):
            bits = w.let(f"shl i64 {w.add(exponent, '1023')}, 52")
            power = w.splat(Operand(w.let(f"bitcast i64 {bits} to double"), "f64", 1), m.lanes)
            scaled = wide.i("fmul", scaled, power.text)
        old = w.let(f"load {wide.t}, ptr {rest}")
        w.emit(f"store {wide.t} {_rest(wide, old, scaled)}, ptr {rest}")
    found = w.let(f"load {wide.t}, ptr {rest}")
    return found if m.dtype == "f64" else m.cast("fptrunc", found, wide.t, m.t)


def _rest(m: Arithmetic, x: str, divisor: str) -> str:
    """What is left of `x` after division, exactly, if the quotient has fewer bits than the type; none is negative."""
    quotient = m.w.intrinsic("llvm.trunc", m.t, m.i("fdiv", x, divisor))
    rest = m.fma(m.w.let(f"fneg {m.t} {quotient}"), divisor, x)
    rest = m.select(m.cmp("olt", rest, m.c(0.0)), m.i("fadd", rest, divisor), rest)  # the quotient was rounded up
    whole = m.i("and", m.cmp("oeq", divisor, m.c(pymath.inf)), m.cmp("olt", x, m.c(pymath.inf)), m.bool_t)
    return m.select(whole, x, rest)


def _remainder(m: Arithmetic, args: Sequence[str]) -> str:
    a, b = args
    rest = _fmod(m, args)
    if m.kind == "uint":
        return rest
    zero = m.c(0)
    if m.kind == "float":
        wrong = m.w.let(f"xor {m.bool_t} {m.cmp('olt', rest, zero)}, {m.cmp('olt', b, zero)}")
        wrong = m.w.let(f"and {m.bool_t} {wrong}, {m.cmp('une', rest, zero)}")
        return m.select(wrong, m.i("fadd", rest, b), rest)
    wrong = m.w.let(f"xor {m.bool_t} {m.cmp('slt', rest, zero)}, {m.cmp('slt', b, zero)}")
    wrong = m.w.let(f"and {m.bool_t} {wrong}, {m.cmp('ne', rest, zero)}")
    return m.select(wrong, m.i("add", rest, b), rest)


def _floor_div(m: Arithmetic, args: Sequence[str]) -> str:
    a, b = args
    if m.kind == "uint":
        return _int_division(m, "div", a, b)
    if m.kind == "int":
        b = _safe_divisor(m, b)
        quotient = _int_division(m, "div", a, b)
        rest = m.i("sub", a, m.i("mul", quotient, b))
        wrong = m.w.let(f"xor {m.bool_t} {m.cmp('slt', rest, m.c(0))}, {m.cmp('slt', b, m.c(0))}")
        wrong = m.w.let(f"and {m.bool_t} {wrong}, {m.cmp('ne', rest, m.c(0))}")
        return m.select(wrong, m.i("sub", quotient, m.c(1)), quotient)
    # The exact quotient less its remainder, so that rounding cannot step over an integer.
    rest = _fmod(m, args)
    zero, one = m.c(0.0), m.c(1.0)
    quotient = m.i("fdiv", m.i("fsub", a, rest), b)
    wrong = m.w.let(f"xor {m.bool_t} {m.cmp('olt', rest, zero)}, {m.cmp('olt', b, zero)}")
    wrong = m.w.let(f"and {m.bool_t} {wrong}, {m.cmp('une', rest, zero)}")
    quotient = m.select(wrong, m.i("fsub", quotient, one), quotient)
    floored = m.w.intrinsic("llvm.floor", m.t, quotient)
    up = m.cmp("ogt", m.i("fsub", quotient, floored), m.c(0.5))
    floored = m.select(up, m.i("fadd", floored, one), floored)
    plain = m.i("fdiv", a, b)
    signed_zero = m.w.intrinsic("llvm.copysign", m.t, zero, plain)
    floored = m.select(m.cmp("oeq", quotient, zero), signed_zero, floored)
    return m.select(m.cmp("oeq", b, zero), plain, floored)


def _max(m: Arithmetic, args: Sequence[str]) -> str:
    return _chosen(m, "ogt", *args)


def _min(m: Arithmetic, args: Sequence[str]) -> str:
    return _chosen(m, "olt", *args)


def _chosen(m: Arithmetic, better: str, a: str, b: str) -> str:
    """The better one; the second of two equal ones, which zeros of either sign are; what is no number wins. Beside a
    constant only the first can be none, and one comparison tells."""
    if m.kind == "float" and "%" not in b and b not in (m.c(pymath.nan), m.c(-pymath.nan)):
        return m.select(m.cmp("u" + better[1:], a, b), a, b)
    return m.select(m.cmp(better, a, b), a, m.select(m.cmp("uno", a, a), a, b))


def _abs(m: Arithmetic, args: Sequence[str]) -> str:
    return m.select(m.cmp("slt", args[0], m.c(0)), m.i("sub", m.c(0), args[0]), args[0])


def _sign(m: Arithmetic, args: Sequence[str]) -> str:
    x, zero = args[0], m.c(0)
    if m.kind == "uint":
        return m.select(m.cmp("eq", x, zero), zero, m.c(1))
    less, more = ("olt", "ogt") if m.kind == "float" else ("slt", "sgt")
    return m.select(m.cmp(more, x, zero), m.c(1), m.select(m.cmp(less, x, zero), m.c(-1), zero))


def _signbit(m: Arithmetic, args: Sequence[str]) -> str:
    bits = m.cast("bitcast", args[0], m.t, m.int_t)
    return m.w.let(f"icmp slt {m.int_t} {bits}, zeroinitializer")


def _where(m: Arithmetic, args: Sequence[str]) -> str:
    return m.select(args[0], args[1], args[2])


def _not(m: Arithmetic, args: Sequence[str]) -> str:
    return m.i("xor", args[0], m.c(1) if m.kind == "bool" else m.c(-1))


def _shl(m: Arithmetic, args: Sequence[str]) -> str:
    a, b = args
    good = m.cmp("ult", b, m.c(m.bits))
    return m.select(good, m.i("shl", a, m.select(good, b, m.c(0))), m.c(0))


def _shr(m: Arithmetic, args: Sequence[str]) -> str:
    a, b = args
    good = m.cmp("ult", b, m.c(m.bits))
    if m.kind == "uint":
        return m.select(good, m.i("lshr", a, m.select(good, b, m.c(0))), m.c(0))
    return m.i("ashr", a, m.select(good, b, m.c(m.bits - 1)))


_INLINE: dict[str, Inline] = {
    "exp": _exp, "log": _log, "sigmoid": _sigmoid, "tanh": _tanh, "erf": _erf, "rsqrt": _rsqrt,
    "normal_cdf": _normal_cdf,
    "asinh": _asinh, "acosh": _acosh, "scaleb": _scaleb,
    "reciprocal": _reciprocal, "trunc_div": _trunc_div, "fmod": _fmod, "remainder": _remainder, "max": _max,
    "floor_div": _floor_div, "abs": _abs, "sign": _sign, "signbit": _signbit, "where": _where, "not": _not,
    "shl": _shl, "shr": _shr, "min": _min,
}  # fmt: skip
