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
from litz.ops.builder import Body, Builder, Val
from litz.ops.registry import lowers_later

LIBRARY = torch.library.Library("litz", "FRAGMENT")  # it unregisters when collected
LIBRARY.define("int8_mm(Tensor x, Tensor y) -> Tensor")
LIBRARY.define("int8_weight_mm(Tensor x, Tensor y) -> Tensor")
# `zero_point`, or `zero` where there is none, stands beyond the edges.
LIBRARY.define(
    "int8_convolution(Tensor x, Tensor weight, Tensor? zero_point, int zero, int[] stride, int[] padding, "
    "int[] dilation) -> Tensor"
)


def _mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.mm(x.to(torch.int32), y.to(torch.int32))


def _weight_mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.mm(x.to(torch.float32), y.to(torch.float32))


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
    """Lies as the convolution of float32 does that it stands for."""
    floats = (x.to(torch.float32), weight.to(torch.float32), None)
    found = torch.ops.aten.convolution(*floats, stride, padding, dilation, False, [0] * len(padding), 1)
    return found.to(torch.int32)


LIBRARY.impl("int8_mm", _mm, "CompositeExplicitAutograd")
LIBRARY.impl("int8_weight_mm", _weight_mm, "CompositeExplicitAutograd")
LIBRARY.impl("int8_convolution", _convolution, "CompositeExplicitAutograd")
torch.library.register_fake("litz::int8_convolution", _convolution_fake, lib=LIBRARY)
INT8_MM = torch.ops.litz.int8_mm.default
INT8_WEIGHT_MM = torch.ops.litz.int8_weight_mm.default
INT8_CONVOLUTION = torch.ops.litz.int8_convolution.default
OPERATORS = frozenset((INT8_MM, INT8_WEIGHT_MM, INT8_CONVOLUTION))  # pure, and reading by index alone


@lowers_later("litz::int8_mm")
@lowers_later("litz::int8_weight_mm")
def lower_mm(b: Builder, node: fx.Node, x: View, y: View) -> Any:
    return matmul.product(b, node.meta["val"], x, y)


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


__all__ = ["INT8_CONVOLUTION", "INT8_MM", "INT8_WEIGHT_MM", "OPERATORS"]
