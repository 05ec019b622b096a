"""Copies that lie as what they are copies of: code is compiled for strides, and reads memory by them."""

from __future__ import annotations

import torch


def copied(value: torch.Tensor) -> torch.Tensor:
    """In new memory, in the same way: gaps and repeated elements are kept, which `clone` would not do."""
    extent = extent_of(value)
    whole = value.as_strided((extent,), (1,), value.storage_offset()).clone()
    return whole.as_strided(value.shape, value.stride())


def extent_of(value: torch.Tensor) -> int:
    """Elements from the first to the last, with what lies between them."""
    if value.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))


__all__ = ["copied", "extent_of"]
