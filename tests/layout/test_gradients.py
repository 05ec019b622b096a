"""Gradients lie in memory as those of the operators that eager calls, also where fake tensors say otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

LIKE = torch.randn(9, 6).t()
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mse_loss": lambda x: F.mse_loss(x, LIKE),
    "mse_loss, each": lambda x: F.mse_loss(x, LIKE, reduction="none"),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, LIKE),
    "smooth_l1_loss, each": lambda x: F.smooth_l1_loss(x, LIKE, reduction="none"),
    "huber_loss": lambda x: F.huber_loss(x, LIKE),
    "huber_loss, each": lambda x: F.huber_loss(x, LIKE, reduction="none"),
    "glu": lambda x: F.glu(x, 0),
    "hardswish": F.hardswish,
    "softplus": F.softplus,
    "elu": F.elu,
    "hardtanh": F.hardtanh,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_something_transposed(name: str) -> None:
    found = []
    for function in (FUNCTIONS[name], torch.compile(FUNCTIONS[name], backend="litz")):
        torch._dynamo.reset()
        x = LIKE.add(1).requires_grad_()
        assert x.stride() == (1, 6)
        result = function(x)
        (grad,) = torch.autograd.grad(result, x, torch.ones_like(result))
        found.append((result.stride(), grad.stride(), grad))
    (strides, of_grad, want), (mine, of_mine, got) = found
    assert (mine, of_mine) == (strides, of_grad)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("spatial", [2, 3])
def test_of_padded_images(spatial: int, mode: str) -> None:
    layout = torch.channels_last if spatial == 2 else torch.channels_last_3d

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (1, 1) * spatial, mode=mode)

    found = []
    for run in (function, torch.compile(function, backend="litz", dynamic=False)):
        torch._dynamo.reset()
        x = torch.ones(2, 3, *(5,) * spatial).to(memory_format=layout).requires_grad_()
        result = run(x)
        found.append((result.stride(), torch.autograd.grad(result, x, torch.ones_like(result))[0].stride()))
    assert found[0] == found[1]
