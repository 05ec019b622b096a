"""Statements that write to a tensor in place: an input, an intermediate result, or a view of either."""

from __future__ import annotations

import torch

from tests.fuzz.build import EXACT_SCALARS, Build
from tests.fuzz.draw_indexing import distinct, places
from tests.fuzz.eager import Refused


def pointwise(b: Build) -> None:
    x = b.pick()
    if b.maybe(3):
        name = b.one(("relu_", "neg_", "abs_", "square_", "sigmoid_", "tanh_", "zero_", "exp_"))
        b.write(x, f".{name}()", rounds=name in ("square_", "sigmoid_", "tanh_", "exp_"))
        return
    name = b.one(("add_", "sub_", "mul_", "add_", "div_", "clamp_(-1, 2)", "bitwise_xor_"))
    if name.endswith(")"):
        b.write(x, f".{name}")
    elif b.maybe(3):
        b.write(x, f".{name}({b.scalar(x)})", rounds=True)
    else:
        y = b.like(x)
        b.write(x, f".{name}({y})", y, rounds=True)


def copy(b: Build) -> None:
    x = b.pick()
    to = b[x].dtype
    y = b.like(x)
    lowest = None
    decides: tuple[str, ...] = ()
    if b[y].is_floating_point() and not to.is_floating_point:
        decides = (y,)
        lowest = None if to is torch.bool else 0.0 if to is torch.uint8 else -100.0
    rounds = b[y].dtype != to
    if b.maybe():
        b.write(x, f".copy_({y})", y, rounds=rounds, decides=decides, lowest=lowest)
    elif b.maybe() and b[x].dim():
        size = b[x].shape[0]
        place = b.one((f"{b.number(0, 2 if b.symbolic else size)}:", "..., :1", "::2"))
        b.write(x, f"[{place}] = {y}[{place}]", y, rounds=rounds, decides=decides, lowest=lowest)
    elif b.maybe():
        mask = b.like(x, lambda t: t.dtype is torch.bool)
        b.write(x, f".masked_fill_({mask}, {b.one(EXACT_SCALARS if to.is_floating_point else (0, 1, 3))})", mask)
    else:
        b.write(x, f"[...] = {y}", y, rounds=rounds, decides=decides, lowest=lowest)


def fill(b: Build) -> None:
    x = b.pick()
    scalar = b.one(EXACT_SCALARS if b[x].is_floating_point() else (0, 1, 3))
    if b.maybe() or not b[x].dim():
        b.write(x, f".fill_({scalar})")
    else:
        b.write(x, f"[{b.one(('0', '-1', '1:', '::2', '..., 0', ':, 1:'))}] = {scalar}")


def indexed(b: Build) -> None:
    x = b.pick(lambda t: t.dim() > 0)
    dim, rank, dtype = b.dim(x), b[x].dim(), b[x].dtype
    size = b[x].shape[0]
    kind = b.number(0, 3)
    scalar = b.one(EXACT_SCALARS if dtype.is_floating_point else (0, 1, 3))
    if kind == 0:
        b.write(x, f"[{distinct(b, size)}] = {scalar}")
    elif kind == 1:
        mask = b.like(x, lambda t: t.dtype is torch.bool and t.dim() > 0)
        b.write(x, f"[{mask}] = {scalar}", mask)
    elif kind == 2:
        if not b[x].shape[dim]:
            raise Refused("no places")
        index = b.pick(lambda t: t.dtype is torch.int64 and t.dim() == rank)
        y = b.pick(lambda t: t.dtype == dtype and t.dim() == rank)
        b.write(x, f".scatter_add_({dim}, {index} % {b.extent(x, dim)}, {y})", index, y, rounds=True)
    else:
        code, uses = places(b, x, 0, flat=True)
        y = b.pick(lambda t: t.dtype == dtype)
        b.write(x, f".index_put_(({code},), {y}, accumulate=True)", y, *uses, rounds=True)


__all__ = ["copy", "fill", "indexed", "pointwise"]
