"""Padding: the result read off the input, shifted. What lies outside is a constant, a mirror image or the edge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type
from litz.loop.exact import is_positive_zero
from litz.loop.expr import ZERO, Expr, Value, expr, is_below
from litz.loop.ir import View
from litz.ops import update
from litz.ops.builder import Body, Builder, Point, Val
from litz.ops.registry import lowers
from litz.ops.window import inside

aten = torch.ops.aten

Bend = Callable[[Body, Expr, Expr], Val]  # where a position in a dimension of that size is read, if it is outside


@lowers(aten.constant_pad_nd.default)
def constant_pad(b: Builder, node: fx.Node, x: View, pad: Sequence[int], value: float = 0) -> Any:
    before = _before(b, pad, len(x.sizes))

    def formula(body: Body, point: Point) -> Val:
        place = tuple(i - p for i, p in zip(point, before, strict=True))
        mask = inside(body, place, x.sizes)
        read = body.load(x, place, mask)
        # A masked load is zero already, and positive.
        return read if mask is None or is_positive_zero(value) else body.where(mask, read, value)

    return b.pointwise(node.meta["val"], formula)


def _before(b: Builder, pad: Sequence[int], rank: int) -> list[Expr]:
    """What is padded at the front of each dimension. ATen lists the last dimension first."""
    before = [ZERO] * rank
    for i in range(len(pad) // 2):
        before[-1 - i] = b.size_expr(pad[2 * i])
    return before


def _mirrored(body: Body, position: Expr, size: Expr) -> Val:
    """-2 -1 | 0 1 2 | 3 4 is read as 2 1 | 0 1 2 | 1 0."""
    last = body.const(size - 1, "i64")
    return last - body.apply("abs", last - body.apply("abs", body.index(position)))


def _nearest(body: Body, position: Expr, size: Expr) -> Val:
    return body.apply("min", body.apply("max", body.index(position), 0), size - 1)


@lowers(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(b: Builder, node: fx.Node, x: View, pad: Sequence[int]) -> Any:
    return _bent_pad(b, node, x, pad, _mirrored)


@lowers(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(b: Builder, node: fx.Node, x: View, pad: Sequence[int]) -> Any:
    return _bent_pad(b, node, x, pad, _nearest)


@lowers(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
    in_order=True,
)
def reflection_pad_backward(b: Builder, node: fx.Node, grad: View, x: View, pad: Sequence[int]) -> Any:
    return _bent_back(b, node, grad, x, pad, _mirrored)


@lowers(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
    in_order=True,
)
def replication_pad_backward(b: Builder, node: fx.Node, grad: View, x: View, pad: Sequence[int]) -> Any:
    return _bent_back(b, node, grad, x, pad, _nearest)


def _bent_back(b: Builder, node: fx.Node, grad: View, x: View, pad: Sequence[int], bend: Bend) -> Any:
    """Each element of the padded tensor adds its gradient where it was read."""
    fake, dtype = node.meta["val"], compute_type(grad.dtype)
    made = update.started(b, fake, 0, dtype)
    outer = len(x.sizes) - len(pad) // 2
    before = _before(b, pad, len(x.sizes))[outer:]

    def step(body: Body, at: Point, inner: Point) -> None:
        places = (_bent(body, i, p, size, bend) for i, p, size in zip(inner, before, x.sizes[outer:], strict=True))
        body.update(made, (*at, *places), "sum", body.cast(body.load(grad, (*at, *inner)), dtype))

    update.walk(b, made.sizes[:outer], made.strides[:outer], grad.sizes[outer:], step)
    return update.finished(b, fake, made)


def _bent(body: Body, i: Expr, before: Expr, size: Expr, bend: Bend) -> Expr:
    """The position that element `i` of the padded dimension was read from."""
    position = i - before
    low = position.bounds()[0]
    within = low is not None and low >= 0 and is_below(position, size)
    return position if within else expr(Value(bend(body, position, size).name))


def _bent_pad(b: Builder, node: fx.Node, x: View, pad: Sequence[int], bend: Bend) -> Any:
    """`x` where every position outside is bent back inside."""
    before = _before(b, pad, len(x.sizes))

    def formula(body: Body, point: Point) -> Val:
        places = (_bent(body, i, p, size, bend) for i, p, size in zip(point, before, x.sizes, strict=True))
        return body.load(x, tuple(places))

    return b.pointwise(node.meta["val"], formula)
