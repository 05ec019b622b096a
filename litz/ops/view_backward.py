"""Gradients of views: zero, but for the part that was looked at. Masked loads read that part and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type
from litz.loop.expr import ONE, ZERO, Expr, expr, is_nonnegative
from litz.loop.ir import View
from litz.ops import update
from litz.ops.builder import Body, Builder, Point, Val
from litz.ops.registry import lowers
from litz.ops.scatter import diagonal_length, stepped
from litz.ops.window import conjunction

aten = torch.ops.aten


def _spread(grad: View, sizes: Sequence[Expr]) -> View | None:
    """The gradient as what is copied into a part of those sizes, to which it may have to be broadcast; None if it
    is not known to fit: eager may refuse it."""
    missing = len(sizes) - len(grad.sizes)
    if missing < 0:
        return None
    own, strides = [ONE] * missing + list(grad.sizes), [ZERO] * missing + list(grad.strides)
    if any(a is not ONE and a is not b for a, b in zip(own, sizes, strict=True)):
        return None
    strides = [ZERO if size is ONE else stride for size, stride in zip(own, strides, strict=True)]
    return replace(grad, sizes=tuple(sizes), strides=tuple(strides))


@lowers(aten.slice_backward.default)
def slice_backward(
    b: Builder, node: fx.Node, grad: View, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Any:
    dim %= len(sizes)
    size, count = b.size_expr(sizes[dim]), grad.sizes[dim]
    if start < 0:  # counted from the end, as far as there is any
        start = max(start + sizes[dim], 0)
    if all(isinstance(number, int) for number in (sizes[dim], start, end)):
        count = expr(len(range(sizes[dim])[start:end:step]))
    seen = _spread(grad, [count if d == dim else b.size_expr(n) for d, n in enumerate(sizes)])
    if seen is None:
        return NotImplemented
    first = b.size_expr(start)
    stop = first + (count - 1) * step + 1

    def formula(body: Body, point: Point) -> Val:
        if count is ZERO:
            return body.const(0, grad.dtype)
        i = point[dim]
        tests = [body.index(i) >= body.index(first)] if first is not ZERO else []
        tests += [body.index(i) < body.index(stop)] if not is_nonnegative(stop - size) else []
        place, rest = stepped(i, first, step)
        tests += [body.index(rest).eq(0)] if step > 1 else []
        return body.load(seen, (*point[:dim], place, *point[dim + 1 :]), conjunction(tests))

    return b.pointwise(node.meta["val"], formula)


@lowers(aten.select_backward.default)
def select_backward(b: Builder, node: fx.Node, grad: View, sizes: Sequence[int], dim: int, index: int) -> Any:
    dim %= len(sizes)
    size = b.size_expr(sizes[dim])
    seen = _spread(grad, [b.size_expr(n) for d, n in enumerate(sizes) if d != dim])
    if seen is None:
        return NotImplemented
    at = b.size_expr(index) + (size if index < 0 else 0)

    def formula(body: Body, point: Point) -> Val:
        mask = body.index(point[dim]).eq(body.index(at)) if size is not ONE else None
        return body.load(seen, (*point[:dim], *point[dim + 1 :]), mask)

    return b.pointwise(node.meta["val"], formula)


@lowers(aten.unfold_backward.default, in_order=True)
def unfold_backward(
    b: Builder, node: fx.Node, grad: View, sizes: Sequence[int], dim: int, size: int, stride: int
) -> Any:
    """Windows may overlap: each adds its part, one window after the other. Where they do not, eager copies, and a -0.0
    stays one."""
    if not sizes:
        return NotImplemented
    dim %= len(sizes)
    fake, dtype = node.meta["val"], compute_type(grad.dtype)
    windows = (b.size_expr(sizes[dim]) - size) // stride + 1
    kept = [b.size_expr(n) for n in sizes]
    seen = _spread(grad, [*kept[:dim], windows, *kept[dim + 1 :], b.size_expr(size)])
    if seen is None:
        return NotImplemented
    made = update.started(b, fake, 0, dtype)
    kind = "put" if stride >= size else "sum"
    others = [d for d in range(len(sizes)) if d != dim]

    def step(body: Body, at: Point, inner: Point) -> None:
        window, k = inner
        value = body.cast(body.load(seen, (*at[:dim], window, *at[dim:], k)), dtype)
        body.update(made, (*at[:dim], window * stride + k, *at[dim:]), kind, value)

    sizes_of_others, strides = [made.sizes[d] for d in others], [made.strides[d] for d in others]
    update.walk(b, sizes_of_others, strides, (seen.sizes[dim], seen.sizes[-1]), step)
    return update.finished(b, fake, made)


@lowers(aten.diagonal_backward.default)
def diagonal_backward(
    b: Builder, node: fx.Node, grad: View, sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Any:
    row, column = dim1 % len(sizes), dim2 % len(sizes)
    whole = [b.size_expr(n) for n in sizes]
    length = diagonal_length(whole[row], whole[column], offset, grad)
    seen = _spread(grad, [*(size for d, size in enumerate(whole) if d not in (row, column)), length])
    if seen is None:
        return NotImplemented

    def formula(body: Body, point: Point) -> Val:
        mask = body.index(point[column] - point[row]).eq(offset)
        rest = [i for d, i in enumerate(point) if d not in (row, column)]
        return body.load(seen, (*rest, point[row] if offset >= 0 else point[column]), mask)

    return b.pointwise(node.meta["val"], formula)
