"""Tensors made from nothing: constants, ranges, triangles. Each is a kernel that loads little or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import from_torch, is_float
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Val, computed, operand
from litz.ops.registry import lowers

aten = torch.ops.aten


def filled(b: Builder, node: fx.Node, value: Any) -> View:
    dtype = from_torch(node.meta["val"].dtype)
    assert dtype is not None  # `lower` has seen to it
    return b.pointwise(node.meta["val"], lambda body, point: body.const(value, dtype))


@lowers(
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default,
    aten._efficientzerotensor.default,
)  # fmt: skip
def zeros(b: Builder, node: fx.Node, *_: Any, **__: Any) -> View:
    return filled(b, node, 0)


@lowers(
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.empty_permuted.default,
    aten.new_empty.default, aten.new_empty_strided.default,
)  # fmt: skip
def empty(b: Builder, node: fx.Node, *_: Any, **__: Any) -> View:
    """What eager leaves undefined is zero here: a step that never writes would leave the buffer unwritten. Where eager
    is to be deterministic, it fills the tensor with what will be noticed."""
    noticed = torch.are_deterministic_algorithms_enabled() and torch._C._get_deterministic_fill_uninitialized_memory()
    return filled(b, node, _noticed(node.meta["val"].dtype) if noticed else 0)


def _noticed(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point:
        return math.nan
    return True if dtype is torch.bool else torch.iinfo(dtype).max


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(b: Builder, node: fx.Node, *_: Any, **__: Any) -> View:
    return filled(b, node, 1)


@lowers(aten.full.default, aten.full_like.default, aten.fill.Scalar)
def full(b: Builder, node: fx.Node, like: Any, value: Any, **_: Any) -> View:
    return filled(b, node, value)


@lowers(aten.new_full.default)
def new_full(b: Builder, node: fx.Node, like: View, sizes: Any, value: Any, **_: Any) -> View:
    return filled(b, node, value)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(b: Builder, node: fx.Node, value: Any, **_: Any) -> View:
    return filled(b, node, value)


@lowers(aten.fill.Tensor)
def fill_with_tensor(b: Builder, node: fx.Node, like: View, value: View) -> View:
    return b.pointwise(node.meta["val"], lambda body, point: operand(body, point, value, like.dtype))


# -- ranges -----------------------------------------------------------------------------------
@lowers(aten.arange.default)
def arange(b: Builder, node: fx.Node, end: float, **_: Any) -> View:
    return arange_step(b, node, 0, end, 1)


@lowers(aten.arange.start)
def arange_start(b: Builder, node: fx.Node, start: float, end: float, **_: Any) -> View:
    return arange_step(b, node, start, end, 1)


@lowers(aten.arange.start_step)
def arange_step(b: Builder, node: fx.Node, start: float, end: float, step: float = 1, **_: Any) -> View:
    if not is_float(computed(node.meta["val"])):
        start, step = _cut(start), _cut(step)  # as eager: rounded before they are used

    def formula(body: Body, point: Point) -> Val:
        if isinstance(start, (int, torch.SymInt)) and isinstance(step, (int, torch.SymInt)):
            return body.index(point[0] * b.size_expr(step) + b.size_expr(start))
        # In double, as eager does: an error of the step would grow with the index.
        return body.cast(body.index(point[0]), "f64") * step + start

    return b.pointwise(node.meta["val"], formula)


def _cut(number: Any) -> Any:
    """The whole part."""
    return torch.sym_int(number) if isinstance(number, (torch.SymInt, torch.SymFloat)) else int(number)


@lowers(aten.linspace.default)
def linspace(b: Builder, node: fx.Node, start: float, end: float, steps: int, **_: Any) -> Any:
    dtype = computed(node.meta["val"])
    if not is_float(dtype):
        return NotImplemented
    step = (end - start) / (steps - 1) if steps > 1 else 0.0

    def formula(body: Body, point: Point) -> Val:
        # Counted from the nearer end, so that both ends are met exactly.
        ahead = body.cast(body.index(point[0]), "f64") * step + start
        back = end - body.cast(body.index(steps - 1 - point[0]), "f64") * step
        return body.where(body.index(point[0]) < (steps + 1) // 2, ahead, back)

    return b.pointwise(node.meta["val"], formula)


# -- diagonals --------------------------------------------------------------------------------
@lowers(aten.eye.default, aten.eye.m)
def eye(b: Builder, node: fx.Node, *_: Any, **__: Any) -> View:
    return b.pointwise(node.meta["val"], lambda body, point: body.index(point[0]).eq(body.index(point[1])))


@lowers(aten.diag_embed.default)
def diag_embed(b: Builder, node: fx.Node, x: View, offset: int = 0, dim1: int = -2, dim2: int = -1) -> View:
    rank = len(x.sizes) + 1
    row, column = dim1 % rank, dim2 % rank

    def formula(body: Body, point: Point) -> Val:
        on_diagonal = body.index(point[column] - point[row]).eq(offset)
        rest = [i for d, i in enumerate(point) if d not in (row, column)]
        return body.load(x, (*rest, point[row] if offset >= 0 else point[column]), on_diagonal)

    return b.pointwise(node.meta["val"], formula)


@lowers(aten.tril.default)
def tril(b: Builder, node: fx.Node, x: View, diagonal: int = 0) -> View:
    return _triangle(b, node, x, lambda below: below >= -diagonal)


@lowers(aten.triu.default)
def triu(b: Builder, node: fx.Node, x: View, diagonal: int = 0) -> View:
    return _triangle(b, node, x, lambda below: below <= -diagonal)


def _triangle(b: Builder, node: fx.Node, x: View, inside: Callable[[Val], Val]) -> View:
    """`x` where `inside(row - column)`, and zero elsewhere, where nothing is read."""
    return b.pointwise(
        node.meta["val"], lambda body, point: body.load(x, point, inside(body.index(point[-2] - point[-1])))
    )
