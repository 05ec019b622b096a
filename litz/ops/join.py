"""Tensors put together: every part is copied into its window of the result, so nothing is masked; or, where to start
kernels is dear, one kernel asks of each element which part it is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.loop.cost import is_formula
from litz.loop.expr import ZERO, expr
from litz.loop.ir import Kernel, View
from litz.ops.builder import Body, Builder, Point, Val, dtype_of, operand
from litz.ops.registry import lowers
from litz.ops.window import inside

aten = torch.ops.aten

_MOST_MASKED = 4  # parts: every element asks for each of them


@lowers(aten.cat.default)
def cat(b: Builder, node: fx.Node, parts: Sequence[View], dim: int = 0) -> Any:
    fake = node.meta["val"]
    parts = [part for part in parts if len(part.sizes) == fake.dim()]  # eager lets an empty 1-d tensor join anything
    dim %= fake.dim()
    if b.ctx.target.joins_by_masks and 1 < len(parts) <= _MOST_MASKED and _lie_in_memory(b, parts):
        return b.pointwise(fake, lambda body, point: _looked_up(body, point, parts, dim, dtype_of(fake)))
    out = b.allocate(fake)
    start = ZERO
    for part in parts:
        window = replace(out, sizes=part.sizes, offset=out.offset + start * out.strides[dim])
        copy_into(b, fake, part, window)
        start = start + part.sizes[dim]
    return out


def _lie_in_memory(b: Builder, parts: Sequence[View]) -> bool:
    """Whether the parts are there before any kernel runs, but for a formula that can be computed where they are read.
    What a kernel makes had best be stored in its window at once."""
    makers = {name: step for step in b.steps if isinstance(step, Kernel) for name in step.writes}

    def is_near(part: View) -> bool:
        maker = makers.get(part.buffer)
        return maker is None or (is_formula(maker) and not any(name in makers for name in maker.reads))

    return all(map(is_near, parts))


def _looked_up(body: Body, point: Point, parts: Sequence[View], dim: int, dtype: str) -> Val:
    """The element at the point, from the part that it is of."""
    start, found = ZERO, None
    for part in parts:
        place = (*point[:dim], point[dim] - start, *point[dim + 1 :])
        start = start + part.sizes[dim]
        mask = inside(body, place, part.sizes)
        value = body.cast(body.load(part, place, mask), dtype)
        found = value if found is None or mask is None else body.where(mask, value, found)
    assert found is not None
    return found


def copy_into(b: Builder, fake: torch.Tensor, part: View, window: View) -> None:
    b.pointwise(fake, lambda body, point: operand(body, point, part, part.dtype), out=window)


@lowers(aten.stack.default)
def stack(b: Builder, node: fx.Node, parts: Sequence[View], dim: int = 0) -> Any:
    fake = node.meta["val"]
    out = b.allocate(fake)
    dim %= len(out.sizes)
    for i, part in enumerate(parts):
        strides = (*out.strides[:dim], *out.strides[dim + 1 :])
        window = View(out.buffer, out.dtype, part.sizes, strides, out.offset + expr(i) * out.strides[dim])
        copy_into(b, fake, part, window)
    return out
