"""Products and convolutions of whole numbers of 8 bits, and products with weights of 8 bits: operators of Litz's own.

In: quantised factors, without their scales. Out: the sums, exact ones in 32 bits; where only the weights are quantised,
float32. `graph/rules/quantised.py` and `int8_weights.py` write them where a program multiplies what it has dequantised,
with scales, zero points and all that follows as operators around them, which fuse. Beyond the edges of an image stands
its zero point, which is what a zero was quantised to. Weights beside floats are read as they are, a half or a fourth of
the bytes, and become floats in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from litz.loop.expr import ZERO
from litz.loop.ir import View
from litz.ops import conv, matmul
from litz.ops.builder import Body, Builder, Space, Val
from litz.ops.norm import over
from litz.ops.registry import lowers_later

LIBRARY = torch.library.Library("litz", "FRAGMENT")  # it unregisters when collected
LIBRARY.define("int8_mm(Tensor x, Tensor y) -> Tensor")
LIBRARY.define("int8_weight_mm(Tensor x, Tensor y) -> Tensor")
# The weight's rows are columns of the product; a scale and a zero point for each group of neighbours in a row.
LIBRARY.define("int8_group_mm(Tensor x, Tensor weight, Tensor scales, Tensor? zeros) -> Tensor")
# `zero_point`, or `zero` where there is none, stands beyond the edges.
LIBRARY.define(
    "int8_convolution(Tensor x, Tensor weight, Tensor? zero_point, int zero, int[] stride, int[] padding, "
    "int[] dilation) -> Tensor"
)


def _mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.mm(x.to(torch.int32), y.to(torch.int32))


def _weight_mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.mm(x.to(torch.float32), y.to(torch.float32))


def _group_mm(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> torch.Tensor:
    groups = weight.to(torch.float32).reshape(*scales.shape, -1)
    moved = groups if zeros is None else groups - zeros.to(torch.float32)[..., None]
    wide = moved * scales.to(torch.float32)[..., None]
    return torch.mm(x.to(torch.float32), wide.reshape(weight.shape).t())


def _convolution(
    x: torch.Tensor, weight: torch.Tensor, zero_point: torch.Tensor | None, zero: int, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """In float64, which holds all the sums."""
    beyond = zero if zero_point is None else int(zero_point)
    edges = [edge for size in reversed(padding) for edge in (size, size)]
    image = torch.nn.functional.pad(x.double(), edges, value=beyond)
    sums = torch.ops.aten.convolution(
        image, weight.double(), None, stride, [0] * len(padding), dilation, False, [0] * len(padding), 1
    )
    return sums.to(torch.int32)


def _convolution_fake(
    x: torch.Tensor, weight: torch.Tensor, zero_point: torch.Tensor | None, zero: int, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """Images lie as they came, which is what eager does where the weights lie as they usually do."""
    reach = [d * (size - 1) + 1 for d, size in zip(dilation, weight.shape[2:], strict=True)]
    places = [(size + 2 * p - r) // s + 1 for size, p, r, s in zip(x.shape[2:], padding, reach, stride, strict=True)]
    is_last = x.dim() == 4 and x.stride(1) == 1 and x.shape[1] != 1
    layout = torch.channels_last if is_last else torch.contiguous_format
    return x.new_empty((x.shape[0], weight.shape[0], *places), dtype=torch.int32).contiguous(memory_format=layout)


LIBRARY.impl("int8_mm", _mm, "CompositeExplicitAutograd")
LIBRARY.impl("int8_weight_mm", _weight_mm, "CompositeExplicitAutograd")
LIBRARY.impl("int8_group_mm", _group_mm, "CompositeExplicitAutograd")
LIBRARY.impl("int8_convolution", _convolution, "CompositeExplicitAutograd")
torch.library.register_fake("litz::int8_convolution", _convolution_fake, lib=LIBRARY)
INT8_MM = torch.ops.litz.int8_mm.default
INT8_WEIGHT_MM = torch.ops.litz.int8_weight_mm.default
INT8_GROUP_MM = torch.ops.litz.int8_group_mm.default
INT8_CONVOLUTION = torch.ops.litz.int8_convolution.default
OPERATORS = frozenset((INT8_MM, INT8_WEIGHT_MM, INT8_GROUP_MM, INT8_CONVOLUTION))  # pure, and reading by index alone


@lowers_later("litz::int8_mm")
@lowers_later("litz::int8_weight_mm")
def lower_mm(b: Builder, node: fx.Node, x: View, y: View) -> Any:
    return matmul.product(b, node.meta["val"], x, y)


@lowers_later("litz::int8_group_mm")
def lower_group_mm(b: Builder, node: fx.Node, x: View, weight: View, scales: View, zeros: View | None) -> Any:
    """One sum over groups and their members, in which the weight's numbers become floats as they are read."""
    out = b.allocate(node.meta["val"])
    space, body = Space(), Body()
    m, n = space.over(out.sizes, out.strides)
    count = scales.sizes[1]
    size = weight.sizes[1].int // count.int
    group, member = space.reduce_over(count), space.reduce_over(size)
    k = group * size + member
    factor = body.cast(body.load(weight, (n, k)), "f32")
    if zeros is not None:
        factor = factor - body.cast(body.load(zeros, (n, group)), "f32")
    factor = factor * body.cast(body.load(scales, (n, group)), "f32")
    body.store(out, (m, n), over(space, body, "sum", body.cast(body.load(x, (m, k)), "f32") * factor))
    b.emit(space, body)
    return out


@lowers_later("litz::int8_convolution")
def lower_convolution(
    b: Builder, node: fx.Node, x: View, weight: View, zero_point: View | None, zero: int, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
) -> Any:  # fmt: skip
    window = conv.window_of(weight, stride, padding, dilation)
    beyond = partial(_beyond, x.dtype, zero_point, zero) if any(padding) else None
    return conv.of_bytes(b, node, x, weight, window, beyond)


def _beyond(dtype: str, zero_point: View | None, zero: int, body: Body) -> Val:
    if zero_point is None:
        return body.const(zero, dtype)
    return body.cast(body.load(zero_point, (ZERO,) * len(zero_point.sizes)), dtype)


__all__ = ["INT8_CONVOLUTION", "INT8_GROUP_MM", "INT8_MM", "INT8_WEIGHT_MM", "OPERATORS"]
