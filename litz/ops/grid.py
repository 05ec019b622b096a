"""Sampling a picture at the positions a grid gives: the neighbours that lie inside are loaded, and mixed.

Positions run from -1 to 1 over the picture. Outside lies nothing (a masked load), the edge, or a mirror image.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.expr import ZERO, Expr, Value, expr
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Val
from litz.ops.registry import lowers
from litz.ops.resample_backward import cubic_shares

aten = torch.ops.aten

_BILINEAR, _NEAREST, _CUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
Tap = tuple[Expr, "Val | None", "Val | None"]  # a neighbour along one dimension: place, whether inside, how much of it


@lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(b: Builder, node: fx.Node, x: View, grid: View, mode: int, padding: int, align_corners: bool) -> Any:
    spatial = len(x.sizes) - 2
    dtype = compute_type(x.dtype)
    if not is_float(dtype) or any(s is ZERO for s in x.sizes[2:]):
        return NotImplemented

    def formula(body: Body, point: Point) -> Val:
        n, c, *inner = point
        taps = []
        for d, size in enumerate(x.sizes[2:]):
            # The grid names the last dimension first.
            at = body.cast(body.load(grid, (n, *inner, expr(spatial - 1 - d))), dtype)
            taps.append(_taps(body, _unnormalised(body, at, size, align_corners), size, mode, padding, align_corners))
        total: Val | None = None
        for chosen in product(*taps):
            inside: Val | None = None
            for _, test, _ in chosen:
                inside = test if inside is None else inside if test is None else inside & test
            part = body.cast(body.load(x, (n, c, *(place for place, _, _ in chosen)), inside), dtype)
            for _, _, share in chosen:
                part = part if share is None else part * share
            total = part if total is None else total + part
        assert total is not None
        return total

    return b.pointwise(node.meta["val"], formula)


def _unnormalised(body: Body, at: Val, size: Expr, align_corners: bool) -> Val:
    steps = size - 1 if align_corners else size
    scaled = (at + 1) * (steps.int / 2 if steps.is_int else body.const(steps, at.dtype) / 2)
    return scaled if align_corners else scaled - 0.5


def _taps(body: Body, at: Val, size: Expr, mode: int, padding: int, align_corners: bool) -> list[Tap]:
    def padded(position: Val) -> Val:
        return _PADDING[padding](body, position, size, align_corners)

    if mode == _CUBIC:
        # The position itself is not bent back, only its neighbours are.
        whole = body.apply("floor", at)
        places = [padded(whole + (k - 1)) for k in range(4)]
        weights = cubic_shares(at - whole)
        return [(*_place(body, place, size), weight) for place, weight in zip(places, weights, strict=True)]
    at = padded(at)
    if mode == _NEAREST:
        return [(*_place(body, body.apply("round", at), size), None)]
    first = body.apply("floor", at)
    second = first + 1
    return [(*_place(body, first, size), second - at), (*_place(body, second, size), at - first)]


def _place(body: Body, position: Val, size: Expr) -> tuple[Expr, Val]:
    inside = (position >= 0) & (position <= size - 1)
    # What is no number, or too large for one, has no place: it is not read.
    whole = body.cast(body.where(inside, position, 0), "i64")
    return expr(Value(whole.name)), inside


def _nothing(body: Body, at: Val, size: Expr, align_corners: bool) -> Val:
    return at


def _edge(body: Body, at: Val, size: Expr, align_corners: bool) -> Val:
    return body.apply("min", body.where(at > 0, at, 0), size - 1)  # what is no number counts as 0


def _mirrored(body: Body, at: Val, size: Expr, align_corners: bool) -> Val:
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span is ZERO:
        return body.const(0, at.dtype)
    away = body.apply("abs", at - low)
    flips = body.apply("floor", away / span)
    rest = body.apply("fmod", away, span)
    odd = (flips - body.apply("floor", flips * 0.5) * 2).eq(1)
    return _edge(body, body.where(odd, -rest + span, rest) + low, size, align_corners)


_PADDING: dict[int, Callable[[Body, Val, Expr, bool], Val]] = {
    _ZEROS: _nothing, _BORDER: _edge, _REFLECTION: _mirrored,
}  # fmt: skip
