"""What a training step keeps alive, and for how long: counted by PyTorch's allocator, not by a clock."""

from __future__ import annotations

import torch

from benchmarks.training_step import live_bytes
from tests.autograd.both import Route, both

LAYERS, ROWS, WIDTH = 8, 2048, 512
ACTIVATION = ROWS * WIDTH * 4
WEIGHT = WIDTH * WIDTH * 4


def deep(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = (x @ w).relu()
    return x.sum()


@both
def test_saved_tensors_are_freed_as_the_backward_goes(route: Route) -> None:
    """Activations die one by one while gradients are made; both at once would be their sum."""
    x = torch.randn(ROWS, WIDTH)
    weights = [torch.randn(WIDTH, WIDTH).mul_(0.05).requires_grad_() for _ in range(LAYERS)]
    fast = route(deep)
    fast(x, *weights).backward()
    for w in weights:
        w.grad = None
    found = live_bytes(lambda: fast(x, *weights).backward())
    assert all(w.grad is not None for w in weights)
    # All activations, or all gradients and a few activations; and room for temporaries.
    assert found < LAYERS * ACTIVATION + 3 * ACTIVATION + 2 * WEIGHT


@both
def test_a_kept_graph_keeps_what_it_saved(route: Route) -> None:
    x = torch.randn(ROWS, WIDTH)
    weights = [torch.randn(WIDTH, WIDTH).mul_(0.05).requires_grad_() for _ in range(3)]
    y = route(deep)(x, *weights)
    first = torch.autograd.grad(y, weights, retain_graph=True)
    second = torch.autograd.grad(y, weights)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
