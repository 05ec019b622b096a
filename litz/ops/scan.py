"""Running sums and products: a masked reduction where the dimension is short, else eager's scan."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Space, computed
from litz.ops.norm import over
from litz.ops.registry import lowers

aten = torch.ops.aten

# The reduction does n*n work for n results: fine while a row fits in a few vectors.
_SHORT = 64


@lowers(aten.cumsum.default)
def cumsum(b: Builder, node: fx.Node, x: View, dim: int, dtype: Any = None) -> Any:
    return _running(b, node, x, dim, "sum", 0)


@lowers(aten.cumprod.default)
def cumprod(b: Builder, node: fx.Node, x: View, dim: int, dtype: Any = None) -> Any:
    return _running(b, node, x, dim, "prod", 1)


def _running(b: Builder, node: fx.Node, x: View, dim: int, kind: str, identity: int) -> Any:
    fake = node.meta["val"]
    wide = computed(fake)
    if wide == "b1":
        return NotImplemented
    if not x.sizes:
        return b.pointwise(fake, lambda body, point: body.cast(body.load(x, ()), wide))
    dim %= len(x.sizes)
    if not x.sizes[dim].is_int or not 0 < x.sizes[dim].int <= _SHORT:
        return NotImplemented
    out = b.allocate(fake)
    space, body = Space(), Body()
    point = space.over(out.sizes, out.strides)
    step = space.reduce_over(x.sizes[dim])
    seen = body.index(step) <= body.index(point[dim])
    value = body.cast(body.load(x, (*point[:dim], step, *point[dim + 1 :]), seen), wide)
    if identity:
        value = body.where(seen, value, identity)
    body.store(out, point, over(space, body, kind, value))
    b.emit(space, body)
    return out
