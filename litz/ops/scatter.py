"""Writing into part of a tensor: the result is a choice, element by element, between what was and what is put.

A store at places taken from data has to run in order. Turned round it need not: every element of the result asks
which of the indices means it. That costs a comparison an index, and fuses as any pointwise kernel does, so it is done
for few indices (one token of a cache, the label of a row). For more, as gradients of indexing have them, see `update`;
and where no element may be there to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type
from litz.loop.expr import ONE, ZERO, Expr, ExprLike, expr, is_nonnegative, is_positive
from litz.loop.ir import View
from litz.ops import update
from litz.ops.builder import Body, Builder, Point, Val, broadcast, line, numel, operand, sizes_of
from litz.ops.index import counts, unflatten
from litz.ops.registry import lowers
from litz.ops.sizes import ask_what_broadcasts
from litz.ops.window import conjunction

aten = torch.ops.aten

_MOST_INDICES = 8

# What was, and what is put.
_COMBINE: dict[str, Callable[[Val, Val], Val]] = {
    "put": lambda old, new: new,
    "sum": lambda old, new: old + new,
    "prod": lambda old, new: old * new,
}


# -- places known when compiling --------------------------------------------------------------
@lowers(aten.select_scatter.default)
def select_scatter(b: Builder, node: fx.Node, x: View, source: View, dim: int, index: int) -> Any:
    dim %= len(x.sizes)
    if not _is_part(source, [size for d, size in enumerate(x.sizes) if d != dim]):
        return NotImplemented
    at = b.size_expr(index) + (x.sizes[dim] if index < 0 else ZERO)

    def formula(body: Body, point: Point) -> Val:
        put = body.load(source, (*point[:dim], *point[dim + 1 :]))
        chosen = body.index(point[dim]).eq(body.index(at))
        return body.where(chosen, body.cast(put, x.dtype), body.load(x, point))

    return b.pointwise(node.meta["val"], formula)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    b: Builder, node: fx.Node, x: View, source: View, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Any:  # fmt: skip
    dim %= len(x.sizes)
    whole = node.meta["val"].shape[dim]
    wanted = [*x.sizes]
    if all(number is None or isinstance(number, int) for number in (whole, start, end)):
        wanted[dim] = expr(len(range(whole)[start:end:step]))
    elif source.sizes:
        wanted[dim] = source.sizes[dim % len(source.sizes)]
    if not _is_part(source, wanted):
        return NotImplemented
    size, count = x.sizes[dim], source.sizes[dim]
    first = b.size_expr(_start_of_slice(node.meta["val"].shape[dim], start))
    stop = first + (count - 1) * step + 1
    if count is ZERO:
        return b.pointwise(node.meta["val"], lambda body, point: body.load(x, point))

    def formula(body: Body, point: Point) -> Val:
        i = point[dim]
        tests = [body.index(i) >= body.index(first)] if first is not ZERO else []
        tests += [body.index(i) < body.index(stop)] if not is_nonnegative(stop - size) else []
        at, rest = stepped(i, first, step)
        tests += [body.index(rest).eq(0)] if step > 1 else []
        mask = conjunction(tests)
        put = body.load(source, (*point[:dim], at, *point[dim + 1 :]), mask)
        put = body.cast(put, x.dtype)
        return put if mask is None else body.where(mask, put, body.load(x, point))

    return b.pointwise(node.meta["val"], formula)


def _is_part(source: View, sizes: Sequence[Expr]) -> bool:
    """Whether the source has those sizes, as far as is known: eager refuses others, which fakes do not see."""
    return len(source.sizes) == len(sizes) and all(
        a is b or not (a.is_int or b.is_int) for a, b in zip(source.sizes, sizes, strict=True)
    )


def _start_of_slice(size: Any, start: Any) -> Any:
    """Where a slice begins: a negative number counts from the end, and none is out of range."""
    if start is None:
        return 0
    return torch.sym_min(torch.sym_max(start + size if start < 0 else start, 0), size)


def stepped(i: Expr, first: ExprLike, step: int) -> tuple[Expr, Expr]:
    """`(i - first) // step` and its remainder, with no division of a negative number."""
    if step == 1:
        return i - first, ZERO
    lift = -(-expr(first) // step)
    lifted = i + (lift * step - first)
    return lifted // step - lift, lifted % step


def diagonal_length(rows: Expr, columns: Expr, offset: int, given: View) -> Expr:
    """Of the diagonal of a matrix; if its sizes are not known, that of what is given for it."""
    if rows.is_int and columns.is_int:
        return expr(max(min(rows.int + min(offset, 0), columns.int - max(offset, 0)), 0))
    return given.sizes[-1] if given.sizes else ONE


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    b: Builder, node: fx.Node, x: View, source: View, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    row, column = dim1 % len(x.sizes), dim2 % len(x.sizes)
    others = [size for d, size in enumerate(x.sizes) if d not in (row, column)]
    if not _is_part(source, [*others, diagonal_length(x.sizes[row], x.sizes[column], offset, source)]):
        return NotImplemented

    def formula(body: Body, point: Point) -> Val:
        mask = body.index(point[column] - point[row]).eq(offset)
        rest = [i for d, i in enumerate(point) if d not in (row, column)]
        put = body.load(source, (*rest, point[row] if offset >= 0 else point[column]), mask)
        return body.where(mask, body.cast(put, x.dtype), body.load(x, point))

    return b.pointwise(node.meta["val"], formula)


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    b: Builder, node: fx.Node, x: View, source: View, sizes: Sequence[int], strides: Sequence[int],
    offset: int | None = None,
) -> Any:  # fmt: skip
    """A copy, and a window on it that is written over."""
    fake = node.meta["val"]
    extents, steps = (tuple(b.size_expr(n) for n in numbers) for numbers in (sizes, strides))
    overlaps = any(step is ZERO and size is not ONE for size, step in zip(extents, steps, strict=True))
    # The window counts in the storage of `x`, what lies before it and gaps included.
    (given,) = (a.meta["val"] for a in node.args[:1] if isinstance(a, fx.Node))
    if overlaps or x.offset is not ZERO or given.storage_offset() != 0 or given.stride() != fake.stride():
        return b.library(node, (x, source, sizes, strides, offset), {})
    out = b.pointwise(fake, lambda body, point: body.load(x, point))
    window = View(out.buffer, out.dtype, extents, steps, b.size_expr(0 if offset is None else offset))
    b.pointwise(fake, lambda body, point: body.load(source, point), out=window)
    return out


# -- scatter: an index for every element put --------------------------------------------------
@lowers(aten.scatter.src)
def scatter_src(b: Builder, node: fx.Node, x: View, dim: int, index: View, source: View) -> Any:
    return _scatter(b, node, x, dim, index, source, "put")


@lowers(aten.scatter.value)
def scatter_value(b: Builder, node: fx.Node, x: View, dim: int, index: View, value: float) -> Any:
    return _scatter(b, node, x, dim, index, value, "put")


@lowers(aten.scatter_add.default)
def scatter_add(b: Builder, node: fx.Node, x: View, dim: int, index: View, source: View) -> Any:
    return _scatter(b, node, x, dim, index, source, "sum")


_REDUCED = {"add": "sum", "multiply": "prod"}


@lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_reduced(b: Builder, node: fx.Node, x: View, dim: int, index: View, value: Any, *, reduce: str) -> Any:
    return _scatter(b, node, x, dim, index, value, _REDUCED[reduce])


def _scatter(b: Builder, node: fx.Node, x: View, dim: int, index: View, source: Any, kind: str) -> Any:
    dtype = x.dtype if kind == "put" else compute_type(x.dtype)
    x, index, source = line(x), line(index), line(source) if isinstance(source, View) else source
    if len(index.sizes) != len(x.sizes):
        return NotImplemented  # nothing is put
    dim %= len(x.sizes)

    def put(body: Body, at: Point, mask: Val | None = None) -> Val:
        value = body.load(source, at, mask) if isinstance(source, View) else body.const(source, dtype)
        return body.cast(value, dtype)

    if not _is_few(index.sizes[dim]) or not is_positive(x.sizes[dim]):
        made = update.started(b, node.meta["val"], x, dtype if kind == "put" else update.accumulated(b, x.dtype, kind))
        update.scatter(b, line(made), dim, index, update.OF_BOOLS.get(kind, kind) if dtype == "b1" else kind, put)
        return update.finished(b, node.meta["val"], made)

    def formula(body: Body, point: Point) -> Val:
        point = point or (ZERO,)
        # The index may cover only the first rows of the other dimensions.
        covered = conjunction([
            body.index(i) < body.index(index.sizes[d])
            for d, i in enumerate(point)
            if d != dim and index.sizes[d] is not x.sizes[d]
        ])  # fmt: skip
        value = body.cast(body.load(x, point), dtype)
        # In order: of several that mean one element, the last is kept.
        for k in range(index.sizes[dim].int):
            at = (*point[:dim], expr(k), *point[dim + 1 :])
            place = body.position(body.load(index, at, covered), x.sizes[dim], wrap=False, fault="place")
            chosen = body.index(place).eq(body.index(point[dim]))
            chosen = chosen if covered is None else chosen & covered
            value = body.where(chosen, _COMBINE[kind](value, put(body, at, covered)), value)
        return value

    return b.pointwise(node.meta["val"], formula)


def _is_few(places: Expr) -> bool:
    return places.is_int and places.int <= _MOST_INDICES


# -- assignment through index tensors ---------------------------------------------------------
@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    b: Builder, node: fx.Node, x: View, indices: Sequence[View | None], values: View, accumulate: bool = False
) -> Any:
    fake = node.args[2].meta["val"]  # type: ignore[union-attr]
    ask_what_broadcasts(fake)
    values = replace(values, sizes=sizes_of(fake))
    if not _fit(x, indices, values):
        return NotImplemented  # eager refuses it
    masks = [i for i in indices if i is not None]
    if not accumulate and len(masks) == 1 and masks[0].dtype == "b1" and numel(values.sizes) is ONE:
        return _fill_mask(b, node, x, masks[0], list(indices).index(masks[0]), values)
    return _assign(b, node, x, indices, values, accumulate, wrap=True)


def _fit(x: View, indices: Sequence[View | None], values: View) -> bool:
    """Whether the indices, and the values for the places they mean, have sizes that go together, as far as known."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(i.dtype in ("b1", "u8") for _, i in given):
        taken = [len(i.sizes) if i is not None and i.dtype in ("b1", "u8") else 1 for i in indices]
        starts = [sum(taken[:d]) for d, _ in given]
        seen = [x.sizes[at : at + len(i.sizes)] for at, (_, i) in zip(starts, given, strict=True)]
        return sum(taken) <= len(x.sizes) and all(
            i.dtype not in ("b1", "u8") or all(map(_may_equal, i.sizes, sizes))
            for (_, i), sizes in zip(given, seen, strict=True)
        )
    if not given or len(indices) > len(x.sizes):
        return not given
    inner = update.common_shape([i for _, i in given])
    dims = [d for d, _ in given]
    rest = [size for d, size in enumerate(x.sizes) if d not in dims]
    start = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    whole = (*rest[:start], *inner, *rest[start:])
    return all(_goes_into(i.sizes, inner) for _, i in given) and _goes_into(values.sizes, whole)


def _goes_into(sizes: Sequence[Expr], whole: Sequence[Expr]) -> bool:
    """Whether sizes broadcast to others, as far as they are known."""
    own = whole[len(whole) - len(sizes) :] if len(sizes) <= len(whole) else ()
    return len(own) == len(sizes) and all(a is ONE or _may_equal(a, b) for a, b in zip(sizes, own, strict=True))


def _may_equal(a: Expr, b: Expr) -> bool:
    return not (a.is_int and b.is_int) or a is b


def _fill_mask(b: Builder, node: fx.Node, x: View, mask: View, start: int, value: View) -> View:
    """One value wherever the mask says: no place has to be looked up."""

    def formula(body: Body, point: Point) -> Val:
        chosen = body.load(mask, point[start : start + len(mask.sizes)])
        put = body.cast(body.load(value, (ZERO,) * len(value.sizes)), x.dtype)
        return body.where(chosen, put, body.load(x, point))

    return b.pointwise(node.meta["val"], formula)


@lowers(aten.index_copy.default)
def index_copy(b: Builder, node: fx.Node, x: View, dim: int, index: View, source: View) -> Any:
    if not _fits(line(x), line(source), dim):
        return NotImplemented  # eager refuses it
    return _assign(b, node, line(x), _along(x, dim, index), line(source), False, wrap=False)


@lowers(aten.index_copy_.default)
def index_copy_in_place(b: Builder, node: fx.Node, x: View, dim: int, index: View, source: View) -> Any:
    if not _fits(line(x), line(source), dim):
        return NotImplemented  # eager refuses it
    return _put_in_place(b, x, _along(x, dim, index), line(source), wrap=False)


@lowers(aten.index_put_.default)
def index_put_in_place(
    b: Builder, node: fx.Node, x: View, indices: Sequence[View | None], values: View, accumulate: bool = False
) -> Any:
    masks = any(i is not None and i.dtype in ("b1", "u8") for i in indices)
    values = replace(values, sizes=sizes_of(node.args[2].meta["val"]))  # type: ignore[union-attr]
    if masks or accumulate or not counts(indices) or not _fit(x, indices, values):
        return NotImplemented
    return _put_in_place(b, x, indices, values, wrap=True)


def _put_in_place(b: Builder, x: View, indices: Sequence[View | None], values: View, wrap: bool) -> View:
    """Only what is put is touched, where `write_in_place` has found that nobody asks for what was there."""
    update.assign(b, line(x), indices, "put", lambda body, at: operand(body, at, values, x.dtype), wrap)
    return x


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(b: Builder, node: fx.Node, x: View, dim: int, index: View, value: Any) -> Any:
    return _assign(b, node, line(x), _along(x, dim, index), value, False, wrap=True)


def _along(x: View, dim: int, index: View) -> list[View | None]:
    return [*[None] * (dim % max(len(x.sizes), 1)), line(index)]


@lowers(aten.index_add.default)
def index_add(b: Builder, node: fx.Node, x: View, dim: int, index: View, source: View, alpha: float = 1) -> Any:
    if not _fits(line(x), line(source), dim):
        return NotImplemented  # eager refuses it
    narrow = not b.ctx.target.accumulates_wide
    return _assign(b, node, line(x), _along(x, dim, index), line(source), True, wrap=False, factor=alpha, narrow=narrow)


def _fits(x: View, source: View, dim: int) -> bool:
    """Whether `source` has the shape of `x` but for the dimension that is indexed."""
    if len(x.sizes) != len(source.sizes):
        return False
    return all(d == dim % len(x.sizes) or x.sizes[d] is source.sizes[d] for d in range(len(x.sizes)))


def _assign(
    b: Builder, node: fx.Node, x: View, indices: Sequence[View | None], values: Any, accumulate: bool, wrap: bool,
    factor: float = 1, narrow: bool = False,
) -> Any:  # fmt: skip
    """`x[indices] = values`, or `+= factor * values`; `narrow`: what is updated is rounded each time."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if not given or not counts(indices):
        return NotImplemented
    shape = update.common_shape([i for _, i in given])
    dims = [d for d, _ in given]
    rank = len(x.sizes) - len(given) + len(shape)  # of x[indices]
    dtype = compute_type(x.dtype) if accumulate else x.dtype
    if isinstance(values, View) and len(values.sizes) > rank:
        return NotImplemented
    kind = "sum" if accumulate else "put"

    def put(body: Body, at: Point) -> Val:
        value = operand(body, at, values, dtype)
        return value if factor == 1 else value * factor

    places = numel(shape)
    if not _is_few(places) or not all(is_positive(x.sizes[d]) for d in dims):
        made = update.started(b, node.meta["val"], x, x.dtype if narrow else dtype)
        update.assign(b, line(made), indices, update.OF_BOOLS.get(kind, kind) if dtype == "b1" else kind, put, wrap)
        return update.finished(b, node.meta["val"], made)
    # As in `index`: the dimensions of the indices stand in place of neighbours, else in front.
    start = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0

    def formula(body: Body, point: Point) -> Val:
        point = point or (ZERO,)
        value = body.cast(body.load(x, point), dtype)
        rest = [i for d, i in enumerate(point) if d not in dims]
        for k in range(places.int):
            inner = unflatten(expr(k), shape)
            tests = []
            for d, index in given:
                place = body.position(body.load(index, broadcast(index, inner)), x.sizes[d], wrap)
                tests.append(body.index(place).eq(body.index(point[d])))
            chosen = conjunction(tests)
            assert chosen is not None
            new = put(body, (*rest[:start], *inner, *rest[start:]))
            value = body.where(chosen, _COMBINE[kind](value, new), value)
        return value

    return b.pointwise(node.meta["val"], formula)
