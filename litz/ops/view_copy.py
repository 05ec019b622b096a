"""Copies of windows: the `*_copy` operators, and the operators that move elements without computing.

In: a view, or what the operator says about one. Out: a kernel that loads every element of the result from
where index arithmetic says it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from litz.loop.dtype import compute_type
from litz.loop.expr import ZERO, Expr
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, numel, operand, sizes_of
from litz.ops.index import flatten, unflatten
from litz.ops.registry import LOWERINGS, lowers

aten = torch.ops.aten


def moved(b: Builder, node: fx.Node, x: View, source: Callable[[Point], Sequence[Expr]]) -> View:
    """The result whose element at `point` is `x` at `source(point)`."""
    return b.pointwise(node.meta["val"], lambda body, point: body.load(x, tuple(source(point))))


# -- copies of views --------------------------------------------------------------------------
_VIEWS = (
    "alias", "detach", "diagonal", "expand", "permute", "select", "slice", "squeeze", "t", "transpose",
    "unsqueeze", "unbind", "split", "split_with_sizes", "unfold",
)  # fmt: skip


def _copy_of(view_of: torch._ops.OpOverload) -> Callable[..., Any]:
    def copy(b: Builder, node: fx.Node, x: View, *args: Any, **kwargs: Any) -> Any:
        # The view operator itself, run on a stand-in for the buffer, says where the window lies.
        base = _stand_in(node, x)
        with base.fake_mode if isinstance(base, FakeTensor) else nullcontext():
            seen = view_of(base, *args, **kwargs)
        if isinstance(seen, torch.Tensor):
            return _copy_window(b, node.meta["val"], x, seen)
        return tuple(_copy_window(b, fake, x, part) for fake, part in zip(node.meta["val"], seen, strict=True))

    return copy


def _stand_in(node: fx.Node, x: View) -> torch.Tensor:
    """A tensor laid out like `x`, from the start of its storage."""
    if not all(s.is_int for s in (*x.sizes, *x.strides)):
        given = node.args[0].meta["val"]  # type: ignore[union-attr]
        with given.fake_mode:
            return torch.empty_strided(given.shape, given.stride(), dtype=torch.int8)
    sizes, strides = [n.int for n in x.sizes], [s.int for s in x.strides]
    room = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if all(n > 0 for n in sizes) else 0
    return torch.empty(room, dtype=torch.int8, device="meta").as_strided(sizes, strides)


def _copy_window(b: Builder, fake: torch.Tensor, x: View, seen: torch.Tensor) -> View:
    window = View(
        x.buffer, x.dtype, sizes_of(seen), tuple(Builder.size_expr(s) for s in seen.stride()),
        x.offset + Builder.size_expr(seen.storage_offset()),
    )  # fmt: skip
    return b.pointwise(fake, lambda body, point: operand(body, point, window, window.dtype))


for _name in _VIEWS:
    _packet = getattr(aten, _name + "_copy", None)
    for _overload in [] if _packet is None else _packet.overloads():
        _copy = getattr(_packet, _overload)
        if _overload.endswith("out") or not hasattr(getattr(aten, _name), _overload):
            continue
        LOWERINGS[_copy] = _copy_of(getattr(getattr(aten, _name), _overload))


@lowers(aten.view_copy.default)
def view_copy(b: Builder, node: fx.Node, x: View, size: Sequence[int]) -> View:
    """The elements in the order of the dimensions, whether or not one window on `x` shows them so."""
    shape = sizes_of(node.meta["val"])
    if any(extent is ZERO for extent in shape):
        return b.allocate(node.meta["val"])
    return moved(b, node, x, lambda point: unflatten(flatten(point, shape), x.sizes))


# Copies by another name.
LOWERINGS[aten.narrow_copy.default] = _copy_of(aten.narrow.default)
LOWERINGS[aten.unsafe_split.Tensor] = _copy_of(aten.split.Tensor)
LOWERINGS[aten.unsafe_split_with_sizes.default] = _copy_of(aten.split_with_sizes.default)


# -- movements --------------------------------------------------------------------------------
@lowers(aten.flip.default)
def flip(b: Builder, node: fx.Node, x: View, dims: Sequence[int]) -> View:
    turned = {d % len(x.sizes) for d in dims} if x.sizes else set()
    return moved(b, node, x, lambda point: [x.sizes[d] - 1 - i if d in turned else i for d, i in enumerate(point)])


@lowers(aten.roll.default)
def roll(b: Builder, node: fx.Node, x: View, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not x.sizes:
        return NotImplemented
    if any(size is ZERO for size in x.sizes):
        return b.allocate(node.meta["val"])
    if not dims:
        return _roll_flat(b, node, x, b.size_expr(shifts[0]))
    total = [ZERO] * len(x.sizes)
    for shift, d in zip(shifts, dims, strict=True):
        total[d % len(total)] += b.size_expr(shift)

    def source(point: Point) -> list[Expr]:
        return [(i + (-shift) % size) % size for i, shift, size in zip(point, total, x.sizes, strict=True)]

    return moved(b, node, x, source)


def _roll_flat(b: Builder, node: fx.Node, x: View, shift: Expr) -> View:
    """The elements in the order of the dimensions, rolled as one row."""
    count = numel(x.sizes)

    def source(point: Point) -> Sequence[Expr]:
        return unflatten((flatten(point, x.sizes) + (-shift) % count) % count, x.sizes)

    return moved(b, node, x, source)


@lowers(aten.repeat.default)
def repeat(b: Builder, node: fx.Node, x: View, repeats: Sequence[int]) -> View:
    extra = len(repeats) - len(x.sizes)

    def source(point: Point) -> list[Expr]:
        return [i % size for i, size in zip(point[extra:], x.sizes, strict=True)]

    return moved(b, node, x, source)


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(b: Builder, node: fx.Node, x: View, factor: int) -> View:
    def source(point: Point) -> list[Expr]:
        *batch, c, h, w = point
        return [*batch, (c * factor + h % factor) * factor + w % factor, h // factor, w // factor]

    return moved(b, node, x, source)


@lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(b: Builder, node: fx.Node, x: View, factor: int) -> View:
    def source(point: Point) -> list[Expr]:
        *batch, c, h, w = point
        row, column = (c // factor) % factor, c % factor
        return [*batch, c // (factor * factor), h * factor + row, w * factor + column]

    return moved(b, node, x, source)


@lowers(aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def channel_shuffle(b: Builder, node: fx.Node, x: View, groups: int) -> View:
    run = x.sizes[1] // groups

    def source(point: Point) -> list[Expr]:
        n, c, *rest = point
        return [n, (c % groups) * run + c // groups, *rest]

    return moved(b, node, x, source)


@lowers(aten.glu.default)
def glu(b: Builder, node: fx.Node, x: View, dim: int = -1) -> View:
    dim %= len(x.sizes)
    half = x.sizes[dim] // 2
    dtype = compute_type(x.dtype)

    def formula(body: Body, point: Point) -> Any:
        gate = (*point[:dim], point[dim] + half, *point[dim + 1 :])
        return body.cast(body.load(x, point), dtype) * body.apply("sigmoid", body.cast(body.load(x, gate), dtype))

    return b.pointwise(node.meta["val"], formula)


@lowers(aten.broadcast_tensors.default)
def broadcast_tensors(b: Builder, node: fx.Node, tensors: Sequence[View]) -> Any:
    """Windows on the arguments: a dimension that is repeated has stride 0."""
    return tuple(b.window(x, fake) for x, fake in zip(tensors, node.meta["val"], strict=True))
