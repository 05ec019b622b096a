"""Formulas as one writes them: a `Number` is a value in flight, and arithmetic on it is an instruction.

In: operands of a function in LLVM's language. Out: the operand that holds the result. Python's numbers stand for
constants of the type. Nothing is rearranged, and nothing contracted: `fma` is where it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from litz.codegen.llvm.arithmetic import Arithmetic


class _InFlight:
    __slots__ = ("m", "text")

    def __init__(self, m: Arithmetic, text: str):
        self.m, self.text = m, text


class Condition(_InFlight):
    def __and__(self, other: Condition) -> Condition:
        return Condition(self.m, self.m.i("and", self.text, other.text, "i1"))

    def __or__(self, other: Condition) -> Condition:
        return Condition(self.m, self.m.i("or", self.text, other.text, "i1"))

    def __invert__(self) -> Condition:
        return Condition(self.m, self.m.i("xor", self.text, "true", "i1"))


class Integer(_InFlight):
    """Of as many bits as the numbers of its formula."""

    def _op(self, op: str, other: Whole) -> Integer:
        return Integer(self.m, self.m.i(op, self.text, self._text(other), self.m.int_t))

    @staticmethod
    def _text(other: Whole) -> str:
        return other.text if isinstance(other, Integer) else str(other)

    def _compare(self, condition: str, other: Whole) -> Condition:
        return Condition(self.m, self.m.w.let(f"icmp {condition} {self.m.int_t} {self.text}, {self._text(other)}"))

    def __add__(self, other: Whole) -> Integer:
        return self._op("add", other)

    def __sub__(self, other: Whole) -> Integer:
        return self._op("sub", other)

    def __and__(self, other: Whole) -> Integer:
        return self._op("and", other)

    def __or__(self, other: Whole) -> Integer:
        return self._op("or", other)

    def __xor__(self, other: Whole) -> Integer:
        return self._op("xor", other)

    def __lshift__(self, other: Whole) -> Integer:
        return self._op("shl", other)

    def __rshift__(self, other: Whole) -> Integer:
        """The sign is drawn behind."""
        return self._op("ashr", other)

    def __lt__(self, other: Whole) -> Condition:
        return self._compare("slt", other)

    def __gt__(self, other: Whole) -> Condition:
        return self._compare("sgt", other)

    def eq(self, other: Whole) -> Condition:
        return self._compare("eq", other)

    def ne(self, other: Whole) -> Condition:
        return self._compare("ne", other)


class Number(_InFlight):
    def _op(self, op: str, a: Real, b: Real) -> Number:
        return Number(self.m, self.m.i(op, text_of(self.m, a), text_of(self.m, b)))

    def _compare(self, condition: str, other: Real) -> Condition:
        return Condition(self.m, self.m.cmp(condition, self.text, text_of(self.m, other)))

    def __add__(self, other: Real) -> Number:
        return self._op("fadd", self, other)

    def __radd__(self, other: float) -> Number:
        return self._op("fadd", other, self)

    def __sub__(self, other: Real) -> Number:
        return self._op("fsub", self, other)

    def __rsub__(self, other: float) -> Number:
        return self._op("fsub", other, self)

    def __mul__(self, other: Real) -> Number:
        return self._op("fmul", self, other)

    def __rmul__(self, other: float) -> Number:
        return self._op("fmul", other, self)

    def __truediv__(self, other: Real) -> Number:
        return self._op("fdiv", self, other)

    def __rtruediv__(self, other: float) -> Number:
        return self._op("fdiv", other, self)

    def __neg__(self) -> Number:
        return Number(self.m, self.m.w.let(f"fneg {self.m.t} {self.text}"))

    def __abs__(self) -> Number:
        return Number(self.m, self.m.fabs(self.text))

    # Comparisons are false of what is no number.
    def __lt__(self, other: Real) -> Condition:
        return self._compare("olt", other)

    def __le__(self, other: Real) -> Condition:
        return self._compare("ole", other)

    def __gt__(self, other: Real) -> Condition:
        return self._compare("ogt", other)

    def __ge__(self, other: Real) -> Condition:
        return self._compare("oge", other)

    def eq(self, other: Real) -> Condition:
        return self._compare("oeq", other)

    def ne(self, other: Real) -> Condition:
        return self._compare("une", other)

    def is_nan(self) -> Condition:
        return self._compare("uno", self)

    # -- its bits -----------------------------------------------------------------------------------
    def bits(self) -> Integer:
        return Integer(self.m, self.m.cast("bitcast", self.text, self.m.t, self.m.int_t))

    def whole(self) -> Integer:
        """The integer that it is, or is nearest to it towards zero."""
        return Integer(self.m, self.m.cast("fptosi", self.text, self.m.t, self.m.int_t))


Real = Union[Number, float]
Whole = Union[Integer, int]


def text_of(m: Arithmetic, value: Real) -> str:
    return value.text if isinstance(value, Number) else m.c(value)


def of_bits(bits: Integer) -> Number:
    return Number(bits.m, bits.m.cast("bitcast", bits.text, bits.m.int_t, bits.m.t))


def as_number(whole: Integer) -> Number:
    return Number(whole.m, whole.m.cast("sitofp", whole.text, whole.m.int_t, whole.m.t))


def fma(a: Number, b: Real, c: Real) -> Number:
    """a * b + c, rounded once."""
    return Number(a.m, a.m.fma(a.text, text_of(a.m, b), text_of(a.m, c)))


def horner(x: Number, coefficients: Sequence[float]) -> Number:
    """The polynomial with these coefficients, the constant one first."""
    return Number(x.m, x.m.horner(x.text, coefficients))


def choose(condition: Condition, yes: Real, no: Real) -> Number:
    m = condition.m
    return Number(m, m.select(condition.text, text_of(m, yes), text_of(m, no)))


def choose_whole(condition: Condition, yes: Whole, no: Whole) -> Integer:
    m = condition.m
    return Integer(m, m.select(condition.text, Integer._text(yes), Integer._text(no), m.int_t))


def square_root(x: Number) -> Number:
    return Number(x.m, x.m.w.intrinsic("llvm.sqrt", x.m.t, x.text))


def nearest(x: Number) -> Number:
    """The whole number next to it, the even one of two."""
    return Number(x.m, x.m.w.intrinsic("llvm.roundeven", x.m.t, x.text))


def truncated(x: Number) -> Number:
    return Number(x.m, x.m.w.intrinsic("llvm.trunc", x.m.t, x.text))


def with_sign_of(x: Real, sign: Number) -> Number:
    return Number(sign.m, sign.m.w.intrinsic("llvm.copysign", sign.m.t, text_of(sign.m, x), sign.text))


__all__ = [
    "Condition", "Integer", "Number", "Real", "Whole", "as_number", "choose", "choose_whole", "fma", "horner",
    "nearest", "of_bits", "square_root", "text_of", "truncated", "with_sign_of",
]  # fmt: skip
