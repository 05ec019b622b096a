"""A product that is computed with more columns than are wanted, some rows at a time.

In: factors whose columns were padded to what a library takes well. Out: the product without what was added, laid out as
the user expects it. Only as many rows as are computed at a time lie in memory twice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from litz.loop.expr import expr
from litz.loop.ir import Call, View
from litz.ops.builder import Builder
from litz.ops.join import copy_into
from litz.ops.registry import lowers_later


@lru_cache(maxsize=1)
def cut_product() -> Any:
    """`cut_product(bias, a, b, columns, rows)`: the first `columns` of `a @ b + bias`, `rows` of it at a time."""
    library = torch.library.Library("litz", "FRAGMENT")
    library.define("cut_product(Tensor? bias, Tensor a, Tensor b, int columns, int rows) -> Tensor")
    library.impl("cut_product", _meant, "CompositeExplicitAutograd")
    cut_product.library = library  # type: ignore[attr-defined]  # it unregisters when collected
    return torch.ops.litz.cut_product.default


def _meant(bias: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, columns: int, rows: int) -> torch.Tensor:
    whole = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    return whole[:, :columns].clone(memory_format=torch.contiguous_format)


@lowers_later("litz::cut_product")
def lower_cut_product(b: Builder, node: fx.Node, bias: View | None, x: View, y: View, columns: int, rows: int) -> Any:
    fake = node.meta["val"]
    out = b.allocate(fake)
    total, width = x.sizes[0].int, y.sizes[1]
    for start in range(0, total, rows):
        count = expr(min(rows, total - start))
        some = replace(x, sizes=(count, x.sizes[1]), offset=x.offset + start * x.strides[0])
        made = b.scratch((count, width), x.dtype)
        args = (some, y) if bias is None else (bias, some, y)
        name = "aten::mm" if bias is None else "aten::addmm"
        b.steps.append(Call(f"c{len(b.steps)}", name, args, (), (made,), (), "library", b.origin()))
        part = replace(made, sizes=(count, out.sizes[1]))
        window = replace(out, sizes=part.sizes, offset=out.offset + start * out.strides[0])
        copy_into(b, fake, part, window)
    return out


__all__ = ["cut_product"]
