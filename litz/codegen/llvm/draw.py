"""Random numbers in a kernel: philox, a block of four words at a time.

In: an `Apply` of `philox` at one point of the loops. Out: the 32 bits of each lane, as its type.

A block costs as much as forty other operators and holds four words, so lanes that take their words from one block must
share it. Which do follows from the index expressions of counter and place: with the vector axis written as lanes times
the number of the vector plus the lane, lanes whose expressions become the same share. Where a number was not an index,
or vectors may begin anywhere, each lane has a block of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from litz.codegen.llvm.writer import Operand, Writer, is_number, llvm_type
from litz.loop.expr import Axis, Expr, expr, is_below, is_nonnegative
from litz.loop.ir import Apply
from litz.loop.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, WORDS

if TYPE_CHECKING:
    from litz.codegen.llvm.body import Scope

Halves = tuple[str, str]  # a number of 64 bits, the low half first, in 32 bits each


class _Lane(NamedTuple):
    """Where a lane's number stands: the block's counter, what is above it in the counter, and the word."""

    counter: Halves
    above: Halves
    word: str


def draw(scope: Scope, op: Apply, copy: int, lanes: int) -> Operand:
    w = scope.writer
    seed = _halves(w, scope.get(op.args[0], copy)) if not scope.wide(op.args[0]) else None
    drawn = _by_index(scope, op, copy, lanes) if seed is not None else None
    if drawn is not None and seed is not None:
        words = _words(w, seed, drawn)
    else:
        words = [_words(w, *_by_value(scope, op, copy, lanes, lane))[0] for lane in range(lanes)]
    return _together(w, words, op.dtype)


def _by_index(scope: Scope, op: Apply, copy: int, lanes: int) -> list[_Lane] | None:
    """The lanes of a vector, those that share a block in the same words."""
    counter, place = (scope.indices.get(name) for name in op.args[1:])
    if counter is None or place is None or any(scope.wide(v.name) for v in (*counter.values(), *place.values())):
        return None
    at: list[dict[Axis, Expr]] = [{}]
    inner = scope
    if lanes > 1:
        assert scope.vector is not None
        if not scope.writer.module.dialect.aligned or scope.shifts:
            return None
        # Vectors begin at multiples of their width, and there are only whole ones.
        vector = Axis(f"{scope.vector.name}.vector", (scope.vector.size + (lanes - 1)) // lanes)
        begins = scope.index(expr(scope.vector), copy, 1).text
        inner = replace(scope, axes={**scope.axes, vector: _divided(scope.writer, begins, lanes)})
        at = [{scope.vector: expr(vector) * lanes + lane} for lane in range(lanes)]
    known: dict[Expr, Halves] = {}

    def halves(e: Expr) -> Halves:
        if e not in known:
            known[e] = _halves(scope.writer, inner.index(e, copy, 1), is_nonnegative(e) and is_below(e, expr(1 << 32)))
        return known[e]

    found = []
    for where in at:
        block, own = counter.substitute(where), place.substitute(where)
        found.append(_Lane(halves(block), halves(own // WORDS), inner.index(own % WORDS, copy, 1).text))
    return found


def _by_value(scope: Scope, op: Apply, copy: int, lanes: int, lane: int) -> tuple[Halves, list[_Lane]]:
    """One lane of values that may be anything."""
    w = scope.writer
    seed, counter, place = (_lane_of(w, w.splat(scope.get(name, copy), lanes), lane) for name in op.args)
    above = Operand(w.let(f"ashr i64 {place.text}, 2"), "i64", 1)
    return _halves(w, seed), [_Lane(_halves(w, counter), _halves(w, above), w.let(f"and i64 {place.text}, 3"))]


def _lane_of(w: Writer, value: Operand, lane: int) -> Operand:
    text = value.text if value.lanes == 1 else w.let(f"extractelement {value.type} {value.text}, i32 {lane}")
    scalar = llvm_type(value.dtype)
    return Operand(text if scalar == "i64" else w.let(f"sext {scalar} {text} to i64"), "i64", 1)


def _divided(w: Writer, number: str, by: int) -> str:
    """A multiple of a power of two, divided by it."""
    if is_number(number):
        return str(int(number) // by)
    return w.let(f"lshr exact i64 {number}, {by.bit_length() - 1}")


def _halves(w: Writer, number: Operand, is_short: bool = False) -> Halves:
    """`is_short`: it is known to be a number of 32 bits."""
    if is_number(number.text):
        bits = int(number.text) % (1 << 64)
        return str(bits % (1 << 32)), str(bits >> 32)
    wide = _lane_of(w, number, 0).text
    low = w.let(f"trunc i64 {wide} to i32")
    return low, "0" if is_short else w.let(f"trunc i64 {w.let(f'lshr i64 {wide}, 32')} to i32")


# -- philox ---------------------------------------------------------------------------------------
def _words(w: Writer, seed: Halves, lanes: Sequence[_Lane]) -> list[str]:
    """The 32 bits of each lane."""
    blocks = {(lane.counter, lane.above): [*lane.counter, *lane.above] for lane in lanes}
    key = list(seed)
    for number in range(ROUNDS):
        if number:
            key = [w.let(f"add i32 {k}, {step}") for k, step in zip(key, KEY_STEPS, strict=True)]
        # Round by round: blocks need not wait for one another.
        for name, (c0, c1, c2, c3) in blocks.items():
            (low0, high0), (low2, high2) = (_product(w, c, m) for c, m in zip((c0, c2), MULTIPLIERS, strict=True))
            blocks[name] = [_xor(w, c1, key[0], high2), low2, _xor(w, c3, key[1], high0), low0]
    return [_chosen(w, blocks[lane.counter, lane.above], lane.word) for lane in lanes]


def _product(w: Writer, word: str, by: int) -> Halves:
    if (upper := w.module.dialect.upper_product) is not None:
        # Of words that are not: where one is the half of a larger number, LLVM would multiply all of that.
        w.module.declare(f"declare i32 @{upper}(i32, i32)")
        return w.let(f"mul i32 {word}, {by}"), w.let(f"call i32 @{upper}(i32 {word}, i32 {by})")
    whole = w.let(f"mul nuw i64 {w.let(f'zext i32 {word} to i64')}, {by}")
    return w.let(f"trunc i64 {whole} to i32"), w.let(f"trunc i64 {w.let(f'lshr i64 {whole}, 32')} to i32")


def _xor(w: Writer, a: str, b: str, c: str) -> str:
    # The first two may be the same for all threads, which is computed once for them.
    return w.let(f"xor i32 {w.let(f'xor i32 {a}, {b}')}, {c}")


def _chosen(w: Writer, words: Sequence[str], which: str) -> str:
    if is_number(which):
        return words[int(which)]
    odd, late = w.let(f"trunc i64 {which} to i1"), w.let(f"icmp uge i64 {which}, 2")
    early = w.let(f"select i1 {odd}, i32 {words[1]}, i32 {words[0]}")
    later = w.let(f"select i1 {odd}, i32 {words[3]}, i32 {words[2]}")
    return w.let(f"select i1 {late}, i32 {later}, i32 {early}")


def _together(w: Writer, words: Sequence[str], dtype: str) -> Operand:
    """The lanes as one operand: bits are a number that is never negative, where its type has room for it."""
    lanes = len(words)
    whole, source, target = words[0], "i32", llvm_type(dtype, lanes)
    if lanes > 1:
        whole, source = "poison", f"<{lanes} x i32>"
        for lane, word in enumerate(words):
            whole = w.let(f"insertelement {source} {whole}, i32 {word}, i32 {lane}")
    if source != target:
        whole = w.let(f"{'zext' if llvm_type(dtype) == 'i64' else 'trunc'} {source} {whole} to {target}")
    return Operand(whole, dtype, lanes)


__all__ = ["draw"]
