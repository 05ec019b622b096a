"""Who is explained is as before: arguments, buffers, gradients, and the random numbers to come."""

from __future__ import annotations

import torch

import litz


def test_arguments_that_are_written_to() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    x = torch.ones(3)
    litz.explain(function, x, path=None)
    assert torch.equal(x, torch.ones(3))


def test_buffers_and_random_numbers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
    before = torch.random.get_rng_state()
    litz.explain(model, torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), path=None)
    assert model[1].num_batches_tracked == 0 and torch.equal(model[1].running_var, torch.ones(3))
    assert model[0].weight.grad is None
    assert torch.equal(torch.random.get_rng_state(), before)
