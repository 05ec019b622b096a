"""Copies that lie as what they are copies of: code is compiled for strides, and reads memory by them."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copied(value: torch.Tensor) -> torch.Tensor:
    """In new memory, in the same way: gaps and repeated elements are kept, which `clone` would not do."""
    extent = 0
    if value.numel():
        extent = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    whole = value.as_strided((extent,), (1,), value.storage_offset()).clone()
    return whole.as_strided(value.shape, value.stride())


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """In as few steps of the device as there may be."""
    if len(targets) == 1:
        targets[0].copy_(sources[0], non_blocking=True)
    elif targets:
        torch._foreach_copy_(targets, sources, non_blocking=True)


def each_once(value: torch.Tensor) -> torch.Tensor | None:
    """A view of it that has each element in memory once, or None if no such is known."""
    for dim, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if stride == 0 and size > 1:
            value = value.narrow(dim, 0, 1)
    reach = 0  # of the dimensions so far, the last element
    for stride, size in sorted((stride, size) for size, stride in zip(value.shape, value.stride()) if size > 1):
        if stride <= reach:
            return None
        reach += (size - 1) * stride
    return value


__all__ = ["copied", "copy_all", "each_once"]
