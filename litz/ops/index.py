"""Reading at places given by data: embedding, gather, advanced indexing. Each is a kernel of indirect loads.

An index loaded from memory is checked by `Body.position`: out of range raises `IndexError`. Advanced indexing
counts negative places from the end; the other operators refuse them, as eager does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from litz.loop.expr import ZERO, Expr, is_positive
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Val, broadcast, line, numel
from litz.ops.registry import lowers

aten = torch.ops.aten


@lowers(aten.embedding.default)
def embedding(b: Builder, node: fx.Node, weight: View, indices: View, *_: Any, **__: Any) -> View:
    rank = len(indices.sizes)

    def formula(body: Body, point: Point) -> Val:
        row = body.position(body.load(indices, point[:rank]), weight.sizes[0], wrap=False)
        return body.load(weight, (row, point[rank]))

    check_apart(b, node, indices, weight, 0)
    return b.pointwise(node.meta["val"], formula)


@lowers(aten.index_select.default)
def index_select(b: Builder, node: fx.Node, x: View, dim: int, index: View) -> Any:
    whole = line(x)
    dim %= len(whole.sizes)

    def formula(body: Body, point: Point) -> Val:
        point = point or (ZERO,)
        place = (point[dim],) if index.sizes else ()
        at = body.position(body.load(index, place), whole.sizes[dim], wrap=False)
        return body.load(whole, (*point[:dim], at, *point[dim + 1 :]))

    check_apart(b, node, index, whole, dim)
    return b.pointwise(node.meta["val"], formula)


def check_apart(b: Builder, node: fx.Node, index: View, x: View, dim: int) -> None:
    """Where `x` may have no elements along other dimensions, eager's operators differ: these look at the places all the
    same."""
    if all(is_positive(size) for d, size in enumerate(x.sizes) if d != dim):
        return

    def formula(body: Body, point: Point) -> Val:
        return body.index(body.position(body.load(index, point), x.sizes[dim], wrap=False))

    b.pointwise(node.meta["val"], formula, out=b.scratch(index.sizes, "i64"))


@lowers(aten.gather.default)
def gather(b: Builder, node: fx.Node, x: View, dim: int, index: View, sparse_grad: bool = False) -> Any:
    whole, places = line(x), line(index)
    if len(whole.sizes) != len(places.sizes):
        return NotImplemented  # nothing is gathered
    dim %= len(whole.sizes)

    def formula(body: Body, point: Point) -> Val:
        point = point or (ZERO,)
        at = body.position(body.load(places, point), whole.sizes[dim], wrap=False, fault="place")
        return body.load(whole, (*point[:dim], at, *point[dim + 1 :]))

    return b.pointwise(node.meta["val"], formula)


@lowers(aten.take.default)
def take(b: Builder, node: fx.Node, x: View, index: View) -> View:
    def formula(body: Body, point: Point) -> Val:
        flat = body.position(body.load(index, point), numel(x.sizes))
        return body.load(x, unflatten(flat, x.sizes))

    return b.pointwise(node.meta["val"], formula)


def flatten(point: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    """Which element it is, in the order of the dimensions."""
    flat = ZERO
    for i, size in zip(point, sizes, strict=True):
        flat = flat * size + i
    return flat


def unflatten(flat: Expr, sizes: Sequence[Expr]) -> Point:
    """The place of the `flat`-th element in the order of the dimensions."""
    place: list[Expr] = []
    for size in reversed(sizes):
        place.append(flat % size)
        flat = flat // size
    return tuple(reversed(place))


# -- advanced indexing ------------------------------------------------------------------------
@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(b: Builder, node: fx.Node, x: View, indices: Sequence[View | None]) -> Any:
    if not counts(indices):
        return NotImplemented  # a mask: the shape of the result depends on the data
    fake = node.meta["val"]
    return b.pointwise(fake, lambda body, point: body.load(x, indexed_place(body, x, indices, point)))


def counts(indices: Sequence[View | None]) -> bool:
    """Whether every index is a number of a place, and none a mask."""
    return all(i is None or i.dtype in ("i64", "i32") for i in indices)


def indexed_place(body: Body, x: View, indices: Sequence[View | None], point: Point) -> Point:
    """The place in `x` of the element at `point` of `x[indices]`."""
    given = [d for d, i in enumerate(indices) if i is not None]
    rank = max((len(i.sizes) for i in indices if i is not None), default=0)
    # The dimensions of the indices stand where the indexed ones stood if those are neighbours, else in front.
    adjacent = bool(given) and given[-1] - given[0] == len(given) - 1
    start = given[0] if adjacent else 0
    inner, rest = point[start : start + rank], iter((*point[:start], *point[start + rank :]))
    place: list[Expr] = []
    for d, size in enumerate(x.sizes):
        chosen = indices[d] if d < len(indices) else None
        if chosen is None:
            place.append(next(rest))
        else:
            place.append(body.position(body.load(chosen, broadcast(chosen, inner)), size))
    return tuple(place)
