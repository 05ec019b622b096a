"""Merge two kernels into one: their iteration spaces aligned, values in the place of memory.

In: a producer and a consumer, or two readers of one buffer. Out: the `Merge`, which is complete but not done yet, or
the `Refusal` that says why the two stay two.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from litz.loop.radix import flat, volume
from litz.schedule.align import Moved, Refusal, Space, align
from litz.schedule.draft import Addition, Draft
from litz.schedule.split_reductions import cut_of, is_known_early
from litz.target import Machine

LARGEST_BODY = 240

TOO_LARGE = Refusal(f"together they have more than {LARGEST_BODY} operators")
PRODUCT_SECOND = Refusal("a matrix product takes its arguments from memory")
_PRODUCT_FIRST = Refusal("after a matrix product come the readers of its result that reduce nothing")
_ORDERED = Refusal("one of them takes its steps one after the other")
_AGAIN = Refusal("it would be computed again for every step that updates memory")
_NO_PLACE = Refusal("the shared buffer is touched under a mask only")
_NOT_MADE = Refusal("what both read would be read once, but reduced once for every row")
_FEW_ROWS = Refusal("there are too few rows to share among threads")
_POSITIONS = Refusal("the two count positions in another order")
_NO_PRODUCT = Refusal("the matrix product would no longer be one")


class Merge(NamedTuple):
    """Two kernels as one: `draft`, which has the first, and what the second adds."""

    draft: Draft
    addition: Addition
    second: Draft

    def done(self) -> Draft:
        self.draft.take(self.addition, self.second.name, self.second.origins)
        self.draft.ordered |= self.second.ordered
        self.draft.updates |= self.second.updates
        return self.draft


def merge(first: Draft, second: Draft, buffer: str, target: Machine) -> Union[Merge, Refusal]:
    """`first` runs before `second`; `buffer` is stored by `first`, or loaded by both, and loaded by `second`."""
    if len(first.ops) + len(second.ops) > LARGEST_BODY:
        return TOO_LARGE
    if first.ordered or second.ordered:
        if not target.spreads_steps:
            return _ORDERED  # what runs in vectors stays outside
        objection = _objection_in_order(first, second, buffer)
        if objection is not None:
            return objection
    if second.product is not None:
        return PRODUCT_SECOND
    if first.product is not None and (second.space.reduced or buffer not in first.stored):
        return _PRODUCT_FIRST
    here, there = first.index_of(buffer), second.unmasked.get(buffer)
    if here is None or there is None:
        return _NO_PLACE
    if second.space.reduced and not first.space.reduced:
        moved = align(here, first.space, there, second.space)
        if isinstance(moved, Refusal):
            return moved
        return _join(first, second, moved, first) if buffer in first.stored else _NOT_MADE
    moved = align(there, second.space, here, first.space)
    if isinstance(moved, Refusal):
        return moved
    if first.space.reduced and not second.space.reduced and _keeps_idle(first, second, target):
        return _FEW_ROWS
    return _join(first, second, moved, second)


def _objection_in_order(first: Draft, second: Draft, buffer: str) -> Refusal | None:
    """Steps that depend on their order are scanned or update memory. What makes one element for each of them may join
    them, and what reads the elements of a scan; but it is not made again for each of several steps."""
    other = second if first.ordered else first
    if other.ordered or other.space.reduced or first.updates:
        return _ORDERED
    place = second.unmasked.get(buffer)
    if second.updates and (place is None or {*second.space.axes} - place.axes()):
        return _AGAIN
    return None


def _keeps_idle(first: Draft, second: Draft, target: Machine) -> bool:
    """Whether keeping to the rows of the first, which reduces, would take the parallelism from the second. Where the
    first is going to be done in parts, what follows its reductions for each element would be done apart again."""
    if target.cuts_sums_early or first.ordered:  # what is scanned is not done in parts
        return _few_rows(first.space)
    if volume(second.space.parallel).hint <= volume(first.space.parallel).hint:
        return False
    kernel = first.kernel()
    late = any(name in first.stored and not is_known_early(kernel, name) for name in second.loaded)
    return late and cut_of(kernel, target) is not None


def _few_rows(space: Space) -> bool:
    rows = total = 1
    for axis in space.parallel:
        rows *= axis.size.hint
    for axis in space.reduced:
        total *= axis.size.hint
    return rows < 16 and rows * total > 1 << 15


def _join(first: Draft, second: Draft, moved: Moved, moving: Draft) -> Union[Merge, Refusal]:
    """One body over the axes of the one of the two that is not `moving`."""
    space = second.space if moving is first else first.space
    if moving.gives_positions and flat(moving.space.reduced).substitute(moved) != flat(space.reduced):
        return _POSITIONS  # the same elements, but counted otherwise
    draft = first
    if moving is first:
        draft = Draft(first.name, space)
        draft.ordered, draft.updates = first.ordered, first.updates
        begun = draft.addition(first.ops, moved)
        if isinstance(begun, Refusal):
            return begun
        draft.take(begun, first.name, first.origins)
    addition = draft.addition(second.ops, moved if moving is second else {})
    if isinstance(addition, Refusal):
        return addition
    objection = draft.objection(addition, first.divided | second.divided)
    if objection is not None:
        return objection
    if first.product is not None and draft.product_with(addition) is None:
        return _NO_PRODUCT
    return Merge(draft, addition, second)
