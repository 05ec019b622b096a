"""Gradients of interpolation: every output position adds its share to the source positions it was read from.

Positions and shares are the forward's own (`resample`). Spatial dimensions are walked in order, the rest is parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.expr import Expr, Value, expr
from litz.loop.ir import View
from litz.ops import update
from litz.ops.builder import Body, Builder, Point, Val, sizes_of
from litz.ops.registry import lowers
from litz.ops.resample import Mix, aligned_ratio, nearest, ratio_of

aten = torch.ops.aten

Shares = list[tuple[Expr, "Val | None"]]  # where a position was read, and how much of it (None: all)


def _spread_back(
    b: Builder, node: fx.Node, grad: View, spatial: int, shares: Callable[[Body, Expr, int, str], Shares]
) -> Any:
    """`shares(body, o, d, dtype)`: what output position `o` of spatial dimension `d` was read from."""
    fake, dtype = node.meta["val"], compute_type(grad.dtype)
    made = update.started(b, fake, 0, dtype)
    outer = len(grad.sizes) - spatial

    def step(body: Body, at: Point, inner: Point) -> None:
        value = body.cast(body.load(grad, (*at, *inner)), dtype)
        for chosen in product(*(shares(body, o, d, dtype) for d, o in enumerate(inner))):
            part = value
            for _, share in chosen:
                part = part if share is None else part * share
            body.update(made, (*at, *(place for place, _ in chosen)), "sum", part)

    update.walk(b, made.sizes[:outer], made.strides[:outer], grad.sizes[outer:], step)
    return update.finished(b, fake, made)


def _sizes(grad: View, node: fx.Node) -> tuple[Sequence[Expr], Sequence[Expr]]:
    return sizes_of(node.meta["val"])[2:], grad.sizes[2:]


# -- nearest ----------------------------------------------------------------------------------
def _nearest_backward(b: Builder, node: fx.Node, grad: View, scales: Sequence[float | None], centre: bool) -> Any:
    if not is_float(grad.dtype):
        return NotImplemented
    sizes, outs = _sizes(grad, node)
    scales = [*scales, *[None] * (len(sizes) - len(scales))]

    def shares(body: Body, o: Expr, d: int, dtype: str) -> Shares:
        return [(nearest(body, o, sizes[d], outs[d], scales[d], centre), None)]

    return _spread_back(b, node, grad, len(sizes), shares)


@lowers(
    aten.upsample_nearest1d_backward.default,
    aten.upsample_nearest2d_backward.default,
    aten.upsample_nearest3d_backward.default,
    in_order=True,
)
def upsample_nearest_backward(b: Builder, node: fx.Node, grad: View, out: Any, size: Any, *scales: float | None) -> Any:
    return _nearest_backward(b, node, grad, scales, False)


@lowers(
    aten._upsample_nearest_exact1d_backward.default,
    aten._upsample_nearest_exact2d_backward.default,
    aten._upsample_nearest_exact3d_backward.default,
    in_order=True,
)
def upsample_nearest_exact_backward(
    b: Builder, node: fx.Node, grad: View, out: Any, size: Any, *scales: float | None
) -> Any:
    return _nearest_backward(b, node, grad, scales, True)


# -- linear -----------------------------------------------------------------------------------
@lowers(
    aten.upsample_linear1d_backward.default,
    aten.upsample_bilinear2d_backward.default,
    aten.upsample_trilinear3d_backward.default,
    in_order=True,
)
def upsample_linear_backward(
    b: Builder, node: fx.Node, grad: View, out: Any, size: Any, align_corners: bool, *scales: float | None
) -> Any:
    if not is_float(grad.dtype):
        return NotImplemented
    sizes, outs = _sizes(grad, node)
    scales = (*scales, *[None] * (len(sizes) - len(scales)))

    def shares(body: Body, o: Expr, d: int, dtype: str) -> Shares:
        mix = Mix(body, o, sizes[d], outs[d], align_corners, scales[d], dtype)
        return [(mix.first, 1 - mix.share), (mix.second, mix.share)]

    return _spread_back(b, node, grad, len(sizes), shares)


# -- cubic ------------------------------------------------------------------------------------
_A = -0.75


def _within_one(x: Val) -> Val:
    return ((_A + 2) * x - (_A + 3)) * x * x + 1


def _within_two(x: Val) -> Val:
    return ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A


def cubic_shares(t: Val) -> list[Val]:
    """How much four neighbours weigh at `t` between the second and the third."""
    return [_within_two(t + 1), _within_one(t), _within_one(1 - t), _within_two(2 - t)]


@lowers(aten.upsample_bicubic2d_backward.default, in_order=True)
def upsample_bicubic_backward(
    b: Builder, node: fx.Node, grad: View, out: Any, size: Any, align_corners: bool, *scales: float | None
) -> Any:
    if not is_float(grad.dtype):
        return NotImplemented
    sizes, outs = _sizes(grad, node)
    scales = (*scales, *[None] * (len(sizes) - len(scales)))

    def shares(body: Body, o: Expr, d: int, dtype: str) -> Shares:
        step = body.cast(body.index(o), dtype)
        if align_corners:
            at = step * aligned_ratio(body, sizes[d], outs[d], dtype)
        else:
            at = (step + 0.5) * ratio_of(body, sizes[d], outs[d], scales[d], dtype) - 0.5
        whole = body.apply("floor", at)
        weights = cubic_shares(at - whole)
        first = body.cast(whole, "i64") - 1
        places = [body.apply("min", body.apply("max", first + k, 0), sizes[d] - 1) for k in range(4)]
        return [(expr(Value(place.name)), weight) for place, weight in zip(places, weights, strict=True)]

    return _spread_back(b, node, grad, 2, shares)
