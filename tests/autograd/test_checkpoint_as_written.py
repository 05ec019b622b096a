"""A region under `torch.utils.checkpoint` keeps little for the backward wherever it runs: compiled, in pieces, in
eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

SIZE = 128
ONE = SIZE * SIZE * 4  # bytes


def region(y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        y = (y.sin() @ w).exp()
    return y


def whole(a: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (checkpoint(region, a, w, use_reentrant=False) * 2).sum()


def left(a: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return whole(a, w, s) + torch.as_strided(s, (2,), (1,), 3).sum()


def cut(a: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    z = checkpoint(region, a, w, use_reentrant=False)
    return torch.cond(s.sum() > 0, lambda z: z * 2, lambda z: z * 3, (z,)).sum()


def kept_and_gradients(function: Callable[..., Any]) -> tuple[int, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(SIZE, SIZE, requires_grad=True, generator=generator)
    w, s = torch.randn(SIZE, SIZE, generator=generator) * 0.01, torch.zeros(8)
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    function(a, w, s)  # compiled by now
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function(a, w, s)
    return sum(seen.values()), list(torch.autograd.grad(result, [a]))


@pytest.mark.parametrize("program", [whole, left, cut])
@pytest.mark.filterwarnings("ignore:.*left to eager")
def test_little_is_kept(program: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    _, want = kept_and_gradients(program)
    kept, got = kept_and_gradients(torch.compile(program, backend="litz"))
    assert kept <= 3 * ONE + 64
    for mine, eager in zip(got, want, strict=True):
        torch.testing.assert_close(mine, eager)
