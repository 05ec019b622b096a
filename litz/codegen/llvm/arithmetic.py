"""Arithmetic on one type and width: the instructions that longer formulas are written in.

In: the texts of operands of that type. Out: the text of the result, with the instruction in the writer.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.codegen.llvm.writer import Writer, literal, llvm_type
from litz.loop.dtype import DTYPES


class Arithmetic:
    """Terse instructions on one type and width."""

    def __init__(self, writer: Writer, dtype: str, lanes: int):
        self.w, self.dtype, self.lanes = writer, dtype, lanes
        self.t = llvm_type(dtype, lanes)
        self.bool_t = llvm_type("b1", lanes)
        self.kind = DTYPES[dtype].kind
        self.bits = DTYPES[dtype].bits
        self.int_dtype = {8: "i8", 16: "i16", 32: "i32", 64: "i64"}[self.bits]
        self.int_t = llvm_type(self.int_dtype, lanes)

    def c(self, value: float, dtype: str | None = None) -> str:
        dtype = dtype or self.dtype
        text = literal(value, dtype)
        return text if self.lanes == 1 else f"splat ({llvm_type(dtype)} {text})"

    def i(self, op: str, a: str, b: str, t: str | None = None) -> str:
        return self.w.let(f"{op} {t or self.t} {a}, {b}")

    def cast(self, op: str, a: str, source: str, target: str) -> str:
        made = self.w.let(f"{op} {source} {a} to {target}")
        # Of what no integer holds LLVM makes poison, and of constants anything at all; frozen, it is some integer.
        return self.w.let(f"freeze {target} {made}") if op == "fptosi" else made

    def cmp(self, condition: str, a: str, b: str) -> str:
        op = "fcmp" if self.kind == "float" else "icmp"
        return self.w.let(f"{op} {condition} {self.t} {a}, {b}")

    def select(self, mask: str, a: str, b: str, t: str | None = None) -> str:
        t = t or self.t
        return self.w.let(f"select {self.bool_t} {mask}, {t} {a}, {t} {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.w.intrinsic("llvm.fma", self.t, a, b, c)

    def fabs(self, a: str) -> str:
        return self.w.intrinsic("llvm.fabs", self.t, a)

    def horner(self, x: str, coefficients: Sequence[float]) -> str:
        """The polynomial with these coefficients, the constant one first."""
        total = self.c(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.c(coefficient))
        return total

    def dividing_by(self, b: str, least_one: bool) -> tuple[str, ...]:
        """Factors that divide many numbers by `b`, all but rounding. None is infinite unless `b` is zero."""
        if least_one:
            return (self.i("fdiv", self.c(1.0), b),)
        tiny = self.cmp("olt", self.fabs(b), self.c(_TINY))
        scale = self.select(tiny, self.c(_LARGE), self.c(1.0))
        return scale, self.i("fdiv", self.c(1.0), self.i("fmul", b, scale))


_TINY, _LARGE = 2.0**-120, 2.0**100  # the reciprocal of less would be infinite, or nearly so
