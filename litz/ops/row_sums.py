"""Sums down the rows of a tensor: every column, which is contiguous with its neighbours, adds up a long strided run.

In: the dimensions to add up and what to add. Out: two kernels. The first adds stretches of rows, a vector of
columns at a time, so that all threads have work however few the columns; the second adds up the stretches.
Short runs added to a few others are also more accurate than one long run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litz.loop.expr import Expr, expr
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Space, Val, numel
from litz.ops.window import conjunction

_STRETCH = 64  # rows added up in one go
_MOST_STRETCHES = 256

# What to add at a point of the tensor: one value a sum. Loads take the mask, which says, if there is one, whether
# the row exists.
Terms = Callable[[Body, Point, "Val | None"], Sequence[Val]]
# What to do with the sums at a point of the dimensions kept.
Use = Callable[[Body, Point, Sequence[Val]], None]


def sum_rows(b: Builder, x: View, dims: Sequence[int], terms: Terms, use: Use) -> None:
    """Add up `terms` over `dims` of a tensor like `x`, whose sizes are not zero. Those that are known only at run time
    are cut when the sum is (see `codegen/llvm/loops.py`), and here are not; nor are any where the target would rather
    have them cut later (`schedule/split_reductions.py`)."""
    order = sorted(dims, key=lambda d: -x.strides[d].hint)
    kept = [d for d in range(len(x.sizes)) if d not in dims]
    if not b.ctx.target.cuts_sums_early or not all(x.sizes[d].is_int for d in dims):
        space, body = Space(), Body()
        place = space.over([x.sizes[d] for d in kept], [x.strides[d] for d in kept])
        along = dict(zip(kept, place, strict=True)) | {d: space.reduce_over(x.sizes[d]) for d in order}
        each = terms(body, tuple(along[d] for d in range(len(x.sizes))), None)
        use(body, place, [_sum(space, body, term) for term in each])
        b.emit(space, body)
        return
    cuts = _cut([x.sizes[d].int for d in order])
    space, body = Space(), Body()
    parts = space.over([expr(count) for count, _ in cuts])
    place = space.over([x.sizes[d] for d in kept], [x.strides[d] for d in kept])
    point: list[Expr] = [expr(0)] * len(x.sizes)
    for d, i in zip(kept, place, strict=True):
        point[d] = i
    tests = []
    for d, part, (count, run) in zip(order, parts, cuts, strict=True):
        point[d] = part * run + space.reduce_over(run)
        if count * run > x.sizes[d].int:
            tests.append(body.index(point[d]) < x.sizes[d].int)
    sums = [_sum(space, body, term) for term in terms(body, tuple(point), conjunction(tests))]
    if all(count == 1 for count, _ in cuts):
        use(body, place, sums)
        b.emit(space, body)
        return
    sizes = [*(expr(count) for count, _ in cuts), *(x.sizes[d] for d in kept)]
    partial = [b.scratch(sizes, term.dtype) for term in sums]
    for view, term in zip(partial, sums, strict=True):
        body.store(view, (*parts, *place), term)
    b.emit(space, body)
    space, body = Space(), Body()
    place = space.over([x.sizes[d] for d in kept])
    whole = [space.reduce_over(count) for count, _ in cuts]
    use(body, place, [_sum(space, body, body.load(view, (*whole, *place))) for view in partial])
    b.emit(space, body)


def adds_rows(x: View, dims: Sequence[int]) -> bool:
    """Whether the dimensions kept hold the contiguous one, and there is enough to add up to be worth two kernels."""
    if not all(s.is_int and s.int > 0 for s in x.sizes) or not all(s.is_int for s in x.strides):
        return False
    kept = [d for d in range(len(x.sizes)) if d not in dims and x.sizes[d].int > 1]
    if numel([x.sizes[d] for d in dims]).int < 2 * _STRETCH or not kept:
        return False
    return min(x.strides[d].int for d in kept) == 1 and all(x.strides[d].int > 1 for d in dims if x.sizes[d].int > 1)


def _sum(space: Space, body: Body, value: Val) -> Val:
    return body.reduce("sum", value) if space.reduced else value


def _cut(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """For each dimension, outermost first, how many stretches of how many steps; the last may hang over the end."""
    total = 1
    for size in sizes:
        total *= size
    wanted = min(max(total // _STRETCH, 1), _MOST_STRETCHES)
    cuts = []
    for size in sizes:
        count = _stretches(size, wanted)
        cuts.append((count, -(-size // count)))
        wanted = max(wanted // count, 1)
    return cuts


def _stretches(size: int, wanted: int) -> int:
    if size <= wanted:
        return size
    even = [count for count in range(-(-wanted // 2), 2 * wanted + 1) if size % count == 0]
    if even:
        return min(even, key=lambda count: abs(count - wanted))
    run = -(-size // wanted)
    return -(-size // run)
