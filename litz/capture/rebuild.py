"""Rebuild: an output that is memory of another tensor, from that tensor.

In: what `outputs.py` has found of it. Out: the view that eager would have returned.
"""

from __future__ import annotations

import torch

from litz.graph.signature import Output
from litz.loop.formula import Measures


def read_as(dtype: torch.dtype, base: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor as another type."""
    return torch.view_as_real(base) if base.is_complex() and dtype == base.dtype.to_real() else base.view(dtype)


def toggled(tensor: torch.Tensor, conjugated: bool, negated: bool) -> torch.Tensor:
    """A view with those bits set the other way."""
    tensor = tensor.conj() if conjugated else tensor
    return torch._neg_view(tensor) if negated else tensor


def rebuilt(output: Output, base: torch.Tensor, sizes: Measures) -> torch.Tensor:
    """The output, from the tensor whose memory it is."""
    if output.steps:
        for step in output.steps:
            base = step(base, sizes)
        return base
    if output.dtype is not None:
        base = read_as(output.dtype, base)
    if output.window is not None:
        window = output.window.at(sizes) if sizes else output.window
        base = base.as_strided(window.sizes, window.strides, base.storage_offset() + window.offset)
    return toggled(base, output.conjugated, output.negated)


__all__ = ["read_as", "rebuilt", "toggled"]
