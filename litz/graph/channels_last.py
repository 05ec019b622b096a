"""Convolutions run channels last: the image is laid out so at the first one, and its successors inherit it.

In: nothing; out: a decomposition of `aten.convolution` for the tracer. It lays the input out channels
last where that makes whole vectors of channels contiguous, then leaves the operator as it is. Strides
spread from there by eager's own rules; outputs are given eager's strides back at the end of the trace.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.target import Target

aten = torch.ops.aten


def channels_last_convolution(target: Target) -> dict[Any, Any]:
    lanes = target.lanes(4)

    def convolution(x: torch.Tensor, weight: torch.Tensor, bias: Any, stride: Any, padding: Any, *rest: Any) -> Any:
        if not _wanted(x, weight, padding, lanes, *rest) or x.is_contiguous(memory_format=torch.channels_last):
            return NotImplemented
        laid_out = aten.clone.default(x, memory_format=torch.channels_last)
        return aten.convolution.default(laid_out, weight, bias, stride, padding, *rest)

    return {aten.convolution.default: convolution}


def _wanted(
    x: torch.Tensor,
    weight: torch.Tensor,
    padding: Any,
    lanes: int,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> bool:
    if transposed or x.dim() != 4 or x.dtype != torch.float32 or x.device.type != "cpu":
        return False
    # A window whose rows are whole vectors already (an image cut into patches) is read in place.
    if groups == 1 and weight.shape[-1] % lanes == 0 and not any(padding):
        return False
    return weight.shape[0] % lanes == 0
