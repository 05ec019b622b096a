"""Batch norm keeps a channel's mean as well as eager does: what cancels behind it (the gradient of a bias ahead of it,
the mean of its output) is rounding alone, and no more of it than eager's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

CHANNELS, IMAGE = 48, 20


def _spread(error: torch.Tensor) -> float:
    return float(error.norm())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_mean_of_a_channel_and_the_gradient_ahead_of_it_are_as_near_zero_as_eagers(layout: torch.memory_format):
    torch.manual_seed(0)
    ahead = nn.Parameter(torch.zeros(CHANNELS, 1, 1))
    x = torch.randn(2, CHANNELS, IMAGE, IMAGE).to(memory_format=layout)
    weight = torch.randn(x.shape)

    def step(norm: nn.Module, bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor):
        y = norm(x + bias)
        return y.mean((0, 2, 3)), (y * weight).sum()

    def run(function) -> tuple[float, float]:
        norm = nn.BatchNorm2d(CHANNELS)
        mean, loss = function(norm, ahead, x, weight)
        (slope,) = torch.autograd.grad(loss, ahead)
        return _spread(mean.detach().double()), _spread(slope.double())  # both are zero in exact arithmetic

    eager, compiled = run(step), run(torch.compile(step, backend="litz"))
    for ours, theirs in zip(compiled, eager, strict=True):
        assert ours <= 2 * theirs
