"""Random numbers drawn in kernels, the same ones as eager's kernels for GPUs draw.

In: a random operator's fake tensors. Out: how eager deals out its numbers to their elements (`Dealing`), or why that
cannot be told; and the lowerings of Litz's own operators (`loop/draw.py`).

What eager does, in torch 2.11 to 2.13: dropout takes as many elements at a time as 16 bytes hold, fewer where the
tensor begins elsewhere than at a multiple of that or where elements would be left over, in the order of memory; and a
tensor with gaps element by element, in the order of rows. Coins are drawn element by element in the order of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx

from litz.loop.draw import DRAW, RESERVE, dealt
from litz.loop.expr import ONE, Value, expr
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Val
from litz.ops.library import call
from litz.ops.registry import lowers

_ACCESS_BYTES = 16
_NUMBERS = 1 << 32  # that a draw has


class Dealing(NamedTuple):
    width: int  # elements that a thread of eager's takes at a time
    order: tuple[Any, ...]  # how far apart eager counts neighbours along each dimension


def dropout_dealing(x: torch.Tensor, mask: torch.Tensor) -> Dealing | str:
    """Of `native_dropout`: `x` is its argument, and `mask` lies as its results do."""
    rows = _contiguous(x.shape)
    if not _is_dense(x):
        if any(isinstance(n, torch.SymInt) for n in (*x.shape, *x.stride())):
            return "whether it has gaps is known only at run time, and eager draws in another order then"
        return Dealing(1, rows)
    width: int | None = _ACCESS_BYTES // x.element_size()
    for number, what in ((x.storage_offset(), "where it begins"), (x.numel(), "how many elements it has")):
        width = _fitting(number, width)
        if width is None:
            return f"{what} is known only at run time, and eager's vectors depend on it"
    assert width is not None
    return Dealing(width, rows if width == 1 else tuple(mask.stride()))


def _contiguous(sizes: Sequence[Any]) -> tuple[Any, ...]:
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(sizes):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def _is_dense(x: torch.Tensor) -> bool:
    """Whether its elements fill memory, in any order of dimensions, as far as the forms of its sizes tell."""
    placed = [(Builder.size_expr(n), Builder.size_expr(step)) for n, step in zip(x.shape, x.stride(), strict=True)]
    placed = [(n, step) for n, step in placed if n is not ONE]
    expected = ONE
    for n, step in sorted(placed, key=lambda one: one[1].hint):
        if step is not expected:
            return False
        expected = expected * n
    return True


def _fitting(number: Any, width: int | None) -> int | None:
    """The largest power of two, up to `width`, that divides the number; None if that cannot be told."""
    terms = Builder.size_expr(number).terms
    if width is None or all(factor % width == 0 for _, factor in terms):
        return width
    return None if any(monomial for monomial, _ in terms) else number & -number


def kept_below(probability: float, dtype: torch.dtype) -> int:
    """How many of the numbers of 32 bits eager takes for less than that: as a float above 0 and up to 1, rounded twice,
    and compared in the type that the tensor is computed in."""
    bound = np.float64(probability) if dtype is torch.float64 else np.float32(probability)
    low, high = 0, _NUMBERS
    while low < high:
        middle = (low + high) // 2
        drawn = np.float32(middle) * np.float32(2.0**-32) + np.float32(2.0**-33)
        low, high = (middle + 1, high) if drawn < bound else (low, middle)
    return low


def kept_scale(probability: float, dtype: torch.dtype) -> float:
    """By what dropout multiplies what it keeps, computed as eager's kernel does."""
    if dtype is torch.float64:
        return 1.0 / probability
    return float(np.float32(1.0 / float(np.float32(probability))))


@lowers(DRAW)
def draw(
    b: Builder, node: fx.Node, cell: View, first: Any, size: Sequence[Any], stride: Sequence[Any],
    order: Sequence[Any], width: int, threads: int,
) -> View:  # fmt: skip
    def formula(body: Body, point: Point) -> Val:
        index = expr(0)
        for i, step in zip(point, order, strict=True):
            index = index + i * Builder.size_expr(step)
        block, place = dealt(index, width, threads)
        seed, begin = (body.load(cell, (expr(i),)) for i in range(2))
        counter = body.index(expr(Value(begin.name)) + Builder.size_expr(first) + block)
        return body.apply("philox", seed, counter, body.index(place))

    return b.pointwise(node.meta["val"], formula)


lowers(RESERVE)(call)

__all__ = ["Dealing", "dropout_dealing", "kept_below", "kept_scale"]
