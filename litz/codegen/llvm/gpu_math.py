"""Functions that a GPU has better means for than polynomials alone: its own power of two and reciprocal.

In: as of `math.py`. Out: the text of the result. The hardware's approximations are good to two units in the last
place, which is what eager's kernels have too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from litz.codegen.llvm.arithmetic import Arithmetic

_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187e-06


def _each(m: Arithmetic, function: str, x: str) -> str:
    """An intrinsic of one number, for every lane."""
    scalar = "float"
    m.w.module.declare(f"declare {scalar} @{function}({scalar})")
    if m.lanes == 1:
        return m.w.let(f"call {scalar} @{function}({scalar} {x})")
    whole = "poison"
    for lane in range(m.lanes):
        one = m.w.let(f"extractelement {m.t} {x}, i32 {lane}")
        done = m.w.let(f"call {scalar} @{function}({scalar} {one})")
        whole = m.w.let(f"insertelement {m.t} {whole}, {scalar} {done}, i32 {lane}")
    return whole


def _exp(m: Arithmetic, args: Sequence[str]) -> str:
    # 2**n * 2**f: x less n ln(2) is exact enough that the fraction has no error to speak of. NaN goes through.
    x = m.select(m.cmp("ogt", args[0], m.c(89.0)), m.c(89.0), args[0])
    x = m.select(m.cmp("olt", x, m.c(-104.0)), m.c(-104.0), x)
    n = m.w.intrinsic("llvm.roundeven", m.t, m.i("fmul", x, m.c(math.log2(math.e))))
    r = m.fma(n, m.c(-_LN2_HIGH), x)
    r = m.fma(n, m.c(-_LN2_LOW), r)
    power = _each(m, "llvm.nvvm.ex2.approx.f", m.i("fmul", r, m.c(math.log2(math.e))))
    half = m.i("fmul", n, m.c(0.5))
    # Two to the n in two factors: results may be denormal or infinite where two to the n is not.
    low = m.w.intrinsic("llvm.floor", m.t, half)
    high = m.i("fsub", n, low)
    for exponent in (low, high):
        power = m.i("fmul", power, _each(m, "llvm.nvvm.ex2.approx.f", exponent))
    return power


OWN: dict[tuple[str, str], Callable[[Any, Sequence[str]], str]] = {("exp", "f32"): _exp}

__all__ = ["OWN"]
