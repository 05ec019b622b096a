"""Quotients and remainders of indices, in the cheapest way that is right for what is known of them.

In: a `FloorDiv` or `Mod` and its parts as text. Out: its value, rounded towards minus infinity. A processor divides
whole numbers slowly, and vectors of them one by one: a remainder that is one subtraction away is a choice, and what
loops count is divided in doubles, which hold it.
"""

from __future__ import annotations

from litz.codegen.llvm.writer import Writer
from litz.loop.expr import Axis, Expr, FloorDiv, Mod, is_below, is_nonnegative
from litz.loop.remember import remembered

# An axis stays below 2^48: no loop is walked that far. Times this it is a whole number that doubles hold.
_SMALL = 8


def divided(w: Writer, atom: FloorDiv | Mod, lanes: int, num: str, den: str) -> str:
    if isinstance(atom, Mod):
        turn = _turn(atom.num, atom.den)
        if turn is not None:
            return _turned(w, turn, lanes, num, den)
    if lanes == 1 or not _is_natural(atom):
        return _exactly(w, atom, lanes, "i64", num, den)
    if all(bound is not None and bound < 1 << 31 for bound in (atom.num.bounds()[1], atom.den.bounds()[1])):
        # 32-bit lanes divide faster; indices of that size are the rule.
        wide, narrow = f"<{lanes} x i64>", f"<{lanes} x i32>"
        parts = [w.let(f"trunc {wide} {x} to {narrow}") for x in (num, den)]
        return w.let(f"zext {narrow} {_exactly(w, atom, lanes, 'i32', *parts)} to {wide}")
    if not atom.den.is_int and _is_counted(atom.num):
        return _in_doubles(w, atom, lanes, num, den)
    return _exactly(w, atom, lanes, "i64", num, den)


def _exactly(w: Writer, atom: FloorDiv | Mod, lanes: int, element: str, num: str, den: str) -> str:
    t, bools, zero = _types(lanes, element)
    if _is_natural(atom):
        return w.let(f"{'udiv' if isinstance(atom, FloorDiv) else 'urem'} {t} {num}, {den}")
    rest = w.let(f"srem {t} {num}, {den}")
    apart = w.let(f"icmp slt {t} {w.let(f'xor {t} {rest}, {den}')}, {zero}")
    off = w.let(f"and {bools} {w.let(f'icmp ne {t} {rest}, {zero}')}, {apart}")
    if isinstance(atom, Mod):
        return w.let(f"add {t} {rest}, {w.let(f'select {bools} {off}, {t} {den}, {t} {zero}')}")
    # A true bit extended is minus one.
    return w.let(f"add {t} {w.let(f'sdiv {t} {num}, {den}')}, {w.let(f'sext {bools} {off} to {t}')}")


def _turned(w: Writer, turn: str, lanes: int, num: str, den: str) -> str:
    t, bools, zero = _types(lanes, "i64")
    beyond = w.let(f"icmp slt {t} {num}, {zero}" if turn == "add" else f"icmp sge {t} {num}, {den}")
    return w.let(f"select {bools} {beyond}, {t} {w.let(f'{turn} {t} {num}, {den}')}, {t} {num}")


def _in_doubles(w: Writer, atom: FloorDiv | Mod, lanes: int, num: str, den: str) -> str:
    """A numerator below 2^52: the next whole number above a quotient is further away than rounding goes."""
    t, reals = f"<{lanes} x i64>", f"<{lanes} x double>"
    top, bottom = (w.let(f"sitofp {t} {x} to {reals}") for x in (num, den))
    quotient = w.intrinsic("llvm.floor", reals, w.let(f"fdiv {reals} {top}, {bottom}"))
    if isinstance(atom, Mod):
        negated = w.let(f"fneg {reals} {quotient}")
        quotient = w.intrinsic("llvm.fma", reals, negated, bottom, top)
    return w.let(f"fptosi {reals} {quotient} to {t}")


def _types(lanes: int, element: str) -> tuple[str, str, str]:
    if lanes == 1:
        return element, "i1", "0"
    return f"<{lanes} x {element}>", f"<{lanes} x i1>", "zeroinitializer"


@remembered
def _turn(num: Expr, den: Expr) -> str | None:
    """What to do with the denominator, once, where the numerator is out of range: it never is by more."""
    if is_below(num, den):
        return "add" if is_nonnegative(num + den) else None
    return "sub" if is_nonnegative(num) and is_below(num, den * 2) else None


def _is_counted(num: Expr) -> bool:
    """Whether it is a sum of axes, each of them a few times."""
    return all(
        (not monomial and abs(factor) < 1 << 48)
        or (len(monomial) == 1 and isinstance(monomial[0], Axis) and abs(factor) <= _SMALL)
        for monomial, factor in num.terms
    )


def _is_natural(atom: FloorDiv | Mod) -> bool:
    """Whether neither part is ever negative."""
    return all(low is not None and low >= 0 for low in (atom.num.bounds()[0], atom.den.bounds()[0]))
