"""Running sums, products, maxima: a kernel that walks the dimension in order and stores at each step.

Accumulated as eager does it: on a CPU float32 in float64, half precision in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.expr import ONE, ZERO
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Space, Val, computed, dtype_of, wants
from litz.ops.registry import lowers

aten = torch.ops.aten


@lowers(aten.cumsum.default)
def cumsum(b: Builder, node: fx.Node, x: View, dim: int, dtype: Any = None) -> Any:
    return _running(b, node, x, dim, "sum")


@lowers(aten.cumprod.default)
def cumprod(b: Builder, node: fx.Node, x: View, dim: int, dtype: Any = None) -> Any:
    return _running(b, node, x, dim, "prod")


@lowers(aten.logcumsumexp.default)
def logcumsumexp(b: Builder, node: fx.Node, x: View, dim: int) -> Any:
    return _running(b, node, x, dim, "logaddexp")


def _running(b: Builder, node: fx.Node, x: View, dim: int, kind: str) -> Any:
    fake = node.meta["val"]
    wide, rounded = computed(fake), dtype_of(fake)
    if wide == "b1":
        return NotImplemented
    if rounded == "f32" and kind != "logaddexp" and b.ctx.target.accumulates_wide:
        wide = "f64"
    out = b.allocate(fake)

    def formula(body: Body, value: Val, _: Val) -> tuple[Val, ...]:
        return (_scanned(body, x, dim, kind, body.cast(body.cast(value, rounded), wide)),)

    _walk(b, x, dim, (out,), formula)
    return out


@lowers(aten.cummax.default)
def cummax(b: Builder, node: fx.Node, x: View, dim: int) -> Any:
    return _leaders(b, node, x, dim, "max")


@lowers(aten.cummin.default)
def cummin(b: Builder, node: fx.Node, x: View, dim: int) -> Any:
    return _leaders(b, node, x, dim, "min")


def _leaders(b: Builder, node: fx.Node, x: View, dim: int, kind: str) -> Any:
    """The best so far and its place: the last of equals, and a NaN above all."""
    dtype = compute_type(x.dtype)
    outs = tuple(b.allocate(f) if wants(node, i) else None for i, f in enumerate(node.meta["val"]))

    def formula(body: Body, value: Val, step: Val) -> tuple[Val, ...]:
        value = body.cast(value, dtype)
        best = _scanned(body, x, dim, kind, value)
        leads = value.eq(best)
        if is_float(dtype):
            leads = leads | body.apply("isnan", value)
        return best, _scanned(body, x, dim, "max", body.where(leads, step, 0))

    _walk(b, x, dim, outs, formula)
    return outs


def _scanned(body: Body, x: View, dim: int, kind: str, value: Val) -> Val:
    if x.sizes and x.sizes[dim] is not ONE:
        return body.scan(kind, value)
    # Eager begins a row with a zero of its own, which a negative one added to it takes its sign from.
    return value + 0.0 if x.sizes and kind in ("sum", "logaddexp") and is_float(x.dtype) else value


def _walk(
    b: Builder, x: View, dim: int, outs: tuple[View | None, ...], formula: Callable[[Body, Val, Val], tuple[Val, ...]]
) -> None:
    """A kernel over the other dimensions that stores what `formula` makes of each element along `dim` and its place."""
    if any(size is ZERO for size in x.sizes):
        return
    space, body = Space(), Body()
    kept = [d for d in range(len(x.sizes)) if d != dim % len(x.sizes)]
    first = next(out for out in outs if out is not None)
    place = dict(zip(kept, space.over([x.sizes[d] for d in kept], [first.strides[d] for d in kept]), strict=True))
    if x.sizes:
        place[dim % len(x.sizes)] = space.reduce_over(x.sizes[dim])
    point = tuple(place[d] for d in range(len(x.sizes)))
    step = body.index(point[dim] if x.sizes else ZERO)
    for out, value in zip(outs, formula(body, body.load(x, point), step), strict=True):
        if out is not None:
            body.store(out, point, value)
    b.emit(space, body)
