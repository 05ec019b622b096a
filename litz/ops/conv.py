"""Convolutions: generated as a product over the window where that pays, else oneDNN's.

The product runs over (kernel rows, kernel columns, channels); where channels are no whole vectors, columns and channels
are one axis, a line. Depthwise windows are plain sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type
from litz.loop.expr import ONE, ZERO, Expr, expr
from litz.loop.ir import View
from litz.ops import matmul
from litz.ops.builder import Body, Builder, Point, Space, Val, numel
from litz.ops.norm import over
from litz.ops.registry import lowers
from litz.ops.window import Beyond, SlidingWindow, inside, load_inside, spread

aten = torch.ops.aten


@lowers(aten.convolution.default)
def convolution(
    b: Builder, node: fx.Node, x: View, weight: View, bias: View | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    settings = (tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups)
    if bias is not None and not b.ctx.target.convolves_with_bias:
        return _with_bias(b, node, b.library(node, (x, weight, None, *settings), {}), bias)
    form = form_of(b, node.meta["val"], x, weight, settings)
    if form is None:
        return b.library(node, (x, weight, bias, *settings), {})
    window = window_of(weight, stride, padding, dilation)
    return _FORMS[form](b, node, x, weight, bias, window)


def form_of(b: Builder, fake: torch.Tensor, x: View, weight: View, settings: tuple[Any, ...]) -> str | None:
    """How the convolution is generated; None if it is the library's."""
    stride, padding, dilation, transposed, _, groups = settings
    fixed = all(s.is_int for s in (*x.sizes, *weight.sizes))
    if transposed or len(x.sizes) < 3 or not fixed or not b.ctx.target.generates_products:
        return None
    out_shape = [expr(int(s)) for s in fake.shape]
    window = window_of(weight, stride, padding, dilation)
    rows = numel([out_shape[0], *out_shape[2:]])
    if groups == 1 and window.is_point and matmul.is_small(b, x.dtype, rows, weight.sizes[0], weight.sizes[1]):
        return "few rows"
    if groups == 1 and matmul.pays(b, x.dtype, rows, weight.sizes[0], numel(weight.sizes[1:])):
        if _gathers_whole_vectors(b, x, fake, weight, window):
            return "dense"
        if _gathers_lines(b, x, weight, window):
            return "lines"
    is_plain = is_depthwise(x, weight, groups) and x.strides[1] is ONE and x.dtype == "f32"
    return "depthwise" if is_plain else None


def _with_bias(b: Builder, node: fx.Node, out: View, bias: View) -> View:
    """The bias is added by whoever reads the result."""
    dtype = compute_type(out.dtype)

    def formula(body: Body, point: Point) -> Val:
        return body.cast(body.load(out, point), dtype) + body.cast(body.load(bias, (point[1],)), dtype)

    return b.pointwise(node.meta["val"], formula)


def window_of(weight: View, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> SlidingWindow:
    sizes = tuple(size.int for size in weight.sizes[2:])
    stride, padding, dilation = (spread(values, len(sizes)) for values in (stride, padding, dilation))
    return SlidingWindow(sizes, stride, padding, dilation)


def is_depthwise(x: View, weight: View, groups: int) -> bool:
    return groups > 1 and groups == x.sizes[1].int == weight.sizes[0].int and weight.sizes[1] is ONE


def _gathers_whole_vectors(b: Builder, x: View, out: torch.Tensor, weight: View, window: SlidingWindow) -> bool:
    """Whether a vector of the reduced axes lies contiguous in the input: whole channels, or whole kernel rows."""
    lanes = b.ctx.target.vector_bytes // 4
    if x.strides[1] is ONE:
        # Into a result that lies otherwise, positions would be packed and not channels, an element at a time.
        return weight.sizes[1].int % lanes == 0 and (window.is_point or out.stride(1) == 1)
    return (
        x.strides[-1] is ONE
        and weight.sizes[-1].int % lanes == 0
        and window.dilation[-1] == 1
        and not any(window.padding)
    )


def _gathers_lines(b: Builder, x: View, weight: View, window: SlidingWindow) -> bool:
    """Whether a line of the window, columns and channels together, is one stretch of memory of a vector or more."""
    line = weight.sizes[-1] * weight.sizes[1]
    dense = x.strides[1] is ONE and x.strides[-1] == x.sizes[1] and window.dilation[-1] == 1
    return dense and line.int >= b.ctx.target.lanes(4)


def of_bytes(b: Builder, node: fx.Node, x: View, weight: View, window: SlidingWindow, beyond: Beyond) -> View:
    """Whole numbers of 8 bits: no library has them, so whatever the form, it is generated."""
    if not _gathers_whole_vectors(b, x, node.meta["val"], weight, window) and _gathers_lines(b, x, weight, window):
        if beyond is not None:
            x, window = _with_edges(b, x, window, beyond), replace(window, padding=(0,) * len(window.padding))
        return _of_lines(b, node, x, weight, None, window)
    return _dense(b, node, x, weight, None, window, beyond=beyond)


def _with_edges(b: Builder, x: View, window: SlidingWindow, beyond: Beyond) -> View:
    """The image with what stands beyond its edges, channels last: a small one, whose lines are then read without asking
    of each number whether it is inside."""
    places = [size + 2 * edge for size, edge in zip(x.sizes[2:], window.padding, strict=True)]
    made = b.scratch((x.sizes[0], *places, x.sizes[1]), x.dtype)
    space, body = Space(), Body()
    n, *place, c = space.over(made.sizes)
    seen = [at - edge for at, edge in zip(place, window.padding, strict=True)]
    body.store(made, (n, *place, c), load_inside(body, x, (n, c, *seen), inside(body, seen, x.sizes[2:]), beyond))
    b.emit(space, body)
    order = (0, len(made.sizes) - 1, *range(1, len(made.sizes) - 1))
    return replace(made, sizes=tuple(made.sizes[d] for d in order), strides=tuple(made.strides[d] for d in order))


def _of_lines(b: Builder, node: fx.Node, x: View, weight: View, bias: View | None, window: SlidingWindow) -> View:
    """Channels that are no whole vectors (an image's three): the sum runs over the window's lines and along them."""
    channels, across = weight.sizes[1], weight.sizes[-1]
    outer = weight.sizes[2:-1]
    taps = _lines_of(b, weight)
    lines = replace(
        x, sizes=(x.sizes[0], *x.sizes[2:-1], x.sizes[-1] * channels), strides=(x.strides[0], *x.strides[2:-1], ONE)
    )
    out = b.allocate(node.meta["val"])
    space, body = Space(), Body()
    n, o, *place = space.over(out.sizes, out.strides)
    k = [space.reduce_over(s) for s in outer]
    along = space.reduce_over(across * channels)
    *rows, start = window.at(place, (*k, ZERO))
    seen = (*rows, start * channels + along)
    image = body.load(lines, (n, *seen), inside(body, seen, lines.sizes[1:]))
    total = over(space, body, "sum", matmul.wide(body, image) * matmul.wide(body, _tap(b, body, x, taps, k, along, o)))
    return _emit(b, space, body, out, (n, o, *place), total, bias)


def _lines_of(b: Builder, weight: View) -> View:
    """The weight by outer places of the window, the places along a line, and output channels; these lie innermost."""
    count, channels, across, outer = weight.sizes[0], weight.sizes[1], weight.sizes[-1], weight.sizes[2:-1]
    sizes = (*outer, across * channels, count)
    if weight.strides[0] is ONE and weight.strides[1] == count and weight.strides[-1] == channels * count:
        return replace(weight, sizes=sizes, strides=(*weight.strides[2:-1], count, ONE))
    taps = b.scratch(sizes, weight.dtype)
    space, body = Space(), Body()
    *k, column, c, o = space.over((*outer, across, channels, count))
    body.store(taps, (*k, column * channels + c, o), body.load(weight, (o, c, *k, column)))
    b.emit(space, body)
    return taps


def _of_few_rows(b: Builder, node: fx.Node, x: View, weight: View, bias: View | None, window: SlidingWindow) -> View:
    """Fed straight from memory: weights are read once, as they lie."""
    return _dense(b, node, x, weight, bias, window, packs=False)


def _dense(
    b: Builder, node: fx.Node, x: View, weight: View, bias: View | None, window: SlidingWindow, packs: bool = True,
    beyond: Beyond = None,
) -> View:  # fmt: skip
    out = b.allocate(node.meta["val"])
    space, body = Space(), Body()
    n, o, *place = space.over(out.sizes, out.strides)
    if x.strides[1] is ONE:
        k = window.walk(space, place, x.sizes[2:])
        c = space.reduce_over(weight.sizes[1])
    else:
        c = space.reduce_over(weight.sizes[1])
        k = window.walk(space, place, x.sizes[2:])
    seen = window.load(body, x, (n, c), place, k, beyond)
    factor = _weight(b, body, x, weight, o, c, k) if packs else body.load(weight, (o, c, *k))
    total = over(space, body, "sum", matmul.wide(body, seen) * matmul.wide(body, factor))
    return _emit(b, space, body, out, (n, o, *place), total, bias)


def _weight(b: Builder, body: Body, x: View, weight: View, o: Expr, c: Expr, k: Sequence[Expr]) -> Val:
    """An element of the weight; of a frozen one, where it lies packed, along what is contiguous in the image."""
    order = [*range(2, len(weight.sizes)), 1] if x.strides[1] is ONE else [1, *range(2, len(weight.sizes))]
    matrix = replace(
        weight, sizes=tuple(weight.sizes[d] for d in (*order, 0)), strides=tuple(weight.strides[d] for d in (*order, 0))
    )
    *lines, step = [(c, *k)[d - 1] for d in order]
    return _tap(b, body, x, matrix, lines, step, o)


def _tap(b: Builder, body: Body, x: View, matrix: View, lines: Sequence[Expr], step: Expr, o: Expr) -> Val:
    line = ZERO
    for index, size in zip(lines, matrix.sizes[:-2], strict=True):
        line = line * size + index
    packed = matmul.packed_columns(b, body, x, matrix, step, o, line)
    return body.load(matrix, (*lines, step, o)) if packed is None else packed


def _depthwise(b: Builder, node: fx.Node, x: View, weight: View, bias: View | None, window: SlidingWindow) -> View:
    # The weight is laid out channels last, so that a vector of channels is one load.
    if weight.strides[0] is ONE:
        taps = replace(
            weight, sizes=(*weight.sizes[2:], weight.sizes[0]), strides=(*weight.strides[2:], weight.strides[0])
        )
    else:
        taps = b.scratch((*weight.sizes[2:], weight.sizes[0]), weight.dtype)
        space, body = Space(), Body()
        *k, c = space.over(taps.sizes)
        body.store(taps, (*k, c), body.load(weight, (c, expr(0), *k)))
        b.emit(space, body)

    out = b.allocate(node.meta["val"])
    space, body = Space(), Body()
    point: Point = space.over(out.sizes, out.strides)
    n, c, *place = point
    k = window.walk(space, place, x.sizes[2:])
    total = over(space, body, "sum", window.load(body, x, (n, c), place, k) * body.load(taps, (*k, c)))
    return _emit(b, space, body, out, point, total, bias)


def _emit(b: Builder, space: Space, body: Body, out: View, point: Point, total: Val, bias: View | None) -> View:
    """The kernel that stores the window's sum, and the channel's bias with it."""
    if bias is not None:
        total = total + matmul.wide(body, body.load(bias, (point[1],)))
    body.store(out, point, total)
    b.emit(space, body)
    return out


_FORMS: dict[str, Callable[..., View]] = {
    "few rows": _of_few_rows, "dense": _dense, "lines": _of_lines, "depthwise": _depthwise,
}  # fmt: skip
# Forms that read the weight a vector of output channels at a time, from where it lies.
READS_OUTPUT_CHANNELS = ("lines", "depthwise")
