"""Gradients of normalisations and of softmax.

The gradient of the input needs sums along the rows that were normalised: one kernel, its reductions and what
follows them together. The gradients of weight and bias are sums across those rows: `sum_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.expr import ONE, ZERO, expr
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Space, Val, numel
from litz.ops.norm import in_parts, over, split_point
from litz.ops.registry import lowers
from litz.ops.row_sums import sum_rows

aten = torch.ops.aten

Results = tuple["View | None", ...]


def _allocate(b: Builder, node: fx.Node, mask: Sequence[bool]) -> list[View | None]:
    """A buffer for each gradient asked for."""
    fakes = node.meta["val"]
    return [b.allocate(fake) if asked and fake is not None else None for fake, asked in zip(fakes, mask, strict=True)]


def _is_something(*views: View) -> bool:
    return all(is_float(v.dtype) and all(s is not ZERO for s in v.sizes) for v in views)


def _scaled(body: Body, value: Val, weight: View | None, place: Point) -> Val:
    return value if weight is None else value * body.cast(body.load(weight, place), value.dtype)


# -- along the last dimensions ----------------------------------------------------------------
@lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    b: Builder, node: fx.Node, grad: View, x: View, shape: Sequence[int], mean: View, rstd: View,
    weight: View | None, bias: View | None, mask: Sequence[bool],
) -> Any:  # fmt: skip
    if not _is_something(x):
        return NotImplemented
    to_input, to_weight, to_bias = _allocate(b, node, mask)
    rows = _Rows(grad, x, len(shape), mean, rstd, weight)
    if to_input is not None:
        rows.emit_input_gradient(b, to_input)
    rows.emit_weight_gradients(b, to_weight, to_bias)
    return to_input, to_weight, to_bias


@lowers(aten._fused_rms_norm_backward.default if hasattr(aten, "_fused_rms_norm_backward") else None)
def fused_rms_norm_backward(
    b: Builder, node: fx.Node, grad: View, x: View, shape: Sequence[int], rstd: View, weight: View | None,
    mask: Sequence[bool],
) -> Any:  # fmt: skip
    if not _is_something(x):
        return NotImplemented
    to_input, to_weight = _allocate(b, node, mask)
    rows = _Rows(grad, x, len(shape), None, rstd, weight)
    if to_input is not None:
        rows.emit_input_gradient(b, to_input)
    rows.emit_weight_gradients(b, to_weight, None)
    return to_input, to_weight


class _Rows:
    """The rows of a layer norm, or, where there is no mean, of a root-mean-square norm."""

    def __init__(self, grad: View, x: View, width: int, mean: View | None, rstd: View, weight: View | None):
        self.grad, self.x, self.mean, self.rstd, self.weight = grad, x, mean, rstd, weight
        self.dims = list(range(len(x.sizes) - width, len(x.sizes)))
        self.others = list(range(len(x.sizes) - width))
        self.count = numel([x.sizes[d] for d in self.dims])
        self.dtype = compute_type(x.dtype)

    def values(self, body: Body, point: Point, mask: Val | None = None) -> tuple[Val, Val, Val]:
        """The incoming gradient, the input normalised, and what it was divided by."""
        row = tuple(ZERO if d in self.dims else i for d, i in enumerate(point))

        def load(view: View, place: Point) -> Val:
            return body.cast(body.load(view, place, mask), self.dtype)

        value, rstd = load(self.x, point), load(self.rstd, row)
        centred = value if self.mean is None else value - load(self.mean, row)
        return load(self.grad, point), centred * rstd, rstd

    def emit_input_gradient(self, b: Builder, out: View) -> None:
        space, body = Space(), Body()
        point = split_point(space, out, self.dims)
        incoming, normal, rstd = self.values(body, point)
        incoming = _scaled(body, incoming, self.weight, tuple(point[d] for d in self.dims))
        along = over(space, body, "sum", incoming * normal) / self.count
        slope = incoming - normal * along
        if self.mean is not None:
            slope = slope - over(space, body, "sum", incoming) / self.count
        body.store(out, point, slope * rstd)
        b.emit(space, body)

    def emit_weight_gradients(self, b: Builder, to_weight: View | None, to_bias: View | None) -> None:
        if to_weight is None and to_bias is None:
            return

        def terms(body: Body, point: Point, mask: Val | None) -> list[Val]:
            incoming, normal, _ = self.values(body, point, mask)
            wanted = [] if to_weight is None else [incoming * normal]
            return wanted if to_bias is None else [*wanted, incoming]

        outs = [out for out in (to_weight, to_bias) if out is not None]
        sum_rows(b, self.x, self.others, terms, _storing(outs))


def _storing(outs: Sequence[View]) -> Callable[[Body, Point, Sequence[Val]], None]:
    def use(body: Body, place: Point, sums: Sequence[Val]) -> None:
        for out, total in zip(outs, sums, strict=True):
            body.store(out, place, total)

    return use


# -- by channels ------------------------------------------------------------------------------
@lowers(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    b: Builder, node: fx.Node, grad: View, x: View, weight: View | None, running_mean: View | None,
    running_var: View | None, save_mean: View | None, save_rstd: View | None, train: bool, eps: float,
    mask: Sequence[bool],
) -> Any:  # fmt: skip
    mean, spread = (save_mean, save_rstd) if train else (running_mean, running_var)
    if not _is_something(x) or len(x.sizes) < 2 or mean is None or spread is None:
        return NotImplemented
    outs = _allocate(b, node, mask)
    channels = _Channels(grad, x, weight, mean, spread, None if train else eps)
    if train and in_parts(b, x, channels.count):
        channels.emit_in_parts(b, *outs)
    elif x.strides[1] is ONE and x.sizes[1] is not ONE:
        channels.emit_apart(b, *outs)
    else:
        channels.emit_together(b, *outs)
    return tuple(outs)


@lowers(aten.batch_norm_backward.default)
def batch_norm_backward(
    b: Builder, node: fx.Node, grad: View, x: View, weight: View, running_mean: View | None, running_var: View | None,
    save_mean: View | None, save_rstd: View | None, update: bool, eps: float, mask: Sequence[bool], reserve: View,
) -> Any:  # fmt: skip
    return native_batch_norm_backward(
        b, node, grad, x, weight, running_mean, running_var, save_mean, save_rstd, update, eps, mask
    )


class _Channels:
    """The channels of a batch norm. `spread` is 1/deviation, or, where `eps` is given, the fixed variance."""

    def __init__(self, grad: View, x: View, weight: View | None, mean: View, spread: View, eps: float | None):
        self.grad, self.x, self.weight, self.mean, self.spread, self.eps = grad, x, weight, mean, spread, eps
        self.dims = [d for d in range(len(x.sizes)) if d != 1]
        self.count = numel([x.sizes[d] for d in self.dims])
        self.dtype = compute_type(x.dtype)

    def statistics(self, body: Body, channel: Point) -> tuple[Val, Val]:
        mean, spread = (body.cast(body.load(v, channel), self.dtype) for v in (self.mean, self.spread))
        return mean, spread if self.eps is None else body.apply("rsqrt", spread + self.eps)

    def values(self, body: Body, point: Point, mask: Val | None = None) -> tuple[Val, Val]:
        """The incoming gradient, and the input's distance from the mean."""
        incoming, value = (body.cast(body.load(v, point, mask), self.dtype) for v in (self.grad, self.x))
        return incoming, value - self.statistics(body, (point[1],))[0]

    def terms(self, body: Body, point: Point, mask: Val | None = None) -> list[Val]:
        """What a channel's sums add up: the gradient, and its product with the distance. The first in doubles, as
        eager's: what it is off by, the gradient of every element is, and all of them the same way."""
        incoming, centred = self.values(body, point, mask)
        return [body.cast(incoming, "f64"), incoming * centred]

    def slope(self, body: Body, point: Point, total: Val, product: Val) -> Val:
        """The gradient of the input, from the channel's sums of the gradient and of its product with the distance."""
        incoming, centred = self.values(body, point)
        _, rstd = self.statistics(body, (point[1],))
        scale = _scaled(body, rstd, self.weight, (point[1],))
        if self.eps is not None:
            return incoming * scale
        height, tilt = (body.cast(value / self.count, self.dtype) for value in (total, product))
        return body.apply("fma", -centred, tilt * rstd * rstd, incoming - height) * scale

    def emit_together(self, b: Builder, to_input: View | None, to_weight: View | None, to_bias: View | None) -> None:
        """A channel is a row: its sums and what follows in one kernel, the second pass out of the cache."""
        space, body = Space(), Body()
        point = split_point(space, self.x, self.dims)
        channel = (point[1],)
        total, product = (over(space, body, "sum", term) for term in self.terms(body, point))
        if to_input is not None:
            body.store(to_input, point, self.slope(body, point, total, product))
        self._store_sums(body, channel, total, product, to_weight, to_bias)
        b.emit(space, body)

    def emit_apart(self, b: Builder, to_input: View | None, to_weight: View | None, to_bias: View | None) -> None:
        """Channels last: sums a vector of channels at a time, then the gradient element by element."""
        kept = [b.scratch((self.x.sizes[1],), t) for t in ("f64", self.dtype)]

        def use(body: Body, channel: Point, sums: Sequence[Val]) -> None:
            for view, value in zip(kept, sums, strict=True):
                body.store(view, channel, value)
            self._store_sums(body, channel, sums[0], sums[1], to_weight, to_bias)

        sum_rows(b, self.x, self.dims, self.terms, use)
        if to_input is None:
            return

        def formula(body: Body, point: Point) -> Val:
            total, product = (body.load(view, (point[1],)) for view in kept)
            return self.slope(body, point, total, product)

        space, body = Space(), Body()
        point = space.over(to_input.sizes, to_input.strides)
        body.store(to_input, point, formula(body, point))
        b.emit(space, body)

    def emit_in_parts(self, b: Builder, to_input: View | None, to_weight: View | None, to_bias: View | None) -> None:
        """Sums that are put together from parts, and then the gradient element by element, which is linear in the
        incoming one and in the input: with three numbers of the channel, and not all that those are made of."""
        kept = [b.scratch((self.x.sizes[1],), self.dtype) for _ in range(3)]

        def use(body: Body, channel: Point, sums: Sequence[Val]) -> None:
            mean, rstd = self.statistics(body, channel)
            height, tilt = (body.cast(value / self.count, self.dtype) for value in sums)
            scale = _scaled(body, rstd, self.weight, channel)
            slope = -(tilt * rstd * rstd * scale)
            for view, value in zip(kept, (scale, slope, -(height * scale) - mean * slope), strict=True):
                body.store(view, channel, value)
            self._store_sums(body, channel, sums[0], sums[1], to_weight, to_bias)

        sum_rows(b, self.x, self.dims, self.terms, use)
        if to_input is None:
            return
        space, body = Space(), Body()
        point = space.over(to_input.sizes, to_input.strides)
        incoming, value = (body.cast(body.load(v, point), self.dtype) for v in (self.grad, self.x))
        scale, slope, shift = (body.load(view, (point[1],)) for view in kept)
        body.store(to_input, point, body.apply("fma", value, slope, body.apply("fma", incoming, scale, shift)))
        b.emit(space, body)

    def _store_sums(
        self, body: Body, channel: Point, total: Val, product: Val, to_weight: View | None, to_bias: View | None
    ) -> None:
        if to_weight is not None:
            body.store(to_weight, channel, body.cast(product, self.dtype) * self.statistics(body, channel)[1])
        if to_bias is not None:
            body.store(to_bias, channel, total)


# -- by groups of channels --------------------------------------------------------------------
@lowers(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    b: Builder, node: fx.Node, grad: View, x: View, mean: View, rstd: View, weight: View | None, batch: int,
    channels: int, inner: int, groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    if not _is_something(x):
        return NotImplemented
    to_input, to_weight, to_bias = _allocate(b, node, mask)
    each, dtype = x.sizes[1] // groups, compute_type(x.dtype)
    count = each * numel(x.sizes[2:])

    def grouped(view: View) -> View:
        """Its channels as (group, channel of the group)."""
        n, c, *rest = view.strides
        sizes = (view.sizes[0], expr(groups), each, *view.sizes[2:])
        return replace(view, sizes=sizes, strides=(n, c * each, c, *rest))

    incoming_view, value_view = grouped(grad), grouped(x)

    def values(body: Body, point: Point, mask: Val | None = None) -> tuple[Val, Val, Val]:
        def load(view: View, place: Point) -> Val:
            return body.cast(body.load(view, place, mask), dtype)

        spread = load(rstd, point[:2])
        return load(incoming_view, point), (load(value_view, point) - load(mean, point[:2])) * spread, spread

    # The sums of each image's channels, of which all else is made: (batch, group, channel of the group).
    sums = [b.scratch((x.sizes[0], groups, each), dtype) for _ in range(2)]

    def terms(body: Body, point: Point, mask: Val | None) -> list[Val]:
        incoming, normal, _ = values(body, point, mask)
        return [incoming, incoming * normal]

    _sum_over(b, value_view, list(range(3, len(value_view.sizes))), terms, _storing(sums))
    outs = [(out, view) for out, view in ((to_bias, sums[0]), (to_weight, sums[1])) if out is not None]
    if outs:
        space, body = Space(), Body()
        group, one = space.over([expr(groups), each])
        image = space.reduce_over(x.sizes[0])
        for out, view in outs:
            body.store(out, (group * each + one,), over(space, body, "sum", body.load(view, (image, group, one))))
        b.emit(space, body)
    if to_input is not None:
        levels = [b.scratch((x.sizes[0], groups), dtype) for _ in sums]
        space, body = Space(), Body()
        image, group = space.over([x.sizes[0], expr(groups)])
        one = space.reduce_over(each)
        for level, view in zip(levels, sums, strict=True):
            total = _scaled(body, body.load(view, (image, group, one)), weight, (group * each + one,))
            body.store(level, (image, group), over(space, body, "sum", total) / count)
        b.emit(space, body)
        out = grouped(to_input)
        space, body = Space(), Body()
        point = space.over(out.sizes, out.strides)
        incoming, normal, spread = values(body, point)
        incoming = _scaled(body, incoming, weight, (point[1] * each + point[2],))
        height, tilt = (body.load(view, point[:2]) for view in levels)
        body.store(out, point, (incoming - height - normal * tilt) * spread)
        b.emit(space, body)
    return to_input, to_weight, to_bias


def _sum_over(b: Builder, x: View, dims: Sequence[int], terms: Any, use: Any) -> None:
    """Sums over `dims`, in two kernels if those are rows and in one if they hold the contiguous dimension."""
    if any(x.strides[d] is ONE and x.sizes[d] is not ONE for d in dims):
        space, body = Space(), Body()
        point = split_point(space, x, dims)
        sums = [over(space, body, "sum", term) for term in terms(body, point, None)]
        use(body, tuple(i for d, i in enumerate(point) if d not in dims), sums)
        b.emit(space, body)
    else:
        sum_rows(b, x, dims, terms, use)


# -- softmax ----------------------------------------------------------------------------------
@lowers(aten._softmax_backward_data.default)
def softmax_backward(b: Builder, node: fx.Node, grad: View, y: View, dim: int, input_dtype: Any) -> Any:
    def slope(space: Space, body: Body, g: Val, v: Val) -> Val:
        return (g - over(space, body, "sum", g * v)) * v

    return _softmax_backward(b, node, grad, y, dim, slope)


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward(b: Builder, node: fx.Node, grad: View, y: View, dim: int, input_dtype: Any) -> Any:
    def slope(space: Space, body: Body, g: Val, v: Val) -> Val:
        return g - body.apply("exp", v) * over(space, body, "sum", g)

    return _softmax_backward(b, node, grad, y, dim, slope)


def _softmax_backward(
    b: Builder, node: fx.Node, grad: View, y: View, dim: int, slope: Callable[[Space, Body, Val, Val], Val]
) -> Any:
    if not is_float(y.dtype):
        return NotImplemented
    out, dtype = b.allocate(node.meta["val"]), compute_type(y.dtype)
    space, body = Space(), Body()
    point = split_point(space, out, [dim % len(y.sizes)] if y.sizes else [])
    g, v = (body.cast(body.load(view, point), dtype) for view in (grad, y))
    body.store(out, point, slope(space, body, g, v))
    b.emit(space, body)
    return out
