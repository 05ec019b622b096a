"""Statements that read or collect at computed places."""

from __future__ import annotations

import torch

from tests.fuzz.build import EXACT_SCALARS, Build
from tests.fuzz.eager import Refused


def places(b: Build, x: str, dim: int, flat: bool) -> tuple[str, tuple[str, ...]]:
    """An index into a dimension, as code, and the values it uses: numbers in the text, or computed."""
    size = b[x].shape[dim]
    if not size:
        return "torch.tensor([], dtype=torch.int64)", ()  # of no places, none
    if b.maybe():
        count = b.number(0, 5)
        size = 2 if b.symbolic else size
        return f"torch.tensor({[b.number(0, size - 1) for _ in range(count)]}, dtype=torch.int64)", ()
    index = b.pick(lambda t: t.dtype is torch.int64 and (t.dim() == 1 or not flat))
    extent = b.extent(x, dim)
    low = "" if flat or b.maybe() else f" - {extent}"
    # Of an index in another order torch's fake tensors do not know how eager lays the result out.
    straight = "" if b[index].is_contiguous() else ".contiguous()"
    return f"({index} % {extent}{low}){straight}", (index,)


def distinct(b: Build, size: int) -> str:
    """An index that names no place twice: of two writes to one place, either may win."""
    order = list(range(size))
    count = b.number(0, min(size, 4))
    taken = [order.pop(b.number(0, len(order) - 1)) for _ in range(count)]
    return f"torch.tensor({taken}, dtype=torch.int64)"


def read(b: Build) -> None:
    x = b.pick(lambda t: t.dim() > 0)
    dim = b.dim(x)
    size = b[x].shape[dim]
    kind = b.number(0, 4)
    if kind == 0:
        code, uses = places(b, x, dim, flat=True)
        b.define(f"{x}.index_select({dim}, {code})", x, *uses)
    elif kind <= 2:
        code, uses = places(b, x, 0, flat=False)
        b.define(f"{x}[{code}]", x, *uses)
    elif kind == 3 and b[x].dim() > 1:
        code, uses = places(b, x, 1, flat=False)
        b.define(f"{x}[:, {code}]", x, *uses)
    else:
        rank = b[x].dim()
        index = b.pick(lambda t: t.dtype is torch.int64 and t.dim() == rank)
        if not size:
            raise Refused("no places")
        if b.maybe():
            b.define(f"torch.take_along_dim({x}, {index} % {b.extent(x, dim)}, {dim})", x, index)
        else:
            b.define(f"torch.gather({x}, {dim}, {index} % {b.extent(x, dim)})", x, index)


def add(b: Build) -> None:
    """Sums at places, where one place may be named many times."""
    x = b.pick(lambda t: t.dim() > 0)
    dim, rank, dtype = b.dim(x), b[x].dim(), b[x].dtype
    size = b[x].shape[dim]
    if b.maybe():
        index = b.pick(lambda t: t.dtype is torch.int64 and t.dim() == rank)
        if not size:
            raise Refused("no places")
        y = b.pick(lambda t: t.dtype == dtype and t.dim() == rank)
        b.define(f"torch.scatter_add({x}, {dim}, {index} % {b.extent(x, dim)}, {y})", x, index, y, rounds=True)
    else:
        code, uses = places(b, x, dim, flat=True)
        y = b.pick(lambda t: t.dtype == dtype and t.dim() == rank)
        b.define(
            f"torch.index_add({x}, {dim}, {code}, {y}[{_cut(dim, rank)}:{code}.numel()])", x, y, *uses, rounds=True
        )


def _cut(dim: int, rank: int) -> str:
    return ":, " * (dim % rank)


def masked(b: Build) -> None:
    x = b.pick()
    if b.maybe(3) and b[x].dim() and b[x].shape[0]:
        size, dtype = b[x].shape[0], b[x].dtype
        y = b.pick(lambda t: t.dtype == dtype)
        index, accumulate = distinct(b, size), False
        uses: tuple[str, ...] = ()
        if b.maybe():
            (index, uses), accumulate = places(b, x, 0, flat=True), True
        code = f"torch.index_put({x}, ({index},), {y}, accumulate={accumulate})"
        b.define(code, x, y, *uses, rounds=accumulate)
        return
    mask = b.like(x, lambda t: t.dtype is torch.bool)
    scalar = b.one(EXACT_SCALARS if b[x].is_floating_point() else (0, 1, 3))
    b.define(f"{x}.masked_fill({mask}, {scalar})", x, mask)


__all__ = ["add", "distinct", "masked", "places", "read"]
