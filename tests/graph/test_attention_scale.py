"""Scores of a negative scale, or of none, under a mask: what is hidden stays hidden."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

PAST = torch.ones(64, 64, dtype=torch.bool).tril()


def written_out(scale: float) -> Callable[..., torch.Tensor]:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~PAST, float("-inf"))
        return scores.softmax(-1) @ v

    return attention


def given_to_the_operator(scale: float) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=PAST, scale=scale)


@pytest.mark.parametrize("scale", [-0.5, 0.0, 0.5])
@pytest.mark.parametrize("how", [written_out, given_to_the_operator])
@pytest.mark.parametrize("learns", [False, True])
def test_what_is_hidden_stays_so(
    scale: float, how: Callable[[float], Callable[..., torch.Tensor]], learns: bool
) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = [torch.randn(2, 2, 64, 16, requires_grad=learns) for _ in range(3)]
    found = []
    for function in (how(scale), torch.compile(how(scale), backend="litz")):
        result = function(*inputs)
        gradients = torch.autograd.grad(result.square().sum(), inputs) if learns else ()
        found.append((result.detach(), *gradients))
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
