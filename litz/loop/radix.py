"""Mixed-radix numbers: an index as digits, each axis one of them.

In: an index expression and the axes it runs over. Out: a `MixedRadix`, from which every axis can be had back by
division, or the proof that two points never share a place.

The one idea: where each step along an axis is longer than all that the axes below it reach together, the index is a
number written in those axes, as hours, minutes and seconds write a time. Such a number never repeats, and its digits
follow from its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from litz.loop.expr import ONE, ZERO, Axis, Expr, FloorDiv, Mod, Size, constant, expr, is_nonnegative
from litz.loop.remember import remembered


class Digit(NamedTuple):
    axis: Axis
    step: Expr


class MixedRadix(NamedTuple):
    """`offset` plus each axis times its step, the most significant first."""

    digits: tuple[Digit, ...]
    offset: Expr

    @property
    def places(self) -> Expr:
        """How many values it has."""
        return volume(digit.axis for digit in self.digits)

    @property
    def largest(self) -> Expr:
        """What it adds to its offset at most."""
        total = ZERO
        for axis, step in self.digits:
            total = total + step * (axis.size - 1)
        return total

    def digits_of(self, value: Expr) -> dict[Axis, Expr]:
        """Each axis where the number is `value`."""
        value = value - self.offset
        return {axis: (value // step) % axis.size for axis, step in self.digits}


@remembered
def mixed_radix(index: Expr, axes: tuple[Axis, ...]) -> MixedRadix | None:
    """The index as a number in those of `axes` that it mentions; None if two places may coincide."""
    digits = []
    offset = index
    for axis in axes:
        step = index.coefficient(axis)
        if step is None:
            return None
        if step is ZERO:
            continue
        if step.axes() or step.values() or not is_nonnegative(step - 1):
            return None
        digits.append(Digit(axis, step))
        offset = offset - expr(axis) * step
    digits.sort(key=lambda digit: -digit.step.hint)
    reach = ZERO
    for axis, step in reversed(digits):
        if not is_nonnegative(step - 1 - reach):
            return None
        reach = reach + step * (axis.size - 1)
    return MixedRadix(tuple(digits), offset)


def volume(axes: Iterable[Axis]) -> Expr:
    """The number of points over the axes."""
    total = ONE
    for axis in axes:
        total = total * axis.size
    return total


def flat(axes: Iterable[Axis]) -> Expr:
    """The number that counts through the axes, last fastest."""
    number = ZERO
    for axis in axes:
        number = number * axis.size + axis
    return number


def unflat(number: Expr, axes: Iterable[Axis]) -> dict[Axis, Expr]:
    """Each axis where `flat(axes)` is `number`."""
    found: dict[Axis, Expr] = {}
    for axis in reversed(tuple(axes)):
        found[axis] = number % axis.size
        number = number // axis.size
    return found


@remembered
def is_injective(index: Expr, axes: frozenset[Axis]) -> bool:
    """Whether no two points over the axes surely have one index: as many points as places are then all places."""
    turned = {a: a.size - 1 - a for a in axes if (c := index.coefficient(a)) is not None and is_nonnegative(-c - 1)}
    index = index.substitute(turned) if turned else index
    if mixed_radix(index, tuple(axes)) is not None:
        return True
    parts = _parts(index)
    if parts is None:
        return False
    reach = ZERO
    for part in sorted(parts, key=lambda part: part.step.hint):
        if not is_nonnegative(part.step - 1 - reach):
            return False
        reach = reach + part.step * part.most
    by_whole: dict[Expr, list[_Part]] = {}
    for part in parts:
        by_whole.setdefault(part.whole, []).append(part)
    within = [whole.axes() for whole in by_whole]
    if sum(map(len, within)) != len(set().union(*within)) or not axes <= set().union(*within):
        return False
    return all(_is_whole(whole, digits) for whole, digits in by_whole.items())


class _Part(NamedTuple):
    """`step` times a digit of `whole`: `whole // start % below`, where no `below` is the rest of it."""

    step: Expr
    whole: Expr
    start: Expr
    below: Expr | None
    most: Expr


def _parts(index: Expr) -> list[_Part] | None:
    """The terms of an index that is not linear in its axes; None where one is no digit of something linear."""
    found = []
    for monomial, factor in index.terms:
        step, atom = constant(factor), None
        for one in monomial:
            if isinstance(one, Size):
                step = step * one
            elif atom is None:
                atom = one
            else:
                return None
        if atom is None:
            continue
        whole, start, below = expr(atom), ONE, None
        if isinstance(atom, Mod):
            whole, below = atom.num, atom.den
            atom = next(whole.atoms(), atom) if len(whole.terms) == 1 else atom
        if isinstance(atom, FloorDiv) and expr(atom) is whole:
            whole, start = atom.num, atom.den
        largest = _reach(whole)
        if largest is None or not is_nonnegative(step - 1):
            return None
        found.append(_Part(step, whole, start, below, largest // start if below is None else below - 1))
    return found


def _reach(index: Expr) -> Expr | None:
    """The largest value of a mixed-radix number that begins at 0."""
    number = mixed_radix(index, tuple(index.axes()))
    return number.largest if number is not None and number.offset is ZERO else None


def _is_whole(whole: Expr, parts: Iterable[_Part]) -> bool:
    """Whether the digits are all there are, so that the number follows from them."""
    waiting = {part.start: part for part in parts}
    start, largest = ONE, _reach(whole)
    while start in waiting:
        part = waiting.pop(start)
        if part.below is None:
            return not waiting
        start = start * part.below
    return not waiting and largest is not None and is_nonnegative(start - 1 - largest)
