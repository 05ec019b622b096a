"""Reductions in registers: how two values combine, and how lanes become one.

In: a writer and operands. Out: the operand that holds the result. `argmax` and `argmin` keep a position
beside the value; of equal values the first wins, and a NaN wins over everything; in `argpool` over NaNs before it, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from litz.codegen.llvm import math
from litz.codegen.llvm.writer import Operand, Writer, literal, llvm_type
from litz.loop.dtype import DTYPES, compute_type
from litz.loop.ir import COMBINE
from litz.loop.scalar import SCALARS


def combine(w: Writer, kind: str, a: Operand, b: Operand) -> Operand:
    """Of two zeros, `max` and `min` keep the first, as eager's pools do; the scalar operators take the second."""
    if kind in ("max", "min"):
        a, b = b, a
    row = SCALARS[COMBINE[kind]]
    spelling = row.llvm[DTYPES[a.dtype].kind]
    if spelling.startswith("@"):
        return Operand(w.intrinsic(spelling[1:], a.type, a.text, b.text), a.dtype, a.lanes)
    if spelling.startswith("inline "):
        return math.inline(w, spelling.removeprefix("inline "), [a, b], a.dtype)
    if kind == "sum" and w.module.dialect.sums_from_first and DTYPES[a.dtype].kind == "float":
        spelling = spelling.replace(" {t}", " nsz {t}")
    return Operand(w.let(spelling.format(t=a.type, a=a.text, b=b.text)), a.dtype, a.lanes)


def from_zero(w: Writer, kind: str, total: Operand) -> Operand:
    """A total of terms alone, as if it had begun with zero: nothing but -0.0 adds up to 0.0 in eager."""
    if kind != "sum" or DTYPES[total.dtype].kind != "float":
        return total
    return combine(w, kind, total, w.splat(Operand(literal(0.0, total.dtype), total.dtype, 1), total.lanes))


def combine_stored(w: Writer, kind: str, a: Operand, b: Operand) -> Operand:
    """The same of values as memory holds them: half precision is computed in float32, and rounded."""
    wide = compute_type(a.dtype)
    if wide == a.dtype:
        return combine(w, kind, a, b)
    found = combine(w, kind, *(math.inline(w, "cast", [value], wide) for value in (a, b)))
    return math.inline(w, "cast", [found], a.dtype)


def running(w: Writer, kind: str, old: Operand, new: Operand) -> Operand:
    """A scan's next value. The best so far is a choice, which is sooner made than a maximum that minds signed zeros."""
    if kind == "logaddexp":
        return _logaddexp(w, old, new)
    if kind not in ("max", "min") or DTYPES[old.dtype].kind != "float":
        return combine(w, kind, old, new)
    bools = llvm_type("b1", old.lanes)
    better = w.let(f"fcmp {'oge' if kind == 'max' else 'ole'} {old.type} {new.text}, {old.text}")
    unordered = w.let(f"fcmp uno {old.type} {new.text}, {new.text}")
    taken = w.let(f"or {bools} {better}, {unordered}")
    text = w.let(f"select {bools} {taken}, {old.type} {new.text}, {old.type} {old.text}")
    return Operand(text, old.dtype, old.lanes)


def _logaddexp(w: Writer, a: Operand, b: Operand) -> Operand:
    m = math.Arithmetic(w, a.dtype, a.lanes)
    own = w.module.dialect.own.get(("logaddexp", a.dtype))
    if own is not None:
        return Operand(own(m, [a.text, b.text]), a.dtype, a.lanes)
    high = m.select(m.cmp("ogt", a.text, b.text), a.text, b.text)
    # Equal infinities are not apart.
    apart = m.select(m.cmp("oeq", a.text, b.text), m.c(0.0), m.i("fsub", a.text, b.text))
    below = Operand(w.let(f"fneg {m.t} {m.fabs(apart)}"), a.dtype, a.lanes)
    rest = math.sleef(w, "log1p", "u10", [math.inline(w, "exp", [below], a.dtype)])
    return Operand(m.i("fadd", high, rest.text), a.dtype, a.lanes)


def together(w: Writer, kind: str, vectors: Sequence[Operand], live: int) -> Operand:
    """Vectors side by side, and then their lanes, as one; `live` as in `across_lanes`."""
    first = vectors[0]
    choice = kind in ("max", "min") and DTYPES[first.dtype].kind == "float"
    if choice and first.lanes > 1 and live >= first.lanes and (kind, first.dtype) not in w.module.dialect.own:
        return _best_of_all(w, kind, vectors)
    return across_lanes(w, kind, _pairwise(vectors, lambda a, b: combine(w, kind, a, b)), live)


def _pairwise(values: Sequence[Operand], both: Callable[[Operand, Operand], Operand]) -> Operand:
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        values = [*(both(a, b) for a, b in pairs), *values[len(values) & ~1 :]]
    return values[0]


def _best_of_all(w: Writer, kind: str, vectors: Sequence[Operand]) -> Operand:
    """A choice that does not mind what is no number is one instruction, where `combine` makes four that wait for each
    other; whether any is no number is found out meanwhile."""

    def choice(a: Operand, b: Operand) -> Operand:
        m = math.Arithmetic(w, a.dtype, a.lanes)
        better = m.cmp("ogt" if kind == "max" else "olt", b.text, a.text)
        return a._replace(text=m.select(better, b.text, a.text))

    m = math.Arithmetic(w, vectors[0].dtype, vectors[0].lanes)
    unordered = (m.cmp("uno", vector.text, vector.text) for vector in vectors)
    lanes = functools.reduce(lambda a, b: m.i("or", a, b, m.bool_t), unordered)
    lost = w.intrinsic("llvm.vector.reduce.or", m.bool_t, lanes, result="i1")
    best = _across_lanes(w, _pairwise(vectors, choice), choice)
    one = math.Arithmetic(w, best.dtype, 1)
    return best._replace(text=one.select(lost, one.c(float("nan")), best.text))


def across_lanes(w: Writer, kind: str, value: Operand, live: int) -> Operand:
    """One lane of all. Where only the first `live` count, they are taken one by one: hardly slower, and in eager's
    order, whose rounding they then share."""
    if 0 < live < value.lanes:
        lanes = [
            Operand(w.let(f"extractelement {value.type} {value.text}, i32 {lane}"), value.dtype, 1)
            for lane in range(live)
        ]
        return functools.reduce(lambda a, b: combine(w, kind, a, b), lanes)
    return _across_lanes(w, value, lambda a, b: combine(w, kind, a, b))


def _across_lanes(w: Writer, value: Operand, both: Callable[[Operand, Operand], Operand]) -> Operand:
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
        value = both(*parts)
    return value


def better_than(w: Writer, kind: str, new: Operand, old: Operand) -> str:
    """Whether `new`, which comes later, replaces `old`: strictly greater (or less), or the first NaN, or any."""
    kind_of = DTYPES[new.dtype].kind
    more = kind != "argmin"
    if kind_of != "float":
        sign = "s" if kind_of == "int" else "u"
        return w.let(f"icmp {sign}{'gt' if more else 'lt'} {new.type} {new.text}, {old.text}")
    bools = llvm_type("b1", new.lanes)
    greater = w.let(f"fcmp {'ogt' if more else 'olt'} {new.type} {new.text}, {old.text}")
    new_nan = w.let(f"fcmp uno {new.type} {new.text}, {new.text}")
    if kind == "argpool":
        return w.let(f"or {bools} {greater}, {new_nan}")
    old_ok = w.let(f"fcmp ord {new.type} {old.text}, {old.text}")
    return w.let(f"or {bools} {greater}, {w.let(f'and {bools} {new_nan}, {old_ok}')}")


def first_best(w: Writer, kind: str, values: Operand, places: Operand) -> tuple[Operand, Operand]:
    """The best lane and its position; of equal ones, the smallest position, but of NaNs in `argpool` the largest."""
    if values.lanes == 1:
        return values, places
    best = Operand(w.let(f"extractelement {values.type} {values.text}, i32 0"), values.dtype, 1)
    place = Operand(w.let(f"extractelement {places.type} {places.text}, i32 0"), "i64", 1)
    for lane in range(1, values.lanes):
        value = Operand(w.let(f"extractelement {values.type} {values.text}, i32 {lane}"), values.dtype, 1)
        here = Operand(w.let(f"extractelement {places.type} {places.text}, i32 {lane}"), "i64", 1)
        best, place = better_of(w, kind, (best, place), (value, here))
    return best, place


def better_of(
    w: Writer, kind: str, one: tuple[Operand, Operand], other: tuple[Operand, Operand]
) -> tuple[Operand, Operand]:
    """Of two scalars with their positions, the one that a walk in order of positions would end with."""
    (best, place), (value, here) = one, other
    better = better_than(w, kind, value, best)
    worse = better_than(w, kind, best, value)
    later = w.let(f"icmp sgt i64 {here.text}, {place.text}")
    # Whichever comes later replaces the other if it is better, and else stays behind it.
    behind = w.let(f"xor i1 {worse}, true")
    take = w.let(f"select i1 {later}, i1 {better}, i1 {behind}")
    found = w.let(f"select i1 {take}, {best.type} {value.text}, {best.type} {best.text}")
    at = w.let(f"select i1 {take}, i64 {here.text}, i64 {place.text}")
    return best._replace(text=found), place._replace(text=at)
