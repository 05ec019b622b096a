"""Programs whose random numbers are drawn in kernels, from `torch.compile` to the backward: on a CPU that is told to
draw as a GPU does, so that what lies around the kernels is tried where there is no GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import litz
from litz.loop.draw import RESERVE
from litz.target import Target
from tests import eager_draws

THREADS = 256


@pytest.fixture(autouse=True)
def draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "drawing_threads", property(lambda self: THREADS))
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="litz", fullgraph=True, **how)


def dropout(x: torch.Tensor, p: float = 0.25) -> torch.Tensor:
    return torch.native_dropout(x, p, True)[0]


def mask(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    cell = RESERVE(1, device=torch.device("cpu")).tolist()
    words = eager_draws.drawn(x.numel(), 4, cell[0], 4 * cell[1], THREADS)
    return torch.tensor([eager_draws.is_kept(word, 1.0 - p) for word in words]).view(x.shape)


def test_forward_and_backward() -> None:
    run = compiled(lambda x, w: dropout(x * w).exp() + x)
    x, w = torch.randn(40, 64, requires_grad=True), torch.randn(64, requires_grad=True)
    for seed in (1, 2, 1):
        expected = mask(x, 0.25, seed)
        torch.manual_seed(seed)
        found = run(x, w)
        assert [name for name, _ in litz.last_report().calls] == ["litz::reserve"]
        wanted = (x * w * expected / 0.75).exp() + x
        torch.testing.assert_close(found, wanted)
        gradients = [torch.autograd.grad(y.square().sum(), (x, w)) for y in (found, wanted)]
        torch.testing.assert_close(*gradients)


def test_each_call_draws_other_numbers() -> None:
    run = compiled(dropout)
    x = torch.ones(4096)
    first, second = run(x), run(x)
    assert not torch.equal(first, second)
    for found in (first, second):
        assert abs(float((found != 0).float().mean()) - 0.75) < 0.05
    torch.manual_seed(3)
    again = [run(x), run(x)]
    torch.manual_seed(3)
    assert torch.equal(run(x), again[0]) and torch.equal(run(x), again[1])


def test_sizes_that_change() -> None:
    """The gradient of a sum is the factor of each element: what was kept in the forward, drawn once more."""
    run = compiled(lambda x: dropout(x) + dropout(x * 2))
    for rows in (7, 100, 3):
        x = torch.randn(rows, 32, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0)
        torch.manual_seed(rows)
        found = run(x)
        assert [name for name, _ in litz.last_report().calls] == ["litz::reserve"]
        found.sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(found, (x.grad * x).detach(), rtol=1e-6, atol=1e-6)
        first = (x.grad * 0.75).round().long() % 2 == 1
        assert torch.equal(first, mask(x, 0.25, rows))


def test_no_elements() -> None:
    x = torch.randn(0, 32, requires_grad=True)
    found = compiled(lambda x: dropout(x) * 2)(x)
    found.sum().backward()
    assert found.shape == x.shape and x.grad is not None


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + dropout(self.second(dropout(nn.functional.gelu(self.first(x))))))


def test_a_backward_that_runs_twice_and_late() -> None:
    """What is kept says where the numbers are: draws in between change nothing."""
    torch.manual_seed(0)
    layer = Layer()
    run = compiled(copy.deepcopy(layer))
    x = torch.randn(16, 32, requires_grad=True)
    y = run(x)
    torch.rand(100)
    run(x)
    (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    run(x)
    (second,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(first, second)


@pytest.mark.usefixtures("folder")
def test_what_is_kept_on_disk_draws_too() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    found = []
    for recalled in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(9)
        y = compiled(lambda x: dropout(x).exp())(x)
        found.append((y, *torch.autograd.grad(y.sum(), x)))
        assert ("from the cache" in litz.last_report().cache) is recalled
    torch.testing.assert_close(*found)
