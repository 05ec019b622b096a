"""Reductions in registers: where one starts, how two values combine, and how lanes become one.

In: a writer and operands. Out: the operand that holds the result. `argmax` and `argmin` keep a position
beside the value; of equal values the first wins, and a NaN wins over everything.
"""

from __future__ import annotations

from litz.codegen.llvm.writer import Operand, Writer, llvm_type
from litz.loop.dtype import DTYPES
from litz.loop.scalar import SCALARS


def identity(kind: str, dtype: str) -> float | int | bool:
    number = DTYPES[dtype]
    if kind in ("sum", "any"):
        return 0
    if kind in ("prod", "all"):
        return 1
    lowest = kind in ("max", "argmax")
    if number.kind == "float":
        return float("-inf") if lowest else float("inf")
    if number.kind == "bool":
        return not lowest
    if number.kind == "uint":
        return 0 if lowest else (1 << number.bits) - 1
    return -(1 << (number.bits - 1)) if lowest else (1 << (number.bits - 1)) - 1


_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


def combine(w: Writer, kind: str, a: Operand, b: Operand) -> Operand:
    row = SCALARS[_COMBINE[kind]]
    spelling = row.llvm[DTYPES[a.dtype].kind]
    if spelling.startswith("@"):
        return Operand(w.intrinsic(spelling[1:], a.type, a.text, b.text), a.dtype, a.lanes)
    return Operand(w.let(spelling.format(t=a.type, a=a.text, b=b.text)), a.dtype, a.lanes)


def across_lanes(w: Writer, kind: str, value: Operand) -> Operand:
    """Halve the vector until one lane is left: as accurate as a pairwise sum."""
    while value.lanes > 1:
        half = value.lanes // 2
        parts = []
        for first in (0, half):
            order = ", ".join(f"i32 {first + k}" for k in range(half))
            if half == 1:
                parts.append(Operand(w.let(f"extractelement {value.type} {value.text}, i32 {first}"), value.dtype, 1))
            else:
                text = w.let(f"shufflevector {value.type} {value.text}, {value.type} poison, <{half} x i32> <{order}>")
                parts.append(Operand(text, value.dtype, half))
        value = combine(w, kind, *parts)
    return value


def better_than(w: Writer, kind: str, new: Operand, old: Operand) -> str:
    """Whether `new` replaces `old`: strictly greater (or less), or the first NaN."""
    kind_of = DTYPES[new.dtype].kind
    more = kind == "argmax"
    if kind_of != "float":
        sign = "s" if kind_of == "int" else "u"
        return w.let(f"icmp {sign}{'gt' if more else 'lt'} {new.type} {new.text}, {old.text}")
    bools = llvm_type("b1", new.lanes)
    greater = w.let(f"fcmp {'ogt' if more else 'olt'} {new.type} {new.text}, {old.text}")
    new_nan = w.let(f"fcmp uno {new.type} {new.text}, {new.text}")
    old_ok = w.let(f"fcmp ord {new.type} {old.text}, {old.text}")
    return w.let(f"or {bools} {greater}, {w.let(f'and {bools} {new_nan}, {old_ok}')}")


def first_best(w: Writer, kind: str, values: Operand, places: Operand) -> Operand:
    """The position of the best lane; of equal ones, the smallest position."""
    best = Operand(w.let(f"extractelement {values.type} {values.text}, i32 0"), values.dtype, 1)
    place = w.let(f"extractelement {places.type} {places.text}, i32 0")
    scalar = llvm_type(values.dtype)
    for lane in range(1, values.lanes):
        value = Operand(w.let(f"extractelement {values.type} {values.text}, i32 {lane}"), values.dtype, 1)
        here = w.let(f"extractelement {places.type} {places.text}, i32 {lane}")
        better = better_than(w, kind, value, best)
        worse = better_than(w, kind, best, value)
        tie = w.let(f"and i1 {w.let(f'xor i1 {worse}, true')}, {w.let(f'icmp slt i64 {here}, {place}')}")
        take = w.let(f"or i1 {better}, {tie}")
        best = Operand(w.let(f"select i1 {take}, {scalar} {value.text}, {scalar} {best.text}"), values.dtype, 1)
        place = w.let(f"select i1 {take}, i64 {here}, i64 {place}")
    return Operand(place, "i64", 1)
