"""Reductions: every one is `finish(reduce(kind, prepare(x)))` over some dimensions.

In: a view and the dimensions to reduce. Out: one kernel, or two where few outputs each take in so much
that a single kernel would leave all threads but one idle: partial results first, then the rest. Sums down
columns (the gradient of a bias) are two as well, for accuracy: see `row_sums.py`.

Types follow eager: half precisions are added up in float32, integers and booleans in int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.expr import ZERO, Expr, expr
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Space, Val, computed, dtype_of, numel, operand
from litz.ops.norm import over, split_point
from litz.ops.registry import lowers
from litz.ops.row_sums import adds_rows, sum_rows

aten = torch.ops.aten

Prepare = Callable[[Body, Val, Point], Val]  # body, the loaded element, its place in the dimensions kept
Finish = Callable[[Body, Val], Val]

# A reduction this long that is not one of many is cut into parts, one an iteration of a parallel axis.
_LONG = 1 << 16
_FEW_OUTPUTS = 32
_MOST_PARTS = 256
_FEWEST_PARTS = 4

_IDENTITY: dict[str, float] = {"sum": 0, "prod": 1, "any": False, "all": True}


def all_dims(x: View, dim: int | Sequence[int] | None) -> list[int]:
    """The dimensions meant by ATen's `dim`: none named is all of them."""
    rank = len(x.sizes)
    if isinstance(dim, int):
        dim = [dim]
    if not dim:
        return list(range(rank))
    return sorted({d % rank for d in dim}) if rank else []


def kept_point(point: Point, dims: Sequence[int]) -> Point:
    return tuple(i for d, i in enumerate(point) if d not in dims)


def place_in(out: View, kept: Point, dims: Sequence[int]) -> Point:
    """Where in the result the reduction of a row belongs, with or without its reduced dimensions kept."""
    if len(out.sizes) == len(kept):
        return kept
    rest = iter(kept)
    return tuple(ZERO if d in dims else next(rest) for d in range(len(out.sizes)))


def fold(
    b: Builder, x: View, dims: Sequence[int], kind: str, dtype: str, prepare: Prepare | None,
    use: Callable[[Body, Point, Val], None],
) -> None:  # fmt: skip
    """Reduce `prepare(x)` of type `dtype` over `dims`; `use(body, kept, total)` stores what comes of it."""
    length = numel([x.sizes[d] for d in dims])
    if length is ZERO:
        space, body = Space(), Body()
        kept = space.over([size for d, size in enumerate(x.sizes) if d not in dims])
        use(body, kept, body.const(_IDENTITY[kind], dtype))
        b.emit(space, body)
        return
    if kind == "sum" and is_float(dtype) and b.ctx.target.cuts_sums_early and adds_rows(x, dims):
        _fold_rows(b, x, dims, dtype, prepare, use)
        return
    parts = parts_of(b, x, dims, length)
    if parts is not None:
        x, dims = _in_parts(b, x, dims, kind, dtype, prepare, *parts)
        prepare = None
    space, body = Space(), Body()
    point = split_point(space, x, dims)
    kept = kept_point(point, dims)
    use(body, kept, _total(space, body, x, point, kept, kind, dtype, prepare))
    b.emit(space, body)


def _fold_rows(
    b: Builder, x: View, dims: Sequence[int], dtype: str, prepare: Prepare | None,
    use: Callable[[Body, Point, Val], None],
) -> None:  # fmt: skip
    def terms(body: Body, point: Point, mask: Val | None) -> list[Val]:
        element = body.load(x, point, mask)
        value = body.cast(element, dtype) if prepare is None else prepare(body, element, kept_point(point, dims))
        # What is made of an element that is not there need not be zero.
        return [value if mask is None or prepare is None else body.where(mask, value, 0)]

    sum_rows(b, x, dims, terms, lambda body, kept, sums: use(body, kept, sums[0]))


def _total(
    space: Space, body: Body, x: View, point: Point, kept: Point, kind: str, dtype: str, prepare: Prepare | None
) -> Val:
    element = body.load(x, point)
    value = body.cast(element, dtype) if prepare is None else prepare(body, element, kept)
    total = over(space, body, kind, value)
    # A sum starts from zero, also of a single element: -0.0 comes out as 0.0.
    return total + 0.0 if kind == "sum" and not space.reduced and is_float(dtype) else total


def parts_of(b: Builder, x: View, dims: Sequence[int], length: Expr) -> tuple[int, int] | None:
    """The dimension to cut and in how many equal parts; None where one kernel will do, or it is cut later."""
    if not b.ctx.target.cuts_sums_early:
        return None
    outputs = numel([size for d, size in enumerate(x.sizes) if d not in dims])
    if not (length.is_int and outputs.is_int) or length.int <= _LONG or not 0 < outputs.int <= _FEW_OUTPUTS:
        return None
    cuts = {d: _largest_divisor(x.sizes[d].int) for d in dims}
    dim = max(cuts, key=lambda d: cuts[d])
    return (dim, cuts[dim]) if cuts[dim] >= _FEWEST_PARTS else None


def _largest_divisor(size: int) -> int:
    return next(parts for parts in range(min(size, _MOST_PARTS), 0, -1) if size % parts == 0)


def _in_parts(
    b: Builder, x: View, dims: Sequence[int], kind: str, dtype: str, prepare: Prepare | None, cut: int, parts: int
) -> tuple[View, list[int]]:
    """Partial reductions: the dimensions kept, and the parts behind them."""
    run = x.sizes[cut].int // parts
    chunked = replace(
        x,
        sizes=(*x.sizes[:cut], expr(run), *x.sizes[cut + 1 :], expr(parts)),
        strides=(*x.strides, x.strides[cut] * run),
    )
    space, body = Space(), Body()
    point = split_point(space, chunked, dims)
    kept = kept_point(point, dims)
    partial = b.scratch([size for d, size in enumerate(chunked.sizes) if d not in dims], dtype)
    body.store(partial, kept, _total(space, body, chunked, point, kept[:-1], kind, dtype, prepare))
    b.emit(space, body)
    return partial, [len(partial.sizes) - 1]


def reduction(
    b: Builder, node: fx.Node, x: View, dim: int | Sequence[int] | None, kind: str, dtype: str,
    prepare: Callable[[Body, Val], Val] | None = None, finish: Finish | None = None,
) -> View:  # fmt: skip
    out = b.allocate(node.meta["val"])
    dims = all_dims(x, dim)

    def use(body: Body, kept: Point, total: Val) -> None:
        body.store(out, place_in(out, kept, dims), total if finish is None else finish(body, total))

    ready: Prepare | None = None
    if prepare is not None:
        ready = lambda body, element, kept: prepare(body, element)  # noqa: E731
    fold(b, x, dims, kind, dtype, ready, use)
    return out


# -- sums and products ------------------------------------------------------------------------
def count_over(x: View, dim: int | Sequence[int] | None) -> Expr:
    return numel([x.sizes[d] for d in all_dims(x, dim)])


@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum_(
    b: Builder, node: fx.Node, x: View, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    wide = computed(node.meta["val"])
    return NotImplemented if wide == "b1" else reduction(b, node, x, dim, "sum", wide, _converted(node, x))


def _converted(node: fx.Node, x: View) -> Callable[[Body, Val], Val] | None:
    """Elements are of the type asked for before they are added up or multiplied: those of halves are rounded to it."""
    result = dtype_of(node.meta["val"])
    if compute_type(result) == result or x.dtype == result:
        return None
    return lambda body, element: body.cast(body.cast(element, result), compute_type(result))


@lowers(aten.dot.default, aten.vdot.default)
def dot(b: Builder, node: fx.Node, x: View, y: View) -> Any:
    dtype = computed(node.meta["val"])
    products = b.scratch(x.sizes, dtype)
    b.pointwise(
        node.meta["val"],
        lambda body, point: operand(body, point, x, dtype) * operand(body, point, y, dtype),
        out=products,
    )
    return reduction(b, node, products, None, "sum", dtype)


@lowers(aten.nansum.default)
def nansum(
    b: Builder, node: fx.Node, x: View, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    wide = computed(node.meta["val"])
    if not is_float(x.dtype):
        return sum_(b, node, x, dim)
    converted = _converted(node, x)

    def without_nan(body: Body, element: Val) -> Val:
        value = body.cast(element, wide) if converted is None else converted(body, element)
        return body.where(body.apply("isnan", body.cast(element, compute_type(x.dtype))), 0, value)

    return reduction(b, node, x, dim, "sum", wide, without_nan)


@lowers(aten.prod.default)
def prod(b: Builder, node: fx.Node, x: View, dtype: Any = None) -> Any:
    wide = computed(node.meta["val"])
    return NotImplemented if wide == "b1" else reduction(b, node, x, None, "prod", wide, _converted(node, x))


@lowers(aten.prod.dim_int)
def prod_dim(b: Builder, node: fx.Node, x: View, dim: int, keepdim: bool = False, dtype: Any = None) -> Any:
    wide = computed(node.meta["val"])
    return NotImplemented if wide == "b1" else reduction(b, node, x, dim, "prod", wide, _converted(node, x))


@lowers(aten.mean.default, aten.mean.dim)
def mean(
    b: Builder, node: fx.Node, x: View, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    wide, count = computed(node.meta["val"]), count_over(x, dim)
    if not is_float(wide):
        return NotImplemented
    return reduction(b, node, x, dim, "sum", wide, finish=lambda body, total: total / count)


@lowers(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(b: Builder, node: fx.Node, x: View, dim: int | Sequence[int] | None = None) -> View:
    return reduction(b, node, x, dim, "sum", "i64", lambda body, v: body.cast(body.cast(v, "b1"), "i64"))


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def any_(b: Builder, node: fx.Node, x: View, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
    return _truth(b, node, x, dim, "any")


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def all_(b: Builder, node: fx.Node, x: View, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
    return _truth(b, node, x, dim, "all")


def _truth(b: Builder, node: fx.Node, x: View, dim: int | Sequence[int] | None, kind: str) -> Any:
    if isinstance(dim, (list, tuple)) and not dim and x.sizes:
        return NotImplemented  # here, unlike elsewhere, no dimension means none
    return reduction(b, node, x, dim, kind, "b1")


# -- extremes ---------------------------------------------------------------------------------
def _extreme_kind(x: View, kind: str) -> str:
    return kind if x.dtype != "b1" else {"max": "any", "min": "all"}[kind]


@lowers(aten.amax.default, aten.max.default)
def amax(b: Builder, node: fx.Node, x: View, dim: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    return _extreme(b, node, x, dim, "max")


@lowers(aten.amin.default, aten.min.default)
def amin(b: Builder, node: fx.Node, x: View, dim: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    return _extreme(b, node, x, dim, "min")


def _extreme(b: Builder, node: fx.Node, x: View, dim: Sequence[int] | None, kind: str) -> Any:
    if count_over(x, dim) is ZERO:
        return NotImplemented  # an error, unless the result is empty too
    return reduction(b, node, x, dim, _extreme_kind(x, kind), compute_type(x.dtype))


@lowers(aten.aminmax.default)
def aminmax(b: Builder, node: fx.Node, x: View, dim: int | None = None, keepdim: bool = False) -> Any:
    dims = all_dims(x, dim)
    if count_over(x, dim) is ZERO:
        return NotImplemented
    low, high = (b.allocate(fake) for fake in node.meta["val"])
    space, body = Space(), Body()
    point = split_point(space, x, dims)
    kept = kept_point(point, dims)
    value = body.cast(body.load(x, point), compute_type(x.dtype))
    for out, kind in ((low, "min"), (high, "max")):
        body.store(out, place_in(out, kept, dims), over(space, body, _extreme_kind(x, kind), value))
    b.emit(space, body)
    return low, high


@lowers(aten.max.dim)
def max_dim(b: Builder, node: fx.Node, x: View, dim: int, keepdim: bool = False) -> Any:
    return _extreme_and_place(b, node, x, dim, "max", node.meta["val"])


@lowers(aten.min.dim)
def min_dim(b: Builder, node: fx.Node, x: View, dim: int, keepdim: bool = False) -> Any:
    return _extreme_and_place(b, node, x, dim, "min", node.meta["val"])


@lowers(aten.argmax.default)
def argmax(b: Builder, node: fx.Node, x: View, dim: int | None = None, keepdim: bool = False) -> Any:
    found = _extreme_and_place(b, node, x, dim, "max", (None, node.meta["val"]))
    return found if found is NotImplemented else found[1]


@lowers(aten.argmin.default)
def argmin(b: Builder, node: fx.Node, x: View, dim: int | None = None, keepdim: bool = False) -> Any:
    found = _extreme_and_place(b, node, x, dim, "min", (None, node.meta["val"]))
    return found if found is NotImplemented else found[1]


def _extreme_and_place(b: Builder, node: fx.Node, x: View, dim: int | None, kind: str, fakes: Sequence[Any]) -> Any:
    """The extreme value and its (flat) position; either is left out where its fake tensor is None."""
    if count_over(x, dim) is ZERO:
        return NotImplemented
    dims = all_dims(x, dim)
    values, places = (None if fake is None else b.allocate(fake) for fake in fakes)
    space, body = Space(), Body()
    # A flat position counts in the order of the dimensions, whatever their order in memory.
    point = split_point(space, x, dims, memory_order=False)
    kept = kept_point(point, dims)
    value = body.cast(body.load(x, point), compute_type(x.dtype))
    if values is not None:
        extreme = over(space, body, _extreme_kind(x, kind), value)
        body.store(values, place_in(values, kept, dims), extreme)
    if places is not None:
        body.store(places, place_in(places, kept, dims), over(space, body, "arg" + kind, value))
    b.emit(space, body)
    return values, places
