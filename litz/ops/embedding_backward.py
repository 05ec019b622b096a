"""The gradient of rows taken from a table: each place that took a row adds to it.

In half precision sums are made in float32, and rounded once, as in eager.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type
from litz.loop.expr import Value, expr
from litz.loop.ir import View, contiguous
from litz.ops.builder import Body, Builder, Point, Space, Val, numel, sizes_of
from litz.ops.index import flatten
from litz.ops.registry import lowers
from litz.ops.update import finished, started, walk

aten = torch.ops.aten

_CROWD = 16  # places that take a row, beyond which it is summed in shares
_MOST_SHARES = 64
_SORTED = 3072  # places beyond which eager sorts them first, so that its sums are the more exact ones


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    b: Builder, node: fx.Node, grad: View, indices: View, rows: int, padding: int, scale_grad_by_freq: bool
) -> Any:
    fake, dtype, at_once = node.meta["val"], compute_type(grad.dtype), not b.ctx.target.walks_in_order
    rounds, is_large = dtype != grad.dtype, sizes_of(fake)[0].hint > numel(indices.sizes).hint
    if at_once and rounds and is_large and not scale_grad_by_freq:
        return _summed_where_taken(b, fake, grad, indices, padding)
    shares = _shares(fake, indices) if at_once else 1
    if at_once and not rounds and shares == 1 and numel(indices.sizes).hint > _SORTED:
        return NotImplemented  # a row that many took would be added up one by one
    made = started(b, fake, 0, dtype) if shares == 1 else _started_in_shares(b, fake, shares, dtype)
    table = View(made.buffer, dtype, sizes_of(fake), made.strides[-2:])
    if scale_grad_by_freq:
        seen = b.scratch(table.sizes[:1], "i64")
        b.pointwise(fake, lambda body, point: body.const(0, "i64"), out=seen)
        walk(b, (), (), indices.sizes, lambda body, _, inner: _count(body, seen, indices, inner))

    def step(body: Body, outer: Point, inner: Point) -> None:
        index = body.load(indices, inner)
        row = body.position(index, table.sizes[0], wrap=False)
        value = body.cast(body.load(grad, (*inner, *outer)), dtype)
        if scale_grad_by_freq:
            value = value / body.cast(body.load(seen, (row,)), dtype)
        if padding >= 0:
            # Minus zero changes nothing, and is not even added where threads would have to wait for one another.
            value = body.where(index.eq(padding), body.const(-0.0 if at_once else 0, dtype), value)
        share = () if shares == 1 else (flatten(inner, indices.sizes) % shares,)
        body.update(made, (*share, row, *outer), "sum", value)

    walk(b, table.sizes[1:], table.strides[1:], indices.sizes, step)
    return finished(b, fake, made) if shares == 1 else _sum_of_shares(b, fake, made)


def _shares(fake: torch.Tensor, indices: View) -> int:
    """How many tables are summed apart, a power of two: where many places took few rows, they would wait for one
    another at them."""
    crowd = numel(indices.sizes).hint // (_CROWD * max(1, sizes_of(fake)[0].hint))
    return 1 << (max(1, min(crowd, _MOST_SHARES)).bit_length() - 1)


def _started_in_shares(b: Builder, fake: torch.Tensor, shares: int, dtype: str) -> View:
    made = b.scratch((shares, *sizes_of(fake)), dtype)
    return b.pointwise(fake, lambda body, point: body.const(0, dtype), out=made)


def _sum_of_shares(b: Builder, fake: torch.Tensor, made: View) -> View:
    out, space, body = b.allocate(fake), Space(), Body()
    point = space.over(out.sizes, out.strides)
    body.store(out, point, body.reduce("sum", body.load(made, (space.reduce_over(made.sizes[0]), *point))))
    b.emit(space, body)
    return out


def _count(body: Body, seen: View, indices: View, at: Point) -> None:
    row = body.position(body.load(indices, at), seen.sizes[0], wrap=False)
    body.update(seen, (row,), "sum", body.const(1, "i64"))


def _summed_where_taken(b: Builder, fake: torch.Tensor, grad: View, indices: View, padding: int) -> View:
    """Of a table with more rows than were taken. Sums in float32 of all rows would be more memory than there is to read
    and write. So a row is summed at one of the places that took it, the last: that place's own gradient is what the sum
    begins with, and most rows were taken once."""
    (rows, width), dtype = sizes_of(fake), compute_type(grad.dtype)
    last = b.scratch((rows,), "i32")
    flat = b.scratch((numel(indices.sizes), width), dtype)  # place by place
    sums = View(flat.buffer, dtype, (*indices.sizes, width), contiguous((*indices.sizes, width)))  # the same
    b.pointwise(fake, lambda body, point: body.const(-1, "i32"), out=last)

    def take(body: Body, _: Point, at: Point) -> None:
        row = body.position(body.load(indices, at), rows, wrap=False)
        body.update(last, (row,), "max", body.index(flatten(at, indices.sizes), "i32"))

    def sum_of(body: Body, at: Point) -> tuple[Val, Val]:
        """The place where the row of a place is summed, and whether it is that one."""
        row = body.position(body.load(indices, at), rows, wrap=False)
        place = body.cast(body.load(last, (row,)), "i64")
        return place, place.eq(body.index(flatten(at, indices.sizes)))

    def share(body: Body, at: Point, column: Point, chosen: Val, nothing: float) -> Val:
        """What a place has to add, if it is chosen."""
        if padding >= 0:
            chosen = chosen & body.load(indices, at).ne(padding)
        value = body.cast(body.load(grad, (*at, *column), chosen), dtype)
        return body.where(chosen, value, body.const(nothing, dtype))

    def begin(body: Body, point: Point) -> Val:
        *at, column = point
        return share(body, tuple(at), (column,), sum_of(body, tuple(at))[1], 0.0)

    def add(body: Body, column: Point, at: Point) -> None:
        place, is_here = sum_of(body, at)
        body.update(flat, (expr(Value(place.name)), *column), "sum", share(body, at, column, ~is_here, -0.0))

    def gather(body: Body, point: Point) -> Val:
        place = body.cast(body.load(last, point[:1]), "i64")
        return body.load(flat, (expr(Value(place.name)), point[1]), place >= 0)

    walk(b, (), (), indices.sizes, take)
    b.pointwise(fake, begin, out=sums)
    walk(b, (width,), sums.strides[-1:], indices.sizes, add)
    return b.pointwise(fake, gather)
