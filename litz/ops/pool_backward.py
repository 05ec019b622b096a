"""Gradients of pooling, turned round: every element of the input asks which windows saw it, and adds up their share.

A scatter from the windows would have threads add to one element at once; a gather needs no atomics, and its
order is fixed. Along a dimension an element lies in at most a few windows, which one reduced axis counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.expr import ZERO, Expr, expr
from litz.loop.ir import View
from litz.ops import update
from litz.ops.builder import Body, Builder, Point, Space, Val, numel
from litz.ops.index import flatten, unflatten
from litz.ops.norm import over
from litz.ops.pool import Spans
from litz.ops.registry import lowers
from litz.ops.window import conjunction, inside, spread

aten = torch.ops.aten

_FEW = 4  # windows an element may lie in that are written out one by one


@dataclass(frozen=True)
class _Windows:
    """The windows along one dimension: window `o` of `count` starts at `o*stride - padding` and is `reach` long."""

    stride: int
    padding: int
    reach: int
    count: int | None  # None: known only at run time

    @property
    def most(self) -> int:
        """How many windows an element may lie in."""
        several = -(-self.reach // self.stride)
        return several if self.count is None else min(several, self.count)

    @property
    def all_are_asked(self) -> bool:
        """Whether an element asks every window there is, since it may lie in all of them."""
        return self.most == self.count

    def seeing(self, i: Expr, k: Expr) -> Expr:
        """The `k`-th window that may see element `i`: of all, or counted from the last, and then it may not exist."""
        return k if self.all_are_asked else (i + self.padding) // self.stride - k

    def sees(self, body: Body, i: Expr, o: Expr) -> list[Val]:
        """What has to hold, beyond that window `o` exists, for it to see element `i`."""
        offset = i - self.start(o)
        if not self.all_are_asked:  # it begins no later, and ends too soon only if strides leave a rest
            return [body.index(offset) < self.reach] if self.reach % self.stride else []
        low, high = offset.bounds()
        tests = [body.index(offset) >= 0] if low is None or low < 0 else []
        return tests if high is not None and high < self.reach else [*tests, body.index(offset) < self.reach]

    def start(self, o: Expr) -> Expr:
        return o * self.stride - self.padding

    def counted(self, body: Body, start: Expr, size: Expr, edge: int, dtype: str) -> Val | int:
        """How much of the window at `start` an average counts: a number where that is the same for all."""
        if self.count is not None and size.is_int:
            starts = [o * self.stride - self.padding for o in range(self.count)]
            lengths = {min(s + self.reach, size.int + edge) - max(s, -edge) for s in starts}
            if len(lengths) == 1:
                return lengths.pop()
        begin = body.apply("max", body.index(start), -edge)
        end = body.apply("min", body.index(start + self.reach), size + edge)
        # A window that does not exist counts nothing, and nothing must not divide.
        return body.cast(body.apply("max", end - begin, 1), dtype)


def _measured(*views: View) -> bool:
    return all(is_float(v.dtype) or v.dtype == "i64" for v in views) and all(
        s is not ZERO for v in views for s in v.sizes
    )


def _gather(
    b: Builder, out: View, windows: Sequence[_Windows], sizes: Sequence[Expr],
    share: Callable[[Body, Point, Point, Val | None], Val],
) -> None:  # fmt: skip
    """Each element of `out`: the sum of `share(body, element, window, exists)` over the windows it may lie in."""
    spatial = len(windows)
    space, body = Space(), Body()
    point = space.over(out.sizes, out.strides)
    few = prod(w.most for w in windows) <= _FEW
    # A few windows are written out, so that nothing is reduced and the kernel fuses as any pointwise one does.
    choices = [[expr(k) for k in range(w.most)] if few else [space.reduce_over(w.most)] for w in windows]
    total: Val | None = None
    for chosen in product(*choices):
        places = tuple(w.seeing(i, k) for w, i, k in zip(windows, point[-spatial:], chosen, strict=True))
        value = share(body, point, (*point[:-spatial], *places), inside(body, places, sizes))
        total = value if total is None else total + value
    assert total is not None
    # Eager adds to zeros: a share of -0.0 leaves 0.0.
    body.store(out, point, total + 0.0 if few else over(space, body, "sum", total))
    b.emit(space, body)


# -- maximum ----------------------------------------------------------------------------------
@lowers(aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default)
def max_pool_backward(
    b: Builder, node: fx.Node, grad: View, x: View, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, indices: View,
) -> Any:  # fmt: skip
    spatial = 2 if node.target is aten.max_pool2d_with_indices_backward.default else 3
    if not _measured(grad, indices):
        return NotImplemented
    strides = spread(stride, spatial, spread(kernel, spatial))
    if b.ctx.target.walks_in_order and _strided_gather(node.meta["val"], strides):
        return _add_to_winners(b, node, grad, indices, spatial)
    kernel = spread(kernel, spatial)
    stride, padding, dilation = spread(stride, spatial, kernel), spread(padding, spatial), spread(dilation, spatial)
    counts = [size.int if size.is_int else None for size in grad.sizes[-spatial:]]
    steps = zip(kernel, stride, padding, dilation, counts, strict=True)
    windows = [_Windows(s, p, (k - 1) * d + 1, count) for k, s, p, d, count in steps]
    out = b.allocate(node.meta["val"])
    dtype = compute_type(grad.dtype)

    def share(body: Body, point: Point, window: Point, exists: Val | None) -> Val:
        flat = flatten(point[-spatial:], out.sizes[-spatial:])
        # The index names the element that won: whether the window saw this one is no separate question.
        chosen = body.load(indices, window, exists).eq(body.index(flat))
        chosen = chosen if exists is None else chosen & exists
        return body.where(chosen, body.cast(body.load(grad, window, exists), dtype), 0)

    _gather(b, out, windows, grad.sizes[-spatial:], share)
    return out


@lowers(
    aten.adaptive_max_pool2d_backward.default,
    aten.adaptive_max_pool3d_backward.default,
    aten.fractional_max_pool2d_backward.default,
    aten.fractional_max_pool3d_backward.default,
    in_order=True,
)
def max_backward(b: Builder, node: fx.Node, grad: View, x: View, *rest: Any) -> Any:
    return _add_to_winners(b, node, grad, rest[-1], 3 if "3d" in str(node.target) else 2)


def _add_to_winners(b: Builder, node: fx.Node, grad: View, indices: View, spatial: int) -> Any:
    """Windows of any shape: each adds its gradient to the element that won, which its index names."""
    fake, dtype = node.meta["val"], compute_type(grad.dtype)
    if not is_float(dtype):
        return NotImplemented
    made = update.started(b, fake, 0, dtype)
    outer = len(grad.sizes) - spatial
    plane = made.sizes[outer:]

    def step(body: Body, at: Point, inner: Point) -> None:
        winner = body.position(body.load(indices, (*at, *inner)), numel(plane), wrap=False)
        value = body.cast(body.load(grad, (*at, *inner)), dtype)
        body.update(made, (*at, *unflatten(winner, plane)), "sum", value)

    update.walk(b, made.sizes[:outer], made.strides[:outer], grad.sizes[outer:], step)
    return update.finished(b, fake, made)


def _strided_gather(fake: torch.Tensor, stride: Sequence[int]) -> bool:
    """Whether neighbours in memory are neighbours in space, whose windows lie apart: asking them costs more."""
    return fake.stride(-1) == 1 and fake.shape[-1] > 1 and stride[-1] > 1


# -- average ----------------------------------------------------------------------------------
@lowers(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def avg_pool_backward(
    b: Builder, node: fx.Node, grad: View, x: View, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor: int | None,
) -> Any:  # fmt: skip
    spatial = 2 if node.target is aten.avg_pool2d_backward.default else 3
    if not _measured(grad):
        return NotImplemented
    kernel = spread(kernel, spatial)
    stride, padding = spread(stride, spatial, kernel), spread(padding, spatial)
    counts = [size.int if size.is_int else None for size in grad.sizes[-spatial:]]
    windows = [_Windows(s, p, k, count) for k, s, p, count in zip(kernel, stride, padding, counts, strict=True)]
    out = b.allocate(node.meta["val"])
    dtype = compute_type(grad.dtype)
    sizes = out.sizes[-spatial:]

    def share(body: Body, point: Point, window: Point, exists: Val | None) -> Val:
        tests = [] if exists is None else [exists]
        for w, i, o in zip(windows, point[-spatial:], window[-spatial:], strict=True):
            tests += w.sees(body, i, o)
        mask = conjunction(tests)
        incoming = body.cast(body.load(grad, window, mask), dtype)
        if divisor is not None:
            return incoming / divisor
        for w, o, size in zip(windows, window[-spatial:], sizes, strict=True):
            edge = w.padding if count_include_pad else 0
            incoming = incoming / w.counted(body, w.start(o), size, edge, dtype)
        return incoming

    _gather(b, out, windows, grad.sizes[-spatial:], share)
    return out


@lowers(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool_backward(b: Builder, node: fx.Node, grad: View, x: View) -> Any:
    spatial = 2 if node.target is aten._adaptive_avg_pool2d_backward.default else 3
    if not _measured(grad, x):
        return NotImplemented
    out = b.allocate(node.meta["val"])
    dtype = compute_type(grad.dtype)
    spans = [Spans(n, o) for n, o in zip(out.sizes[-spatial:], grad.sizes[-spatial:], strict=True)]
    space, body = Space(), Body()
    point = space.over(out.sizes, out.strides)
    tests, places = [], []
    for span, i in zip(spans, point[-spatial:], strict=True):
        if span.even:
            places.append(i // (span.size // span.out))
            continue
        # Output o takes in i just if i*out//size <= o < ceil((i+1)*out/size).
        first, end = _outputs(span, i)
        place = first + space.reduce_over(_most_outputs(span))
        tests.append(body.index(place) < body.index(end))
        places.append(place)
    value = body.cast(body.load(grad, (*point[:-spatial], *places), conjunction(tests)), dtype)
    for span, o in zip(spans, places, strict=True):
        value = value / span.length(o)
    body.store(out, point, over(space, body, "sum", value))
    b.emit(space, body)
    return out


def _outputs(span: Spans, i: Expr) -> tuple[Expr, Expr]:
    """The first output that takes in element `i`, and the one after the last."""
    return (i * span.out) // span.size, (i * span.out + span.out + span.size - 1) // span.size


def _most_outputs(span: Spans) -> Expr:
    """How many outputs take in one element, at most."""
    if not (span.size.is_int and span.out.is_int):
        return (span.out + span.size - 1) // span.size + 1
    ends = (_outputs(span, expr(k)) for k in range(span.size.int))
    return expr(max(end.int - first.int for first, end in ends))
