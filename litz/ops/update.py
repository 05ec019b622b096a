"""Writing at places given by data, one after the other: scatters, assignment through indices, their sums and extrema.

A copy of the tensor, and a kernel that updates it: what the places are counted along is walked in order, all else is
parallel, so no two threads or lanes mean one element, and of equal places the last is kept, as in eager.
Half precision is accumulated in float32 and rounded once, unless eager rounds each time on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.expr import ONE, ZERO, Expr
from litz.loop.ir import View, identity
from litz.ops.builder import Body, Builder, Point, Space, Val, broadcast, dtype_of, line, numel, operand, sizes_of
from litz.ops.index import check_apart, unflatten
from litz.ops.registry import lowers

aten = torch.ops.aten

Formula = Callable[[Body, Point], Val]


def started(b: Builder, fake: torch.Tensor, x: View | float, dtype: str) -> View:
    """A buffer shaped as the result that holds `x` in `dtype`."""
    out = b.allocate(fake) if dtype == dtype_of(fake) else b.scratch(sizes_of(fake), dtype)
    return b.pointwise(fake, lambda body, point: operand(body, point or (ZERO,), x, dtype), out=out)


def accumulated(b: Builder, dtype: str, kind: str) -> str:
    """The type in which what is put is combined with what is there."""
    return dtype if kind == "sum" and not b.ctx.target.accumulates_wide else compute_type(dtype)


def finished(b: Builder, fake: torch.Tensor, made: View) -> View:
    """The buffer that was updated, rounded to the type of the result."""
    return made if made.dtype == dtype_of(fake) else b.pointwise(fake, lambda body, point: body.load(made, point))


def walk(
    b: Builder, parallel: Sequence[Expr], strides: Sequence[Expr], steps: Sequence[Expr],
    step: Callable[[Body, Point, Point], None],
) -> None:  # fmt: skip
    """A kernel that runs `step(body, at, step)` for each of `parallel`, the `steps` in order."""
    if any(size is ZERO for size in steps):
        return
    space, body = Space(), Body()
    at = space.over(parallel, strides)
    step(body, at, tuple(space.reduce_over(size) for size in steps))
    b.emit(space, body)


# -- an index for every element put -----------------------------------------------------------
def scatter(b: Builder, made: View, dim: int, index: View, kind: str, value: Formula) -> None:
    """`made[..., index[at], ...]` updated with `value(body, at)`, for every place `at` of the index."""
    others = [d for d in range(len(index.sizes)) if d != dim]

    def step(body: Body, outer: Point, inner: Point) -> None:
        along = dict(zip(others, outer, strict=True)) | {dim: inner[0]}
        at = tuple(along[d] for d in range(len(index.sizes)))
        place = body.position(body.load(index, at), made.sizes[dim], wrap=False, fault="place")
        body.update(made, (*at[:dim], place, *at[dim + 1 :]), kind, value(body, at))

    sizes, strides = [index.sizes[d] for d in others], [made.strides[d] for d in others]
    walk(b, sizes, strides, [index.sizes[dim]], step)


OF_BOOLS = {"sum": "max", "prod": "min"}  # or, and
_REDUCTIONS = {"sum": "sum", "mean": "sum", "prod": "prod", "amax": "max", "amin": "min"}


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    b: Builder, node: fx.Node, x: View, dim: int, index: View, source: View, reduce: str, *, include_self: bool = True
) -> Any:
    if len(line(index).sizes) != len(line(x).sizes):
        return NotImplemented  # nothing is put
    dim %= max(len(x.sizes), 1)

    def each(made: View, kind: str, value: Formula) -> None:
        scatter(b, line(made), dim, line(index), kind, value)

    return _reduced(b, node, x, reduce, include_self, each, lambda body, at: body.load(line(source), at))


@lowers(aten.index_reduce.default)
def index_reduce(
    b: Builder, node: fx.Node, x: View, dim: int, index: View, source: View, reduce: str, *, include_self: bool = True
) -> Any:
    if len(line(source).sizes) != len(line(x).sizes):
        return NotImplemented
    dim %= max(len(x.sizes), 1)
    places = [*[None] * dim, line(index)]
    check_apart(b, node, index, line(x), dim)

    def each(made: View, kind: str, value: Formula) -> None:
        assign(b, line(made), places, kind, value, wrap=False)

    return _reduced(b, node, x, reduce, include_self, each, lambda body, at: body.load(line(source), at))


def _reduced(
    b: Builder, node: fx.Node, x: View, reduce: str, include_self: bool,
    each: Callable[[View, str, Formula], None], put: Formula,
) -> Any:  # fmt: skip
    """`x` with what is put combined; `each(made, kind, value)` updates all places that something is put at."""
    kind, dtype, fake = _REDUCTIONS[reduce], compute_type(x.dtype), node.meta["val"]
    kind = OF_BOOLS.get(kind, kind) if dtype == "b1" else kind
    made = started(b, fake, x, accumulated(b, x.dtype, kind))
    if not include_self:
        each(made, "put", lambda body, at: body.const(identity(kind, dtype), dtype))
    each(made, kind, lambda body, at: body.cast(put(body, at), dtype))
    if reduce != "mean":
        return finished(b, fake, made)
    count = started(b, fake, 1 if include_self else 0, "i64")
    each(count, "sum", lambda body, at: body.const(1, "i64"))

    def mean(body: Body, point: Point) -> Val:
        counted = body.cast(body.apply("max", body.load(count, point), 1), dtype)
        total = body.cast(body.load(made, point), dtype)
        return body.apply("div" if is_float(dtype) else "floor_div", total, counted)

    return b.pointwise(fake, mean)


# -- assignment through index tensors ---------------------------------------------------------
def assign(b: Builder, made: View, indices: Sequence[View | None], kind: str, value: Formula, wrap: bool) -> None:
    """`made[indices]` updated with `value(body, at)`, for every place `at` of `made[indices]`."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    dims = [d for d, _ in given]
    rest = [d for d in range(len(made.sizes)) if d not in dims]
    # As in `index`: the dimensions of the indices stand in place of neighbours, else in front.
    start = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0

    def step(body: Body, outer: Point, inner: Point) -> None:
        point = dict(zip(rest, outer, strict=True))
        for d, index in given:
            point[d] = body.position(body.load(index, broadcast(index, inner)), made.sizes[d], wrap)
        put = value(body, (*outer[:start], *inner, *outer[start:]))
        body.update(made, tuple(point[d] for d in range(len(made.sizes))), kind, put)

    sizes, strides = [made.sizes[d] for d in rest], [made.strides[d] for d in rest]
    walk(b, sizes, strides, common_shape([i for _, i in given]), step)


def common_shape(views: Sequence[View]) -> tuple[Expr, ...]:
    """The shape they broadcast to."""
    rank = max(len(v.sizes) for v in views)
    shape: list[Expr] = [ONE] * rank
    for view in views:
        for d, size in enumerate(view.sizes, rank - len(view.sizes)):
            shape[d] = shape[d] if size is ONE else size
    return tuple(shape)


@lowers(aten.put.default)
def put(b: Builder, node: fx.Node, x: View, index: View, source: View, accumulate: bool = False) -> Any:
    """Places count through all of `x`; those of the index and of what is put, in the order of their elements."""
    if torch.are_deterministic_algorithms_enabled() and not accumulate:
        return NotImplemented  # eager refuses it then, whoever would run it
    places, values = numel(index.sizes), numel(source.sizes)
    if any(size is ZERO for size in x.sizes) or (places.is_int and values.is_int and places is not values):
        return NotImplemented  # eager refuses it
    fake = node.meta["val"]
    kind = "put" if not accumulate else "max" if x.dtype == "b1" else "sum"
    dtype = accumulated(b, x.dtype, kind) if accumulate else x.dtype
    made = started(b, fake, x, dtype)

    def step(body: Body, outer: Point, inner: Point) -> None:
        place = body.position(body.load(index, unflatten(inner[0], index.sizes)), numel(x.sizes))
        value = body.cast(body.load(source, unflatten(inner[0], source.sizes)), dtype)
        body.update(made, unflatten(place, x.sizes), kind, value)

    walk(b, (), (), [places], step)
    return finished(b, fake, made)
