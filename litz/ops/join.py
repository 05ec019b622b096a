"""Tensors put together: every part is copied into its window of the result, so nothing is masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.loop.expr import ZERO, expr
from litz.loop.ir import View
from litz.ops.builder import Builder, operand
from litz.ops.registry import lowers

aten = torch.ops.aten


@lowers(aten.cat.default)
def cat(b: Builder, node: fx.Node, parts: Sequence[View], dim: int = 0) -> Any:
    fake = node.meta["val"]
    out = b.allocate(fake)
    dim %= len(out.sizes)
    start = ZERO
    for part in parts:
        if len(part.sizes) != len(out.sizes):
            continue  # eager lets an empty 1-d tensor join anything
        window = replace(out, sizes=part.sizes, offset=out.offset + start * out.strides[dim])
        copy_into(b, fake, part, window)
        start = start + part.sizes[dim]
    return out


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
