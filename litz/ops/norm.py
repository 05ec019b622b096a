"""Normalisations and softmax: each one kernel, its reductions and what follows them together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import DTYPES, compute_type, from_torch, to_torch
from litz.loop.expr import ONE, ZERO, Expr, expr
from litz.loop.ir import POSITIONS, View
from litz.ops.builder import Body, Builder, Point, Space, Val, numel, wants
from litz.ops.registry import lowers

aten = torch.ops.aten


def split_point(space: Space, view: View, reduced: Sequence[int], memory_order: bool = True) -> Point:
    """A point over `view` with parallel axes for the dimensions kept and reduced ones for the others.

    Without `memory_order` the reduced axes nest as the dimensions do, which is what flat positions count in.
    """
    kept = [d for d in range(len(view.sizes)) if d not in reduced]
    outer = space.over([view.sizes[d] for d in kept], [view.strides[d] for d in kept])
    index: list[Expr] = [expr(0)] * len(view.sizes)
    for d, i in zip(kept, outer, strict=True):
        index[d] = i
    # Inner loops run in memory order, whatever the dimensions' order.
    order = sorted(reduced)
    if memory_order and all(view.strides[d].is_int for d in reduced):
        order.sort(key=lambda d: -view.strides[d].int)
    for d in order:
        index[d] = space.reduce_over(view.sizes[d])
    return tuple(index)


def over(space: Space, body: Body, kind: str, value: Val) -> Val:
    """`reduce(kind, value)`; where every reduced dimension has size 1, there is nothing to reduce."""
    if space.reduced:
        return body.reduce(kind, value)
    return body.const(0, "i64") if kind in POSITIONS else value


def mean_and_variance(space: Space, body: Body, x: Val, count: Expr, is_short: bool = False) -> tuple[Val, Val]:
    """In two passes over the row: exact where a single pass cancels. The second also finds how far off the mean is,
    which was rounded where the sum was large; of numbers of 16 bits that is nothing beside their own rounding."""
    mean = over(space, body, "sum", x) / count
    centred = x - mean
    if is_short:
        return mean, over(space, body, "sum", centred * centred) / count
    off = over(space, body, "sum", centred) / count
    return mean + off, over(space, body, "sum", centred * centred) / count


def batch_mean_and_variance(space: Space, body: Body, x: Val, count: Expr) -> tuple[Val, Val]:
    """The mean by a sum in doubles, as eager's: a channel is long, and what its mean is off by, all behind it is."""
    mean = body.cast(over(space, body, "sum", body.cast(x, "f64")) / count, x.dtype)
    centred = x - mean
    return mean, over(space, body, "sum", centred * centred) / count


def mean_and_variance_at_once(space: Space, body: Body, x: Val, near: Val, count: Expr) -> tuple[Val, Val]:
    """In one pass, for data that is dear to read again: of the distances from a number `near` them all, so that what
    cancels is small."""
    far = x - near
    off = over(space, body, "sum", far) / count
    return near + off, body.apply("max", over(space, body, "sum", far * far) / count - off * off, 0.0)


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    b: Builder, node: fx.Node, x: View, shape: Sequence[int], weight: View | None, bias: View | None, eps: float
) -> Any:
    out_fake, mean_fake, rstd_fake = node.meta["val"]
    dtype = compute_type(x.dtype)
    dims = list(range(len(x.sizes) - len(shape), len(x.sizes)))
    count = numel([x.sizes[d] for d in dims])
    if count is ZERO:
        return NotImplemented
    out, mean_out, rstd_out = b.allocate(out_fake), b.allocate(mean_fake), b.allocate(rstd_fake)
    space, body = Space(), Body()
    point = split_point(space, out, dims)
    value = body.cast(body.load(x, point), dtype)
    mean, variance = mean_and_variance(space, body, value, count, x.dtype in ("bf16", "f16"))
    rstd = body.apply("rsqrt", variance + eps)
    body.store(out, point, _affine(body, (value - mean) * rstd, weight, bias, tuple(point[d] for d in dims)))
    row = tuple(expr(0) if d in dims else point[d] for d in range(len(point)))
    body.store(mean_out, row, mean)
    body.store(rstd_out, row, rstd)
    b.emit(space, body)
    return out, mean_out, rstd_out


@lowers(aten.native_batch_norm.default)
def native_batch_norm(
    b: Builder, node: fx.Node, x: View, weight: View | None, bias: View | None,
    running_mean: View | None, running_var: View | None, training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    if not training:
        if running_mean is None or running_var is None:
            return NotImplemented
        return _batch_norm_inference(b, node, x, weight, bias, running_mean, running_var, eps)
    # Eager updates the running statistics where they lie, although the schema does not say so.
    return _batch_norm_training(b, node, x, weight, bias, _Running(running_mean, running_var, momentum), eps)


@lowers(aten.cudnn_batch_norm.default)
def cudnn_batch_norm(
    b: Builder, node: fx.Node, x: View, weight: View, bias: View | None, running_mean: View | None,
    running_var: View | None, training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    """What eager takes on GPUs for some types. In training, tracing has made another of it."""
    if training or running_mean is None or running_var is None:
        return NotImplemented
    return _batch_norm_inference(b, node, x, weight, bias, running_mean, running_var, eps)


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    b: Builder, node: fx.Node, x: View, weight: View | None, bias: View | None,
    running_mean: View, running_var: View, momentum: float, eps: float,
) -> Any:  # fmt: skip
    return _batch_norm_inference(b, node, x, weight, bias, running_mean, running_var, eps)


@lowers(aten._native_batch_norm_legit.default)
def batch_norm_legit(
    b: Builder, node: fx.Node, x: View, weight: View | None, bias: View | None, running_mean: View, running_var: View,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    return native_batch_norm(b, node, x, weight, bias, running_mean, running_var, training, momentum, eps)


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    b: Builder, node: fx.Node, x: View, weight: View | None, bias: View | None, training: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    return _batch_norm_training(b, node, x, weight, bias, None, eps) if training else NotImplemented


@lowers(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    b: Builder, node: fx.Node, x: View, weight: View | None, bias: View | None, running_mean: View, running_var: View,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    if not training:
        return NotImplemented
    fakes = node.meta["val"]
    updated = b.allocate(fakes[3]), b.allocate(fakes[4])
    running = _Running(running_mean, running_var, momentum, *updated)
    made = _batch_norm_training(b, node, x, weight, bias, running, eps)
    return made if made is NotImplemented else (*made, *updated)


@dataclass(frozen=True)
class _Running:
    """Running statistics, how much of the batch's goes into them, and where they are written (back, if not said)."""

    mean: View | None
    variance: View | None
    momentum: float
    mean_out: View | None = None
    variance_out: View | None = None

    def update(self, body: Body, channel: Point, mean: Val, variance: Val, count: Expr) -> None:
        if count.is_int and count.int > 1:
            unbiased = variance * (count.int / (count.int - 1))
        else:  # of one value there is none: zero times infinity
            unbiased = variance * body.cast(body.const(count, "f64") / (count - 1), variance.dtype)
        for old, out, new in ((self.mean, self.mean_out, mean), (self.variance, self.variance_out, unbiased)):
            if old is not None:
                kept = body.cast(body.load(old, channel), new.dtype) * (1 - self.momentum)
                body.store(out or old, channel, kept + new * self.momentum)


def _batch_norm_training(
    b: Builder, node: fx.Node, x: View, weight: View | None, bias: View | None, running: _Running | None, eps: float
) -> Any:
    dtype = compute_type(x.dtype)
    dims = [d for d in range(len(x.sizes)) if d != 1]
    count = numel([x.sizes[d] for d in dims])
    if count is ZERO:
        return NotImplemented
    out, mean_out, rstd_out = (b.allocate(fake) for fake in node.meta["val"][:3])
    space, body = Space(), Body()
    point = split_point(space, out, dims)
    channel = (point[1],)
    value = body.cast(body.load(x, point), dtype)
    apart = in_parts(b, x, count)
    if apart:
        first = body.cast(body.load(x, tuple(ZERO if d in dims else i for d, i in enumerate(point))), dtype)
        mean, variance = mean_and_variance_at_once(space, body, value, first, count)
    else:
        mean, variance = batch_mean_and_variance(space, body, value, count)
    rstd = body.apply("rsqrt", variance + eps)
    scale, shift = _scale_and_shift(body, mean, rstd, weight, bias, channel)
    kept = [b.scratch((x.sizes[1],), dtype) for _ in range(2 * apart)]
    if apart:
        for view, number in zip(kept, (scale, shift), strict=True):
            body.store(view, channel, number)
    else:
        body.store(out, point, body.apply("fma", value, scale, shift))
    body.store(mean_out, channel, mean)
    body.store(rstd_out, channel, rstd)
    if running is not None:
        running.update(body, channel, mean, variance, count)
    b.emit(space, body)

    def normal(body: Body, point: Point) -> Val:
        scale, shift = (body.load(view, (point[1],)) for view in kept)
        return body.apply("fma", body.cast(body.load(x, point), dtype), scale, shift)

    if apart:
        b.pointwise(node.meta["val"][0], normal, out)
    return out, mean_out, rstd_out


def in_parts(b: Builder, x: View, count: Expr) -> bool:
    """Whether a channel's statistics will be put together from parts (`schedule/split_reductions.py`): no part is there
    any more when the next pass would want it."""
    abreast = b.ctx.target.lanes(DTYPES[x.dtype].bytes) if x.strides[1] is ONE else None
    return b.ctx.target.parts(x.sizes[1].hint, count.hint, abreast) > 1


def _affine(body: Body, value: Val, weight: View | None, bias: View | None, place: Point) -> Val:
    if weight is not None:
        value = value * body.cast(body.load(weight, place), value.dtype)
    # Without a bias eager adds zero, and no result is -0.
    return value + (0.0 if bias is None else body.cast(body.load(bias, place), value.dtype))


def _scale_and_shift(
    body: Body, mean: Val, rstd: Val, weight: View | None, bias: View | None, channel: Point
) -> tuple[Val, Val]:
    """Batch norm as one multiplication and one addition an element: the rest depends on the channel alone. It is also
    what keeps a channel's mean: subtracting the mean from each element rounds all elements of a magnitude one way."""

    def of(view: View) -> Val:
        return body.cast(body.load(view, channel), mean.dtype)

    scale = rstd if weight is None else rstd * of(weight)
    return scale, (0.0 if bias is None else of(bias)) - mean * scale


def _batch_norm_inference(
    b: Builder, node: fx.Node, x: View, weight: View | None, bias: View | None, mean: View, var: View, eps: float
) -> Any:
    fakes = node.meta["val"]
    dtype = compute_type(x.dtype)

    def formula(body: Body, point: Point) -> Val:
        channel = (point[1],)
        centre, variance = (body.cast(body.load(view, channel), dtype) for view in (mean, var))
        rstd = body.apply("rsqrt", variance + eps)
        scale, shift = _scale_and_shift(body, centre, rstd, weight, bias, channel)
        return body.apply("fma", body.cast(body.load(x, point), dtype), scale, shift)

    def kept_mean(body: Body, point: Point) -> Val:
        return body.cast(body.load(mean, point), dtype)

    def kept_rstd(body: Body, point: Point) -> Val:
        return body.apply("rsqrt", body.cast(body.load(var, point), dtype) + eps)

    out = b.pointwise(fakes[0], formula)
    # Eager tells what it has normalised by on GPUs; on CPUs these results are empty.
    rest = [b.allocate(f) for f in fakes[1:]]
    for number, told in enumerate((kept_mean, kept_rstd)):
        if wants(node, number + 1) and rest[number].sizes != (ZERO,):
            b.pointwise(fakes[number + 1], told, rest[number])
    return (out, *rest)


@lowers(aten.native_group_norm.default)
def native_group_norm(
    b: Builder, node: fx.Node, x: View, weight: View | None, bias: View | None, batch: int, channels: int, inner: int,
    groups: int, eps: float,
) -> Any:  # fmt: skip
    out, mean_out, rstd_out = (b.allocate(fake) for fake in node.meta["val"])
    dtype = compute_type(x.dtype)
    each = x.sizes[1] // groups
    count = numel([each, *x.sizes[2:]])
    if count is ZERO:
        return NotImplemented

    def grouped(view: View) -> View:
        """Its channels as (group, channel of the group)."""
        n, c, *rest = view.strides
        sizes = (view.sizes[0], expr(groups), each, *view.sizes[2:])
        return replace(view, sizes=sizes, strides=(n, c * each, c, *rest))

    space, body = Space(), Body()
    target = grouped(out)
    point = split_point(space, target, list(range(2, len(target.sizes))))
    value = body.cast(body.load(grouped(x), point), dtype)
    mean, variance = mean_and_variance(space, body, value, count)
    rstd = body.apply("rsqrt", variance + eps)
    channel = (point[1] * each + point[2],)
    normal = (value - mean) * rstd
    plain = weight is None and bias is None  # eager has a loop of its own for that, which adds nothing
    body.store(target, point, normal if plain else _affine(body, normal, weight, bias, channel))
    body.store(mean_out, point[:2], mean)
    body.store(rstd_out, point[:2], rstd)
    b.emit(space, body)
    return out, mean_out, rstd_out


@lowers(aten._softmax.default)
def softmax(b: Builder, node: fx.Node, x: View, dim: int, half_to_float: bool) -> Any:
    return _softmax(b, node, x, dim, lambda body, shifted, e, total: e / total)


@lowers(aten._log_softmax.default)
def log_softmax(b: Builder, node: fx.Node, x: View, dim: int, half_to_float: bool) -> Any:
    return _softmax(b, node, x, dim, lambda body, shifted, e, total: shifted - body.apply("log", total))


def _softmax(b: Builder, node: fx.Node, x: View, dim: int, finish: Callable[[Body, Val, Val, Val], Val]) -> Any:
    fake = node.meta["val"]
    if from_torch(fake.dtype) is None:
        return NotImplemented
    if not x.sizes:
        # One number is all of its row; through the formula, so that infinity and NaN come out as eager has them.
        def alone(body: Body, point: Point) -> Val:
            value = body.cast(body.load(x, ()), compute_type(x.dtype))
            e = body.apply("exp", value - value)
            return finish(body, value - value, e, e)

        return b.pointwise(fake, alone)
    dim %= len(x.sizes)
    out = b.allocate(fake)
    space, body = Space(), Body()
    point = split_point(space, out, [dim])
    value = body.cast(body.load(x, point), compute_type(x.dtype))
    shifted = value - over(space, body, "max", value)
    e = body.apply("exp", shifted)
    total = over(space, body, "sum", e)
    body.store(out, point, finish(body, shifted, e, total))
    b.emit(space, body)
    return out


@lowers(aten._safe_softmax.default)
def safe_softmax(b: Builder, node: fx.Node, x: View, dim: int, dtype: Any = None) -> Any:
    """Softmax, but zero where a row is masked out altogether: minus infinity all along."""
    if not x.sizes:
        return NotImplemented
    out = b.allocate(node.meta["val"])
    space, body = Space(), Body()
    point = split_point(space, out, [dim % len(x.sizes)])
    value = body.cast(body.load(x, point), compute_type(out.dtype))
    top = over(space, body, "max", value)
    e = body.apply("exp", value - top)
    body.store(out, point, body.where(top.eq(-math.inf), 0, e / over(space, body, "sum", e)))
    b.emit(space, body)
    return out


@lowers(aten._fused_rms_norm.default if hasattr(aten, "_fused_rms_norm") else None)
def fused_rms_norm(
    b: Builder, node: fx.Node, x: View, shape: Sequence[int], weight: View | None, eps: float | None
) -> Any:
    out_fake, rstd_fake = node.meta["val"]
    dims = list(range(len(x.sizes) - len(shape), len(x.sizes)))
    count = numel([x.sizes[d] for d in dims])
    if count is ZERO:
        return NotImplemented
    dtype = compute_type(x.dtype)
    # Of the type that is computed in, as eager's kernel has it.
    eps = torch.finfo(to_torch(dtype)).eps if eps is None else eps
    out, rstd_out = b.allocate(out_fake), b.allocate(rstd_fake)
    space, body = Space(), Body()
    point = split_point(space, out, dims)
    value = body.cast(body.load(x, point), dtype)
    rstd = body.apply("rsqrt", over(space, body, "sum", value * value) / count + eps)
    result = value * rstd
    if weight is not None:
        result = result * body.cast(body.load(weight, tuple(point[d] for d in dims)), dtype)
    body.store(out, point, result)
    body.store(rstd_out, tuple(expr(0) if d in dims else point[d] for d in range(len(point))), rstd)
    b.emit(space, body)
    return out, rstd_out
