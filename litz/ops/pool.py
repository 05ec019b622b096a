"""Pooling: a reduction over a window that slides over the input, for any number of spatial dimensions.

In: the window (size, stride, padding, dilation); the result's shape is the fake tensor's, so `ceil_mode`
needs no thought.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.expr import ZERO, Expr, ExprLike, expr
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Space, Val, numel, wants
from litz.ops.norm import over
from litz.ops.registry import lowers
from litz.ops.window import SlidingWindow, conjunction, inside, spread

aten = torch.ops.aten


def lowest(body: Body, dtype: str) -> Val:
    if is_float(dtype):
        return body.const(-math.inf, dtype)
    return body.const(torch.iinfo(getattr(torch, _INT_NAMES[dtype])).min, dtype)


_INT_NAMES = {"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8"}


# -- maximum ----------------------------------------------------------------------------------
@lowers(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool(
    b: Builder, node: fx.Node, x: View, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> Any:  # fmt: skip
    spatial = 2 if node.target is aten.max_pool2d_with_indices.default else 3
    if x.dtype == "b1" or numel(x.sizes) == 0:
        return NotImplemented
    kernel = spread(kernel, spatial)
    window = SlidingWindow(kernel, spread(stride, spatial, kernel), spread(padding, spatial), spread(dilation, spatial))
    values = b.allocate(node.meta["val"][0])
    places = b.allocate(node.meta["val"][1]) if wants(node, 1) else None
    sizes = x.sizes[-spatial:]
    dtype = compute_type(x.dtype)
    space, body = Space(), Body()
    point = space.over(values.sizes, values.strides)
    outer, out = point[:-spatial], point[-spatial:]
    place = window.at(out, window.walk(space, out, sizes))
    mask = inside(body, place, sizes)
    value = body.cast(body.load(x, (*outer, *place), mask), dtype)
    if mask is not None:
        value = body.where(mask, value, lowest(body, dtype))
    top = over(space, body, "max", value)
    body.store(values, point, top)
    if places is not None:
        visible, starts = window.visible(out, sizes), window.starts(out)
        chosen = _unflatten(body, over(space, body, "argpool", value), [len(steps) for steps in visible])
        chosen = [k + steps.start for k, steps in zip(chosen, visible, strict=True)]
        if any(window.padding):
            # In a window of nothing but the lowest value the argmax may point into the padding: take the first inside.
            first = [_first_inside(body, start, d) for start, d in zip(starts, window.dilation, strict=True)]
            nothing = top.eq(lowest(body, dtype))
            chosen = [body.where(nothing, f, c) for f, c in zip(first, chosen, strict=True)]
        flat = body.const(0, "i64")
        for k, start, d, size in zip(chosen, starts, window.dilation, sizes, strict=True):
            flat = flat * body.index(size) + (k * d + body.index(start))
        body.store(places, point, flat)
    b.emit(space, body)
    return values, places


def _unflatten(body: Body, flat: Val, sizes: Sequence[ExprLike]) -> list[Val]:
    place: list[Val] = []
    for size in reversed(sizes):
        quotient = body.apply("floor_div", flat, expr(size))
        place.append(flat - quotient * expr(size))
        flat = quotient
    return place[::-1]


def _first_inside(body: Body, start: Expr, dilation: int) -> Val:
    """The first step of the window that is not before the edge."""
    missing = body.apply("max", body.index(-start), 0)
    return body.apply("floor_div", missing + (dilation - 1), dilation)


# -- average ----------------------------------------------------------------------------------
@lowers(aten.avg_pool1d.default)
def avg_pool1d(
    b: Builder, node: fx.Node, x: View, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
) -> Any:  # fmt: skip
    return _avg_pool(b, node, x, 1, kernel, stride, padding, count_include_pad, None)


@lowers(aten.avg_pool2d.default)
def avg_pool2d(
    b: Builder, node: fx.Node, x: View, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:  # fmt: skip
    return _avg_pool(b, node, x, 2, kernel, stride, padding, count_include_pad, divisor_override)


@lowers(aten.avg_pool3d.default)
def avg_pool3d(
    b: Builder, node: fx.Node, x: View, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:  # fmt: skip
    return _avg_pool(b, node, x, 3, kernel, stride, padding, count_include_pad, divisor_override)


def _avg_pool(
    b: Builder, node: fx.Node, x: View, spatial: int, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], count_include_pad: bool, divisor: int | None,
) -> Any:  # fmt: skip
    dtype = compute_type(x.dtype)
    if not is_float(dtype) or divisor == 0:  # which eager refuses
        return NotImplemented
    kernel = spread(kernel, spatial)
    window = SlidingWindow(kernel, spread(stride, spatial, kernel), spread(padding, spatial), (1,) * spatial)
    sizes = x.sizes[-spatial:]
    out = b.allocate(node.meta["val"])
    space, body = Space(), Body()
    point = space.over(out.sizes, out.strides)
    outer, places = point[:-spatial], point[-spatial:]
    value = body.cast(window.load(body, x, outer, places, window.walk(space, places, sizes)), dtype)
    total = over(space, body, "sum", value)
    if divisor is not None:
        total = total / divisor
    else:
        edges = window.padding if count_include_pad else (0,) * spatial
        count = _window_size(body, window.starts(places), kernel, sizes, edges)
        total = total / (count if isinstance(count, int) else body.cast(count, dtype))
    body.store(out, point, total)
    b.emit(space, body)
    return out


def _window_size(
    body: Body, starts: Sequence[Expr], kernel: Sequence[int], sizes: Sequence[Expr], edges: Sequence[int]
) -> Val | int:
    """How much of the window lies in the input and its counted edge: a number where it always is the same."""
    fixed, varying = 1, None
    for start, k, size, edge in zip(starts, kernel, sizes, edges, strict=True):
        low, high = start.bounds()
        limit = size + edge
        if low is not None and high is not None and low >= -edge and limit.is_int and high + k <= limit.int:
            fixed *= k
            continue
        begin = body.apply("max", body.index(start), -edge)
        end = body.apply("min", body.index(start + k), body.index(limit))
        varying = end - begin if varying is None else varying * (end - begin)
    return fixed if varying is None else varying * fixed


# -- adaptive ---------------------------------------------------------------------------------
class Spans:
    """One dimension of adaptive pooling: output `o` of `out` takes in `o*size//out` up to `ceil((o+1)*size/out)`."""

    def __init__(self, size: Expr, out: Expr):
        self.size, self.out = size, out
        self.even = size % out is ZERO
        if size.is_int and out.is_int:
            n, count = size.int, out.int
            self.longest = expr(max(-((-(o + 1) * n) // count) - o * n // count for o in range(count)))
        else:  # at most: it may take in part of a step at either end
            self.longest = size // out if self.even else (size + out - 1) // out + 1

    def start(self, o: Expr) -> Expr:
        return o * (self.size // self.out) if self.even else (o * self.size) // self.out

    def length(self, o: Expr) -> Expr:
        """Of the span at `o`."""
        end = (o * self.size + self.size + self.out - 1) // self.out
        return self.longest if self.even else end - self.start(o)


def _adaptive(
    b: Builder, node: fx.Node, x: View, out: View, spatial: int, use: Callable[[Space, Body, Point, Any, Any], None]
) -> None:
    """A kernel over `out`; `use(space, body, point, spans, steps)` reads what each span holds and stores it."""
    spans = [Spans(n, o) for n, o in zip(x.sizes[-spatial:], out.sizes[-spatial:], strict=True)]
    space, body = Space(), Body()
    point = space.over(out.sizes, out.strides)
    use(space, body, point, spans, [space.reduce_over(span.longest) for span in spans])
    b.emit(space, body)


def _read_span(
    body: Body, x: View, point: Point, spans: Sequence[Spans], steps: Sequence[Expr]
) -> tuple[Val, Val | None]:
    """The element at a step of the span, and whether it is in the span at all (None: always)."""
    spatial = len(spans)
    outer, places = point[:-spatial], point[-spatial:]
    tests = [
        body.index(step) < body.index(span.length(o))
        for span, o, step in zip(spans, places, steps, strict=True)
        if not span.even
    ]
    mask = conjunction(tests)
    place = [span.start(o) + step for span, o, step in zip(spans, places, steps, strict=True)]
    return body.cast(body.load(x, (*outer, *place), mask), compute_type(x.dtype)), mask


def _measurable(x: View, out: Sequence[int]) -> bool:
    return numel(x.sizes) != 0 and all(o > 0 for o in out)


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(b: Builder, node: fx.Node, x: View, out_size: Sequence[int]) -> Any:
    if not is_float(x.dtype) or not _measurable(x, out_size):
        return NotImplemented
    out = b.allocate(node.meta["val"])

    def use(space: Space, body: Body, point: Point, spans: Sequence[Spans], steps: Sequence[Expr]) -> None:
        value, _ = _read_span(body, x, point, spans, steps)
        total = over(space, body, "sum", value)
        for span, o in zip(spans, point[-len(spans) :], strict=True):
            total = total / span.length(o)
        body.store(out, point, total)

    _adaptive(b, node, x, out, len(out_size), use)
    return out


@lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(b: Builder, node: fx.Node, x: View, out_size: Sequence[int]) -> Any:
    if x.dtype == "b1" or not _measurable(x, out_size):
        return NotImplemented
    values = b.allocate(node.meta["val"][0])
    places = b.allocate(node.meta["val"][1]) if wants(node, 1) else None
    sizes = x.sizes[-len(out_size) :]

    def use(space: Space, body: Body, point: Point, spans: Sequence[Spans], steps: Sequence[Expr]) -> None:
        value, mask = _read_span(body, x, point, spans, steps)
        if mask is not None:
            value = body.where(mask, value, lowest(body, value.dtype))
        body.store(values, point, over(space, body, "max", value))
        if places is None:
            return
        # Spans begin inside: the first of equals is never masked.
        chosen = _unflatten(body, over(space, body, "argpool", value), [span.longest for span in spans])
        flat = body.const(0, "i64")
        for k, span, o, size in zip(chosen, spans, point[-len(spans) :], sizes, strict=True):
            flat = flat * body.index(size) + (k + body.index(span.start(o)))
        body.store(places, point, flat)

    _adaptive(b, node, x, values, len(out_size), use)
    return values, places
