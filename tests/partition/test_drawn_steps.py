"""Training steps of random stacks, whose layers are gated, normed and added to: with and without a budget the gradients
are those that eager has."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import litz

ROWS, WIDTH = 320, 224  # buffers are large enough for all that is done to have fewer of them
ACTIVATIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (F.silu, F.gelu, torch.tanh, torch.sigmoid, F.relu)


class Layer(torch.nn.Module):
    def __init__(self, draw: random.Random):
        super().__init__()
        self.activation = draw.choice(ACTIVATIONS)
        self.norm = torch.nn.LayerNorm(WIDTH) if draw.random() < 0.7 else torch.nn.Identity()
        self.gate, self.up, self.down = (torch.nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.5) for _ in range(3))
        self.gated, self.residual, self.again = (draw.random() < 0.7 for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        a = self.activation(self.gate(h))
        h = a * self.up(h) if self.gated else a
        h = self.down(h)
        h = h * torch.sigmoid(h) if self.again else h
        return x + h if self.residual else h


def gradients(model: torch.nn.Module, x: torch.Tensor, budget: float | None) -> list[torch.Tensor]:
    torch._dynamo.reset()
    options = {"memory_budget": budget, "matmul": "generate", "verify": True}
    fast = torch.compile(lambda x: model(x).square().mean(), backend="litz", options=options)
    for _ in range(2):  # the second finds memory that was used
        model.zero_grad(set_to_none=True)
        fast(x).backward()
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("seed", range(3))
def test_gradients(seed: int) -> None:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    model = torch.nn.Sequential(*(Layer(draw) for _ in range(2)))
    x = torch.randn(ROWS, WIDTH)
    model(x).square().mean().backward()
    want = [p.grad for p in model.parameters() if p.grad is not None]
    for budget in (None, 0.0)[seed % 2 :]:
        torch.testing.assert_close(gradients(model, x, budget), want, rtol=1e-3, atol=1e-6)
