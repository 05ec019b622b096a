"""Align two iteration spaces: where one kernel's axes are, in terms of another's.

In: the places in a shared buffer that the two touch, and their axes. Out: each axis of the one as an expression in
those of the other, or a `Refusal`.

The one idea: a buffer both touch gives the alignment. The producer stores element `s(i)` and the consumer loads
element `l(j)`; where `l` is a mixed-radix number in the consumer's axes, each of those is a digit of it, so `j`
follows from `s(i)` by division, and the simplifier does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Union

from litz.loop.expr import ONE, Axis, Expr, expr
from litz.loop.radix import flat, is_injective, mixed_radix, unflat, volume
from litz.loop.remember import remembered


class Refusal(NamedTuple):
    """Why two kernels stay two."""

    why: str


class Space(NamedTuple):
    """The axes of a kernel."""

    parallel: tuple[Axis, ...]
    reduced: tuple[Axis, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.parallel, *self.reduced)


Moved = Mapping[Axis, Expr]  # empty where every axis stays as it is

_NOT_A_NUMBER = Refusal("the elements are not a mixed-radix number in the axes")
_NOT_INT = Refusal("the elements begin at a place known only at run time")
_UNMENTIONED = Refusal("axes that the shared buffer does not mention have nothing to run over")
_OTHER_PLACES = Refusal("the two do not touch the same elements once each")
_OTHER_REDUCTION = Refusal("the two do not reduce over the same")
_AGAIN = Refusal("it would be computed again at every step of an axis")


@remembered
def align(own: Expr, axes: Space, place: Expr, space: Space) -> Union[Moved, Refusal]:
    """Each of `axes` in terms of `space`, such that `own` becomes `place`."""
    number = mixed_radix(own, axes.axes)
    if number is None:
        return _NOT_A_NUMBER
    if not number.offset.is_int:
        return _NOT_INT
    moved = number.digits_of(place)
    # Axes the shared buffer does not mention run over what it does not mention on the other side.
    left = [a for a in axes.axes if a not in moved]
    mentioned = place.axes()
    free = [a for a in space.axes if a not in mentioned]
    if volume(left) == volume(free):
        moved.update(unflat(flat(free), left))
    elif left:
        return _UNMENTIONED
    if own.substitute(moved) != place or number.places != volume(mentioned):
        return _OTHER_PLACES
    if not is_injective(place, frozenset(mentioned)):
        return _OTHER_PLACES
    if axes.reduced:
        # What is reduced must be exactly what the space reduces; what is kept must not be.
        inner = set(space.reduced)
        if volume(axes.reduced) != volume(space.reduced):
            return _OTHER_REDUCTION
        if any(not moved[a].axes() <= inner for a in axes.reduced):
            return _OTHER_REDUCTION
        if any(moved[a].axes() & inner for a in axes.parallel):
            return _OTHER_REDUCTION
    elif not left and free and volume(free) != ONE and any(a not in space.reduced for a in free):
        return _AGAIN
    return {} if all(e is expr(a) for a, e in moved.items()) else moved
