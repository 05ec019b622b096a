"""Searching sorted rows: as many halvings as the row's length needs, each a load at a place known only then."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type
from litz.loop.expr import Value, expr
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Val, operand
from litz.ops.pointwise import promoted
from litz.ops.registry import lowers

aten = torch.ops.aten


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    b: Builder, node: fx.Node, rows: View, x: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: View | None = None,
) -> Any:  # fmt: skip
    if not rows.sizes or not rows.sizes[-1].is_int:
        return NotImplemented
    dtype, length = compute_type(promoted(node, 0, 1)), rows.sizes[-1].int
    behind = right or side == "right"

    def formula(body: Body, point: Point) -> Val:
        row = point[: len(rows.sizes) - 1]
        wanted = operand(body, point, x, dtype)
        low, high = body.const(0, "i64"), body.const(length, "i64")
        for _ in range(length.bit_length()):
            middle = body.apply("shr", low + high, body.const(1, "i64"))
            within = low < high
            at = (*row, expr(Value(middle.name)))
            if sorter is not None:
                at = (*row, body.position(body.load(sorter, at, within), length, wrap=False))
            found = body.cast(body.load(rows, at, within), dtype)
            # As eager: what compares with nothing is behind everything.
            before = ~(found > wanted if behind else found >= wanted) & within
            low, high = body.where(before, middle + 1, low), body.where(before, high, body.where(within, middle, high))
        return low

    return b.pointwise(node.meta["val"], formula)
