"""The gradients of a convolution, channels last: of one by one windows as products, of depthwise ones as windows again.

All others are oneDNN's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type
from litz.loop.expr import ONE, ZERO, expr
from litz.loop.ir import View
from litz.ops import matmul
from litz.ops.builder import Body, Builder, Space, numel
from litz.ops.conv import is_depthwise, window_of
from litz.ops.norm import over
from litz.ops.registry import lowers
from litz.ops.window import SlidingWindow, inside

aten = torch.ops.aten

# For larger images oneDNN, which splits a sum over positions among threads, is faster.
_MOST_ROWS = 1024


@lowers(aten.convolution_backward.default)
def convolution_backward(
    b: Builder, node: fx.Node, tangent: View, x: View, weight: View, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, wanted: Sequence[bool],
) -> Any:  # fmt: skip
    fakes = node.meta["val"]
    found: tuple[Any, ...] | None = None
    if not transposed and _is_plain(tangent, x, weight):
        window = window_of(weight, stride, padding, dilation)
        if groups == 1 and window.is_point:
            rows = numel([x.sizes[0], *x.sizes[2:]])
            small = matmul.is_small(b, "f32", rows, weight.sizes[1], weight.sizes[0])
            if small or (rows.int <= _MOST_ROWS and matmul.pays(b, "f32", rows, weight.sizes[1], weight.sizes[0])):
                found = _of_products(b, fakes, tangent, x, weight, wanted)
        elif is_depthwise(x, weight, groups) and _fits(b, weight, window):
            found = _of_windows(b, fakes, tangent, x, weight, window, wanted)
    if found is None:
        settings = (tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups)
        if b.ctx.target.convolves_with_bias:
            sizes = None if bias_sizes is None else tuple(bias_sizes)
            return b.library(node, (tangent, x, weight, sizes, *settings, tuple(wanted)), {})
        found = (None, None)
        if wanted[0] or wanted[1]:
            call = (tangent, x, weight, None, *settings, (*wanted[:2], False))
            found = b.library(node, call, {}, leaves_out=(2,))[:2]
    bias = _bias(b, fakes[2], tangent) if wanted[2] else None
    return (*found, bias)


def _is_plain(tangent: View, x: View, weight: View) -> bool:
    sized = len(x.sizes) > 2 and all(s.is_int for s in (*x.sizes, *weight.sizes))
    return sized and x.dtype == "f32" and x.strides[1] is ONE and tangent.strides[1] is ONE


def _of_products(
    b: Builder, fakes: Any, tangent: View, x: View, weight: View, wanted: Sequence[bool]
) -> tuple[View | None, View | None]:
    zeros = (ZERO,) * (len(x.sizes) - 2)
    of_x = of_weight = None
    if wanted[0]:
        of_x = b.allocate(fakes[0])
        space, body = Space(), Body()
        n, c, *place = space.over(of_x.sizes, of_x.strides)
        o = space.reduce_over(weight.sizes[0])
        product = body.load(tangent, (n, o, *place)) * body.load(weight, (o, c, *zeros))
        body.store(of_x, (n, c, *place), over(space, body, "sum", product))
        b.emit(space, body)
    if wanted[1]:
        of_weight = b.allocate(fakes[1])
        space, body = Space(), Body()
        o, c = space.over(of_weight.sizes[:2])
        n, *place = (space.reduce_over(x.sizes[d]) for d in range(len(x.sizes)) if d != 1)
        product = body.load(tangent, (n, o, *place)) * body.load(x, (n, c, *place))
        body.store(of_weight, (o, c, *zeros), over(space, body, "sum", product))
        b.emit(space, body)
    return of_x, of_weight


def _fits(b: Builder, weight: View, window: SlidingWindow) -> bool:
    whole = weight.sizes[0].int % b.ctx.target.lanes(4) == 0
    plain = all(s == 1 for s in window.stride) or all(d == 1 for d in window.dilation)
    return whole and plain and all(p <= r for p, r in zip(window.padding, window.reach, strict=True))


def _of_windows(
    b: Builder, fakes: Any, tangent: View, x: View, weight: View, window: SlidingWindow, wanted: Sequence[bool]
) -> tuple[View | None, View | None]:
    of_x = of_weight = None
    if wanted[0] and all(stride == 1 for stride in window.stride):
        of_x = _of_image(b, fakes[0], tangent, weight, window)
    elif wanted[0]:
        of_x = _of_strided_image(b, fakes[0], tangent, weight, window)
    if wanted[1]:
        of_weight = _of_taps(b, fakes[1], tangent, x, weight, window)
    return of_x, of_weight


def _of_image(b: Builder, fake: torch.Tensor, tangent: View, weight: View, window: SlidingWindow) -> View:
    # Each input was seen through the window's taps in the opposite order.
    taps = b.scratch((*window.sizes, weight.sizes[0]), "f32")
    space, body = Space(), Body()
    *k, c = space.over(taps.sizes)
    opposite = [-i + (size - 1) for size, i in zip(window.sizes, k, strict=True)]
    body.store(taps, (*k, c), body.load(weight, (c, ZERO, *opposite)))
    b.emit(space, body)
    reach = tuple(r - p for r, p in zip(window.reach, window.padding, strict=True))
    back = SlidingWindow(window.sizes, window.stride, reach, window.dilation)
    out = b.allocate(fake)
    space, body = Space(), Body()
    n, c, *place = space.over(out.sizes, out.strides)
    k = back.walk(space, place, tangent.sizes[2:])
    seen = back.load(body, tangent, (n, c), place, k)
    body.store(out, (n, c, *place), over(space, body, "sum", seen * body.load(taps, (*k, c))))
    b.emit(space, body)
    return out


def _of_strided_image(b: Builder, fake: torch.Tensor, tangent: View, weight: View, window: SlidingWindow) -> View:
    # Element i was seen by every stride-th tap alone, counted from the one that the last window over it has there.
    rounds = [-(-size // stride) for size, stride in zip(window.sizes, window.stride, strict=True)]
    padded = [count * stride for count, stride in zip(rounds, window.stride, strict=True)]
    taps = b.scratch((*padded, weight.sizes[0]), "f32")
    space, body = Space(), Body()
    *k, c = space.over(taps.sizes)
    exists = inside(body, k, [expr(size) for size in window.sizes])
    body.store(taps, (*k, c), body.load(weight, (c, ZERO, *k), exists))
    b.emit(space, body)
    out = b.allocate(fake)
    space, body = Space(), Body()
    n, c, *place = space.over(out.sizes, out.strides)
    seen, used = [], []
    for i, stride, padding, count in zip(place, window.stride, window.padding, rounds, strict=True):
        back = space.reduce_over(count)
        seen.append((i + padding) // stride - back)
        used.append((i + padding) % stride + back * stride)
    image = body.load(tangent, (n, c, *seen), inside(body, seen, tangent.sizes[2:]))
    body.store(out, (n, c, *place), over(space, body, "sum", image * body.load(taps, (*used, c))))
    b.emit(space, body)
    return out


def _of_taps(b: Builder, fake: torch.Tensor, tangent: View, x: View, weight: View, window: SlidingWindow) -> View:
    # A vector of channels at a time for all taps, so that what they share stays in the cache. Each line of the image
    # is summed by itself, then the lines: one long sum would round too often.
    lanes = b.ctx.target.lanes(4)
    blocks = weight.sizes[0].int // lanes
    *lines, width = (tangent.sizes[d] for d in range(len(x.sizes)) if d != 1)
    parts = b.scratch((blocks, *window.sizes, *lines, lanes), "f32")
    space, body = Space(), Body()
    block, *rest, lane = space.over(parts.sizes)
    k, (n, *outer) = rest[: len(window.sizes)], rest[len(window.sizes) :]
    c = block * lanes + lane
    place = (*outer, space.reduce_over(width))
    seen = window.load(body, x, (n, c), place, k)
    total = over(space, body, "sum", seen * body.load(tangent, (n, c, *place)))
    body.store(parts, (block, *rest, lane), total)
    b.emit(space, body)
    out = b.allocate(fake)
    taps = tuple(expr(size) for size in window.sizes)
    split = View(out.buffer, "f32", (expr(blocks), expr(lanes), *taps), _split(out, lanes), out.offset)
    space, body = Space(), Body()
    block, *k, lane = space.over((expr(blocks), *taps, expr(lanes)))
    line = [space.reduce_over(size) for size in lines]
    body.store(split, (block, lane, *k), over(space, body, "sum", body.load(parts, (block, *k, *line, lane))))
    b.emit(space, body)
    return out


def _split(view: View, lanes: int) -> tuple[Any, ...]:
    """The strides of (block of channels, channel, taps)."""
    return (view.strides[0] * lanes, view.strides[0], *view.strides[2:])


def _bias(b: Builder, fake: torch.Tensor, tangent: View) -> View:
    out = b.allocate(fake)
    space, body = Space(), Body()
    (c,) = space.over(out.sizes)
    n, *place = (space.reduce_over(tangent.sizes[d]) for d in range(len(tangent.sizes)) if d != 1)
    term = body.cast(body.load(tangent, (n, c, *place)), compute_type(tangent.dtype))
    body.store(out, (c,), over(space, body, "sum", term))
    b.emit(space, body)
    return out


__all__ = ["convolution_backward"]
