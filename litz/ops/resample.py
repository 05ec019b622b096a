"""Interpolation: every output position is read at a source position, the nearest or a mix of its neighbours.

Eager computes source positions in float32, rounding included. Where whole-number arithmetic gives the same
positions (checked one by one when compiling), it is used: it keeps loads affine. Else, and for sizes known only at run
time, the kernel does as eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.expr import Expr, Value, expr
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Val, sizes_of
from litz.ops.registry import lowers

aten = torch.ops.aten


def ratio_of(body: Body, size: Expr, out: Expr, scale: float | None, dtype: str = "f32") -> Val:
    """Source positions for each step of the result, in the type eager computes them in."""
    if scale is not None and scale > 0:
        return body.const(1 / scale, dtype)
    if size.is_int and out.is_int:
        return body.const(_ratio(size.int, out.int, None, np.float64 if dtype == "f64" else np.float32), dtype)
    return body.const(size, dtype) / out


def _ratio(size: int, out: int, scale: float | None, kind: Any = np.float32) -> float:
    return float(kind(1 / scale)) if scale is not None and scale > 0 else float(kind(size) / kind(out))


def aligned_ratio(body: Body, size: Expr, out: Expr, dtype: str) -> Val:
    """The same where the corners of source and result are one."""
    if out.is_int:
        return body.const(0.0, dtype) if out.int <= 1 else ratio_of(body, size - 1, out - 1, None, dtype)
    return body.where(body.index(out) > 1, ratio_of(body, size - 1, out - 1, None, dtype), 0.0)


# -- nearest ----------------------------------------------------------------------------------
def nearest(body: Body, o: Expr, size: Expr, out: Expr, scale: float | None, centre: bool) -> Expr:
    if size is out and not centre:
        return o
    if out is size * 2 and not centre:
        return o // 2
    # Source position of step i, in whole numbers: (i + shift/2) * size / out.
    shift = 1 if centre else 0
    if size.is_int and out.is_int and _is_exact(size.int, out.int, scale, shift):
        return ((o * 2 + shift) * size) // (out * 2)
    position = (body.cast(body.index(o), "f32") + 0.5 * shift) * ratio_of(body, size, out, scale)
    place = body.apply("min", body.cast(body.apply("floor", position), "i64"), size - 1)
    return expr(Value(place.name))


def _is_exact(size: int, out: int, scale: float | None, shift: int) -> bool:
    """Whether eager's rounding leaves every source position where whole numbers have it."""
    steps = np.arange(out, dtype=np.float32) + np.float32(0.5 * shift)
    table = np.minimum(np.floor(steps * np.float32(_ratio(size, out, scale))).astype(np.int64), size - 1)
    return all(place == (2 * i + shift) * size // (2 * out) for i, place in enumerate(table))


def _upsample_nearest(b: Builder, node: fx.Node, x: View, scales: Sequence[float | None], centre: bool) -> Any:
    spatial = len(scales)
    sizes, outs = x.sizes[-spatial:], sizes_of(node.meta["val"])[-spatial:]

    def formula(body: Body, point: Point) -> Val:
        place = [
            nearest(body, o, size, out, scale, centre)
            for o, size, out, scale in zip(point[-spatial:], sizes, outs, scales, strict=True)
        ]
        return body.load(x, (*point[:-spatial], *place))

    return b.pointwise(node.meta["val"], formula)


def _spread(scales: Sequence[float] | None, spatial: int) -> list[float | None]:
    return [None] * spatial if not scales else list(scales)


@lowers(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default)
def upsample_nearest(b: Builder, node: fx.Node, x: View, size: Sequence[int], *scales: float | None) -> Any:
    return _upsample_nearest(b, node, x, [*scales, *[None] * (len(size) - len(scales))], False)


@lowers(
    aten._upsample_nearest_exact1d.default,
    aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact3d.default,
)
def upsample_nearest_exact(b: Builder, node: fx.Node, x: View, size: Sequence[int], *scales: float | None) -> Any:
    return _upsample_nearest(b, node, x, [*scales, *[None] * (len(size) - len(scales))], True)


@lowers(aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)
def upsample_nearest_vec(b: Builder, node: fx.Node, x: View, size: Any, scales: Sequence[float] | None) -> Any:
    return _upsample_nearest(b, node, x, _spread(scales, len(x.sizes) - 2), False)


# -- linear -----------------------------------------------------------------------------------
class Mix:
    """Two neighbours of a source position, and how much of the second."""

    def __init__(
        self, body: Body, o: Expr, size: Expr, out: Expr, align_corners: bool, scale: float | None, dtype: str
    ):
        step = body.cast(body.index(o), dtype)
        if align_corners:
            at = step * aligned_ratio(body, size, out, dtype)
        else:
            at = body.apply("max", (step + 0.5) * ratio_of(body, size, out, scale, dtype) - 0.5, 0)
        first = body.apply("min", body.cast(at, "i64"), size - 1)
        second = body.apply("min", first + 1, size - 1)
        self.first, self.second = expr(Value(first.name)), expr(Value(second.name))
        self.share = body.apply("min", body.apply("max", at - body.cast(first, dtype), 0), 1)

    def of(self, one: Val, other: Val) -> Val:
        return one * (1 - self.share) + other * self.share


@lowers(aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default)
def upsample_linear(
    b: Builder, node: fx.Node, x: View, size: Sequence[int], align_corners: bool, *scales: float | None
) -> Any:
    dtype = compute_type(x.dtype)
    if not is_float(dtype):
        return NotImplemented
    dims = len(x.sizes) - 2
    inner, outer = x.sizes[2:], sizes_of(node.meta["val"])[2:]
    stated = [*scales, *[None] * (dims - len(scales))]

    def formula(body: Body, point: Point) -> Val:
        mixes = [
            Mix(body, o, n, out, align_corners, scale, dtype)
            for o, n, out, scale in zip(point[2:], inner, outer, stated, strict=True)
        ]

        def mixed(chosen: Point) -> Val:
            if len(chosen) == dims:
                return body.cast(body.load(x, (*point[:2], *chosen)), dtype)
            mix = mixes[len(chosen)]
            return mix.of(mixed((*chosen, mix.first)), mixed((*chosen, mix.second)))

        return mixed(())

    return b.pointwise(node.meta["val"], formula)


@lowers(aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec)
def upsample_linear_vec(
    b: Builder, node: fx.Node, x: View, size: Any, align_corners: bool, scales: Sequence[float] | None
) -> Any:
    return upsample_linear(b, node, x, (), align_corners, *_spread(scales, len(x.sizes) - 2))
