"""Tensors carried from device to device as they lie: with the gaps between elements, or one element seen often."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of memory from the first of a tensor to its last."""
    return 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor itself where it is there already."""
    if tensor.device == device:
        return tensor
    tensor = tensor.detach()
    memory = tensor.as_strided((extent(tensor.shape, tensor.stride()),), (1,))
    return memory.to(device).as_strided(tensor.shape, tensor.stride(), 0)


__all__ = ["extent", "on_device"]
