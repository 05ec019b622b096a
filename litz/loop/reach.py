"""Where an index reaches: out of a buffer, or into what another index reaches.

In: index expressions, whose axes and checked values have known limits. Out: what can be proved of them.
"""

from __future__ import annotations

from math import prod

import numpy as np

from litz.loop.expr import Atom, Axis, Expr, FloorDiv, Mod
from litz.loop.remember import remembered

# More points than this are not worth enumerating: the index then counts as not proved wrong.
ENUMERABLE = 1 << 18


@remembered
def leaves(index: Expr) -> tuple[Atom, ...]:
    """The axes, sizes and values of an index, once each."""
    return tuple(dict.fromkeys(a for a in index.atoms() if not isinstance(a, (FloorDiv, Mod))))


def disjoint(one: Expr, other: Expr) -> bool:
    (low, high), (other_low, other_high) = one.bounds(), other.bounds()
    before = high is not None and other_low is not None and high < other_low
    return before or (other_high is not None and low is not None and other_high < low)


@remembered
def outside(index: Expr, size: int, below: bool) -> int | None:
    """An offset the index reaches outside `[0, size)`; None where none is proved."""
    low, high = index.bounds()
    far = high if high is not None and high >= size else low if below and low is not None and low < 0 else None
    if far is None:
        return None
    found = leaves(index)
    if sum(1 for _ in index.atoms()) == len(found):
        return far  # each axis once, in no division: the bound is reached
    # `bounds` takes each term by itself, and terms that share an axis may never peak together: try all points.
    limits = [getattr(leaf, "size" if isinstance(leaf, Axis) else "limit", None) for leaf in found]
    extents = [limit.int for limit in limits if limit is not None and limit.is_int]
    if len(extents) != len(found) or prod(extents) > ENUMERABLE:
        return None
    points = dict(zip(found, np.ogrid[tuple(slice(extent) for extent in extents)], strict=True))
    reached = np.asarray(index.evaluate(points.__getitem__))
    top, bottom = int(reached.max()), int(reached.min())
    return top if top >= size else bottom if below and bottom < 0 else None
