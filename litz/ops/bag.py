"""Bags of embeddings: a running count of where bags begin says which one a position lies in; its row is added there.

The library is faster where it has a kernel of its own. Generated are maxima, and sums in bfloat16: there tracing
expects a result (the positions' bags) that the library's kernel leaves out.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type
from litz.loop.expr import ONE, ZERO
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Space, sizes_of, wants
from litz.ops.registry import lowers
from litz.ops.update import finished, started, walk

aten = torch.ops.aten

_SUM, _MEAN, _MAX = range(3)


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    b: Builder, node: fx.Node, weight: View, indices: View, offsets: View, scale_grad_by_freq: bool = False,
    mode: int = _SUM, sparse: bool = False, weights: View | None = None, include_last_offset: bool = False,
    padding: int = -1,
) -> Any:  # fmt: skip
    fakes = node.meta["val"]
    sums = mode == _SUM and weight.dtype == "bf16"
    fits = sums or (mode == _MAX and not any(wants(node, k) for k in (1, 2, 3)))
    if padding >= 0 or not fits or ZERO in (*weight.sizes, *indices.sizes, *sizes_of(fakes[0])):
        args = (weight, indices, offsets, scale_grad_by_freq, mode, sparse, weights, include_last_offset, padding)
        return b.library(node, args, {})
    dtype = compute_type(weight.dtype)
    made = started(b, fakes[0], -math.inf if mode == _MAX else 0, dtype)
    bags = _bags(b, fakes[0], indices, offsets, made)

    def add_row(body: Body, outer: Point, inner: Point) -> None:
        place = body.position(body.load(bags, inner), made.sizes[0], wrap=False)
        row = body.position(body.load(indices, inner), weight.sizes[0], wrap=False)
        value = body.cast(body.load(weight, (row, *outer)), dtype)
        if weights is not None:
            value = value * body.cast(body.load(weights, inner), dtype)
        if include_last_offset and mode == _SUM:
            # What comes after the last bag is in none; eager's maxima count it with the last.
            end = body.cast(body.load(offsets, (offsets.sizes[0] - 1,)), "i64")
            value = body.where(body.index(inner[0]) < end, value, 0)
        body.update(made, (place, *outer), "max" if mode == _MAX else "sum", value)

    walk(b, made.sizes[1:], made.strides[1:], indices.sizes, add_row)
    if mode == _MAX:
        return _without_empty(b, fakes[0], made, bags), None, None, None
    beside = [b.pointwise(fakes[1], lambda body, point: body.load(bags, point)) if wants(node, 1) else None]
    beside += [started(b, fakes[k], 0, "i64") if wants(node, k) else None for k in (2, 3)]
    return finished(b, fakes[0], made), *beside


def _without_empty(b: Builder, fake: torch.Tensor, made: View, bags: View) -> View:
    """A bag that nothing is in has no largest row: zeros, as in eager."""
    rows = b.scratch(made.sizes[:1], "i64")
    b.pointwise(fake, lambda body, point: body.const(0, "i64"), out=rows)

    def count(body: Body, _: Point, inner: Point) -> None:
        place = body.position(body.load(bags, inner), made.sizes[0], wrap=False)
        body.update(rows, (place,), "sum", body.const(1, "i64"))

    walk(b, (), (), bags.sizes, count)
    return b.pointwise(
        fake, lambda body, point: body.where(body.load(rows, point[:1]).eq(0), 0.0, body.load(made, point))
    )


def _bags(b: Builder, fake: torch.Tensor, indices: View, offsets: View, made: View) -> View:
    """The number of the bag that each position lies in."""
    length = indices.sizes[0]
    begins = b.scratch((length + 1,), "i64")
    b.pointwise(fake, lambda body, point: body.const(0, "i64"), out=begins)

    def begin(body: Body, _: Point, inner: Point) -> None:
        place = body.position(body.load(offsets, inner), length + 1, wrap=False)
        body.update(begins, (place,), "sum", body.const(1, "i64"))

    walk(b, (), (), made.sizes[:1], begin)  # there may be one offset more, the end of the last bag
    bags = b.scratch((length,), "i64")
    space, body = Space(), Body()
    at = space.reduce_over(length)
    opened = body.load(begins, (at,))
    running = opened if length is ONE else body.scan("sum", opened)
    body.store(bags, (at,), body.apply("min", running - 1, body.index(made.sizes[0] - 1)))
    b.emit(space, body)
    return bags
