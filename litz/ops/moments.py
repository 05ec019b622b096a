"""Variances and norms: reductions that need a formula before or after them, or two passes.

In: a view and the dimensions to reduce. Out: a kernel; for a long reduction with few outputs, the kernels `fold` makes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.expr import ZERO
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Space, Val, computed
from litz.ops.norm import over, split_point
from litz.ops.reduce import Finish, all_dims, count_over, fold, kept_point, parts_of, place_in, reduction
from litz.ops.registry import lowers

aten = torch.ops.aten

Dims = Union[Sequence[int], None]


# -- variance ---------------------------------------------------------------------------------
def _variance(
    b: Builder, node: fx.Node, x: View, dim: Sequence[int] | None, correction: float | None, fakes: Sequence[Any],
    finish: Finish,
) -> Any:  # fmt: skip
    """Two passes, exact where a single one cancels: the variance and, where its fake is not None, the mean.

    Added up in float64, as eager does."""
    dtype, dims, count = compute_type(x.dtype), all_dims(x, dim), count_over(x, dim)
    dtype = "f64" if dtype == "f32" else dtype
    if not is_float(dtype) or count is ZERO:
        return NotImplemented
    out, mean_out = (None if fake is None else b.allocate(fake) for fake in fakes)
    assert out is not None
    taken = 1 if correction is None else correction

    def deviation(body: Body, squares: Val) -> Val:
        if count.is_int and isinstance(taken, (int, float)):
            return finish(body, squares / max(0.0, count.int - taken))
        freedom = body.apply("max", body.const(count, "f64") - taken, 0.0)
        return finish(body, squares / body.cast(freedom, dtype))

    if parts_of(b, x, dims, count) is None:
        space, body = Space(), Body()
        point = split_point(space, x, dims)
        kept = kept_point(point, dims)
        value = body.cast(body.load(x, point), dtype)
        average = over(space, body, "sum", value) / count
        centred = value - average
        body.store(out, place_in(out, kept, dims), deviation(body, over(space, body, "sum", centred * centred)))
        if mean_out is not None:
            body.store(mean_out, place_in(mean_out, kept, dims), average)
        b.emit(space, body)
        return out, mean_out

    averages = b.scratch([size for d, size in enumerate(x.sizes) if d not in dims], dtype)

    def keep_average(body: Body, kept: Point, total: Val) -> None:
        average = total / count
        body.store(averages, kept, average)
        if mean_out is not None:
            body.store(mean_out, place_in(mean_out, kept, dims), average)

    def squared_distance(body: Body, element: Val, kept: Point) -> Val:
        centred = body.cast(element, dtype) - body.load(averages, kept)
        return centred * centred

    def keep_deviation(body: Body, kept: Point, squares: Val) -> None:
        body.store(out, place_in(out, kept, dims), deviation(body, squares))

    fold(b, x, dims, "sum", dtype, None, keep_average)
    fold(b, x, dims, "sum", dtype, squared_distance, keep_deviation)
    return out, mean_out


def _as_is(body: Body, value: Val) -> Val:
    return value


def _root(body: Body, value: Val) -> Val:
    return body.apply("sqrt", value)


@lowers(aten.var.correction)
def var(
    b: Builder, node: fx.Node, x: View, dim: Dims = None, correction: float | None = None, keepdim: bool = False
) -> Any:
    made = _variance(b, node, x, dim, correction, (node.meta["val"], None), _as_is)
    return made if made is NotImplemented else made[0]


@lowers(aten.var.dim)
def var_dim(b: Builder, node: fx.Node, x: View, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Any:
    return var(b, node, x, dim, 1 if unbiased else 0, keepdim)


@lowers(aten.std.correction)
def std(
    b: Builder, node: fx.Node, x: View, dim: Dims = None, correction: float | None = None, keepdim: bool = False
) -> Any:
    made = _variance(b, node, x, dim, correction, (node.meta["val"], None), _root)
    return made if made is NotImplemented else made[0]


@lowers(aten.var_mean.correction)
def var_mean(
    b: Builder, node: fx.Node, x: View, dim: Dims = None, correction: float | None = None, keepdim: bool = False
) -> Any:
    return _variance(b, node, x, dim, correction, node.meta["val"], _as_is)


@lowers(aten.std_mean.correction)
def std_mean(
    b: Builder, node: fx.Node, x: View, dim: Dims = None, correction: float | None = None, keepdim: bool = False
) -> Any:
    return _variance(b, node, x, dim, correction, node.meta["val"], _root)


# -- norms ------------------------------------------------------------------------------------
@lowers(aten.linalg_vector_norm.default)
def vector_norm(
    b: Builder, node: fx.Node, x: View, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False,
    dtype: Any = None,
) -> Any:  # fmt: skip
    wide = computed(node.meta["val"])
    infinite = math.isinf(ord)
    if not is_float(wide) or ((infinite or ord < 0) and count_over(x, dim) is ZERO):
        return NotImplemented

    def prepare(body: Body, element: Val) -> Val:
        value = body.cast(element, wide)
        if ord == 2:
            return value * value
        if ord == 0:
            return body.cast(value.ne(0), wide)
        size = body.apply("abs", value)
        return size if infinite or ord == 1 else body.apply("pow", size, ord)

    def finish(body: Body, total: Val) -> Val:
        if ord == 2:
            return body.apply("sqrt", total)
        return total if infinite or ord in (0, 1) else body.apply("pow", total, 1 / ord)

    kind = ("max" if ord > 0 else "min") if infinite else "sum"
    return reduction(b, node, x, dim, kind, wide, prepare, finish)


@lowers(aten.logsumexp.default)
def logsumexp(b: Builder, node: fx.Node, x: View, dim: int | Sequence[int], keepdim: bool = False) -> Any:
    dtype, dims = compute_type(x.dtype), all_dims(x, dim)
    if not is_float(dtype) or count_over(x, dim) is ZERO:
        return NotImplemented
    out = b.allocate(node.meta["val"])
    space, body = Space(), Body()
    point = split_point(space, x, dims)
    value = body.cast(body.load(x, point), dtype)
    top = over(space, body, "max", value)
    # An infinite maximum would give inf - inf; it is its own answer.
    shift = body.where(body.apply("abs", top).eq(math.inf), 0, top)
    total = over(space, body, "sum", body.apply("exp", value - shift))
    body.store(out, place_in(out, kept_point(point, dims), dims), body.apply("log", total) + shift)
    b.emit(space, body)
    return out
