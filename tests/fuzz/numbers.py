"""The numbers that drawn programs begin with: `numbers(dtype, shape, seed, flavour)`, the same ones every time."""

from __future__ import annotations

import torch

FLAVOURS = ("normal", "ties", "special")


def numbers(dtype: str, shape: tuple[int, ...], seed: int, flavour: str = "normal") -> torch.Tensor:
    """Small numbers. `ties`: multiples of a half, so that many are equal; `special`: infinities, NaN, the ends of the
    integers' range among them."""
    wanted = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(seed)
    if wanted is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
    special = torch.randint(0, 6, shape, generator=generator) if flavour == "special" else None
    if not wanted.is_floating_point:
        low, high = (0, 20) if wanted is torch.uint8 else (-9, 10)
        whole = torch.randint(low, high, shape, generator=generator).to(wanted)
        if special is None:
            return whole
        ends = torch.iinfo(wanted)
        return torch.where(special == 0, ends.max, torch.where(special == 1, ends.min, whole)).to(wanted)
    found = torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5
    if flavour == "ties":
        found = (found * 2).round() / 2
    if special is not None:
        for kind, value in enumerate((float("nan"), float("inf"), -float("inf"), -0.0)):
            found = torch.where((special == 0) & (found.mul(16).floor() % 4 == kind), value, found)
    return found.to(wanted)


__all__ = ["FLAVOURS", "numbers"]
