"""A window that slides over an image: what convolutions and pools have in common, for any number of dimensions.

Which element step `k` of the window sees from position `o` of the result: `o*stride + k*dilation - padding`. What hangs
over the edge is masked, only where it can; steps that no position sees inside the image are not walked at all: of a
window larger than its image, that is most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

from litz.loop.expr import Expr, is_below
from litz.loop.ir import View
from litz.ops.builder import Body, Space, Val

Beyond = Union[Callable[[Body], Val], None]  # what stands beyond the edges of an image, where it is no zero


@dataclass(frozen=True)
class SlidingWindow:
    """One number for each spatial dimension."""

    sizes: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def reach(self) -> tuple[int, ...]:
        """From the first element seen to the last."""
        return tuple((size - 1) * d for size, d in zip(self.sizes, self.dilation, strict=True))

    @property
    def is_point(self) -> bool:
        """Whether each result sees one element, its own."""
        return all(s == 1 for s in (*self.sizes, *self.stride)) and not any(self.padding)

    def starts(self, out: Sequence[Expr]) -> list[Expr]:
        return [o * s - p for o, s, p in zip(out, self.stride, self.padding, strict=True)]

    def at(self, out: Sequence[Expr], steps: Sequence[Expr]) -> tuple[Expr, ...]:
        starts = self.starts(out)
        return tuple(start + k * d for start, k, d in zip(starts, steps, self.dilation, strict=True))

    def visible(self, out: Sequence[Expr], image: Sequence[Expr]) -> list[range]:
        """The steps of each dimension that some position `out` sees inside the image; at least one."""
        found = []
        for start, size, dilation, extent in zip(self.starts(out), self.sizes, self.dilation, image, strict=True):
            low, high = start.bounds()
            first = 0 if high is None else min(max(0, -(high // dilation)), size - 1)
            end = size
            if low is not None and extent.is_int:
                end = max(first + 1, min(size, (extent.int - 1 - low) // dilation + 1))
            found.append(range(first, end))
        return found

    def walk(self, space: Space, out: Sequence[Expr], image: Sequence[Expr]) -> list[Expr]:
        """The visible steps, each dimension a reduced axis."""
        return [space.reduce_over(len(steps)) + steps.start for steps in self.visible(out, image)]

    def load(
        self, body: Body, x: View, outer: Sequence[Expr], out: Sequence[Expr], steps: Sequence[Expr],
        beyond: Beyond = None,
    ) -> Val:  # fmt: skip
        """The element seen, or zero where the window hangs over the edge; `outer` comes before the spatial places."""
        place = self.at(out, steps)
        return load_inside(body, x, (*outer, *place), inside(body, place, x.sizes[len(outer) :]), beyond)


def load_inside(body: Body, x: View, at: Sequence[Expr], mask: Val | None, beyond: Beyond = None) -> Val:
    """The element there; where the mask does not hold, zero, or what stands `beyond`."""
    value = body.load(x, tuple(at), mask)
    return value if mask is None or beyond is None else body.where(mask, value, beyond(body))


def spread(values: int | Sequence[int], spatial: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """One number for every spatial dimension, as ATen spells them: a list, one for all, or left out."""
    values = (values,) if isinstance(values, int) else tuple(values) or tuple(default)
    return values if len(values) == spatial else values * spatial


def inside(body: Body, place: Sequence[Expr], sizes: Sequence[Expr]) -> Val | None:
    """Whether a place lies in a tensor of `sizes`; None where it always does."""
    tests = []
    for position, size in zip(place, sizes, strict=True):
        low = position.bounds()[0]
        if low is None or low < 0:
            tests.append(body.index(position) >= 0)
        if not is_below(position, size):
            tests.append(body.index(position) < body.index(size))
    return conjunction(tests)


def conjunction(tests: Sequence[Val]) -> Val | None:
    whole: Val | None = None
    for test in tests:
        whole = test if whole is None else whole & test
    return whole
