"""Functions in pieces, for processors that look up 32 numbers in registers, a number for each lane: AVX-512.

In: arithmetic and operands, as for `math.py`. Out: the operand that holds the result. The axis is cut into steps, and a
polynomial of degree five about the middle of each is as exact as a type of 24 bits can tell. Looking its coefficients
up takes fewer instructions, and fewer that wait for each other, than a formula that is good for the whole axis.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from litz.codegen.llvm.arithmetic import Arithmetic
from litz.codegen.llvm.functions import joined, part_of
from litz.codegen.llvm.writer import Operand, literal

_ENTRIES, _LANES = 32, 16
_VECTOR = f"<{_LANES} x float>"
_DEGREE = 5
_NODES = 16  # at which a function is asked, in each step: an even number, for the middle is none of them

Table = Sequence[float]


def _rounded(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


_LN2 = _rounded(math.log(2.0))


def _normal_cdf(m: Arithmetic, args: Sequence[str]) -> str:
    # The tail on the side of x; the other side is what is left of 1.
    x = args[0]
    tail = _in_pieces(m, m.fabs(x), 0.25, _of_tail())
    return m.select(m.cmp("ogt", x, m.c(0.0)), m.i("fsub", m.c(1.0), tail), tail)


@cache
def _of_tail() -> tuple[Table, ...]:
    """Nothing is left of it in the end, whatever it is multiplied by."""
    return _coefficients(lambda x: 0.5 * math.erfc(x * math.sqrt(0.5)), 0.25, end=0.0)


def _erf(m: Arithmetic, args: Sequence[str]) -> str:
    size = m.fabs(args[0])
    near = m.cmp("ole", size, m.c(0.125 / 2))  # in the first step, to which what is half way is rounded
    found = _in_pieces(m, size, 0.125, _of_erf(), lambda constant: m.select(near, size, constant))
    return m.w.intrinsic("llvm.copysign", m.t, found, args[0])


@cache
def _of_erf() -> tuple[Table, ...]:
    """In the first step, what is to be added to x: so x is not rounded, and the rest only as small as it is."""
    constants, slopes, *others = _coefficients(math.erf, 0.125, end=1.0)
    return (constants, (slopes[0] - 1.0, *slopes[1:]), *others)


def _exp(m: Arithmetic, args: Sequence[str]) -> str:
    # exp(x) = 2**n * exp(r) with n in parts of 32, two to which are looked up; what rounding has taken from them, and
    # from ln(2), is added to r where nothing waits for it.
    x = m.select(m.cmp("ogt", args[0], m.c(89.0)), m.c(89.0), args[0])
    x = m.select(m.cmp("olt", x, m.c(-104.0)), m.c(-104.0), x)
    large = m.c(1.5 * 2**23 / _ENTRIES)
    rounded = m.fma(x, m.c(math.log2(math.e)), large)
    n = m.i("fsub", rounded, large)
    index = Operand(m.cast("bitcast", rounded, m.t, m.int_t), m.int_dtype, m.lanes)
    power, lost = (_entries(m, table, index) for table in _of_powers())
    r = m.fma(n, m.c(-_LN2), x)
    lost = m.fma(n, m.c(_LN2 - math.log(2.0)), lost)
    more = m.fma(m.i("fmul", r, r), m.fma(r, m.c(1 / 6), m.c(0.5)), m.i("fadd", r, lost))
    return _times_power(m, m.fma(power, more, power), n)


@cache
def _of_powers() -> tuple[Table, Table]:
    exact = [2.0 ** (entry / _ENTRIES) for entry in range(_ENTRIES)]
    powers = [_rounded(value) for value in exact]
    return powers, [(a - b) / b for a, b in zip(exact, powers, strict=True)]


def _in_pieces(
    m: Arithmetic,
    size: str,
    step: float,
    tables: Sequence[Table],
    base: Callable[[str], str] = lambda constant: constant,
) -> str:
    """The polynomial of the step that `size`, which is not negative, is in; beyond the last step, that of the last.
    `base` makes of the constant coefficient what the rest is added to."""
    most = step * (_ENTRIES - 1)
    size = m.select(m.cmp("ogt", size, m.c(most)), m.c(most), size)
    # Added to a number whose last bit is worth a step, it is rounded to steps, and their count is in the last bits.
    large = m.c(1.5 * 2**23 * step)
    rounded = m.i("fadd", size, large)
    rest = m.i("fsub", size, m.i("fsub", rounded, large))
    count = Operand(m.cast("bitcast", rounded, m.t, m.int_t), m.int_dtype, m.lanes)
    constant, *others = [_entries(m, table, count) for table in tables]
    total = others[-1]
    for coefficient in (*reversed(others[:-1]), base(constant)):
        total = m.fma(total, rest, coefficient)
    return total


def _entries(m: Arithmetic, table: Table, index: Operand) -> str:
    """For each lane the entry that the last five bits of its index say."""
    low, high = (_held(m, table[first : first + _LANES]) for first in (0, _LANES))
    look_up = "llvm.x86.avx512.vpermi2var.ps.512"
    m.w.module.declare(f"declare {_VECTOR} @{look_up}({_VECTOR}, <{_LANES} x i32>, {_VECTOR})")
    call = f"call {_VECTOR} @{look_up}({_VECTOR} {low}, <{_LANES} x i32> {{}}, {_VECTOR} {high})"
    return _in_vectors(m, call, [index])


def _held(m: Arithmetic, numbers: Table) -> str:
    """A vector of these, which the module has once."""
    values = ", ".join(f"float {literal(number, m.dtype)}" for number in numbers)
    return m.w.let(f"load {_VECTOR}, ptr {m.w.module.constant(f'{_VECTOR} <{values}>')}")


def _times_power(m: Arithmetic, value: str, exponent: str) -> str:
    """Times two to the exponent, rounded down to an integer; the product is rounded once, whatever becomes of it."""
    scale = "llvm.x86.avx512.mask.scalef.ps.512"
    m.w.module.declare(f"declare {_VECTOR} @{scale}({_VECTOR}, {_VECTOR}, {_VECTOR}, i16, i32)")
    call = f"call {_VECTOR} @{scale}({_VECTOR} {{}}, {_VECTOR} {{}}, {_VECTOR} zeroinitializer, i16 -1, i32 4)"
    return _in_vectors(m, call, [Operand(text, m.dtype, m.lanes) for text in (value, exponent)])


def _in_vectors(m: Arithmetic, instruction: str, args: Sequence[Operand]) -> str:
    """An instruction that there is for whole vectors, of as many lanes as there are."""
    if m.lanes < _LANES:
        args = [joined(m.w, [arg] * (_LANES // m.lanes)) for arg in args]
    found = []
    for first in range(0, args[0].lanes, _LANES):
        parts = (part_of(m.w, arg, first, _LANES).text for arg in args)
        found.append(Operand(m.w.let(instruction.format(*parts)), m.dtype, _LANES))
    return part_of(m.w, joined(m.w, found), 0, m.lanes).text


def _coefficients(function: Callable[[float], float], step: float, end: float) -> tuple[Table, ...]:
    """By power, the coefficients of all steps; in the last, the function is what it ends in. In the middle of a step
    the polynomial has the function's own value, which keeps what is zero there zero."""
    pieces = [_piece(function, entry * step, step / 2) for entry in range(_ENTRIES - 1)]
    pieces.append([end] + [0.0] * _DEGREE)
    return tuple(tuple(piece[power] for piece in pieces) for power in range(_DEGREE + 1))


def _piece(function: Callable[[float], float], middle: float, reach: float) -> list[float]:
    """The value in the middle, and what is left of the function without it, divided by the distance from there, as a
    sum of Chebyshev's polynomials: what is cut off of that is nearly the least that can be."""
    value = function(middle)
    angles = [math.pi * (node + 0.5) / _NODES for node in range(_NODES)]
    slopes = [(function(middle + reach * math.cos(angle)) - value) / (reach * math.cos(angle)) for angle in angles]
    found = [0.0] * _DEGREE
    for order, polynomial in enumerate(_chebyshev(_DEGREE)):
        share = sum(slope * math.cos(order * angle) for slope, angle in zip(slopes, angles, strict=True)) / _NODES
        for power, coefficient in enumerate(polynomial):
            found[power] += share * (2 if order else 1) * coefficient / reach**power
    return [value, *found]


def _chebyshev(count: int) -> list[list[float]]:
    """Coefficients of the first polynomials, the constant one's first: each is twice x times the last, less the one
    before."""
    found = [[1.0], [0.0, 1.0]]
    while len(found) < count:
        doubled = [0.0, *(2 * c for c in found[-1])]
        before = [*found[-2], 0.0, 0.0]
        found.append([a - b for a, b in zip(doubled, before, strict=True)])
    return found


OWN: Mapping[tuple[str, str], Callable[[Arithmetic, Sequence[str]], str]] = {
    ("normal_cdf", "f32"): _normal_cdf, ("erf", "f32"): _erf, ("exp", "f32"): _exp,
}  # fmt: skip


__all__ = ["OWN"]
