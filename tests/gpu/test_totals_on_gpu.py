"""Gradients of norms on a GPU, where the kernel that walks the rows also sums their columns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import litz

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine")
HALF = torch.bfloat16


def by_hand(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As models write it that have a class of their own for it."""
    wide = x.float()
    normal = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    return w * normal + b


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "rms": lambda x, w, b: F.rms_norm(x, x.shape[-1:], w) + b,
    "layer": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    "gelu": lambda x, w, b: F.gelu(F.layer_norm(x, x.shape[-1:], w, b)),
    "by hand": by_hand,
}
SHAPES = {
    "a warp each": ((4, 300, 768), HALF),
    "a warp each, 1024": ((2048, 1024), HALF),
    "two warps": ((1999, 1536), HALF),
    "several warps": ((1024, 4096), HALF),
    "long rows": ((700, 8192), HALF),
    "all of a block": ((600, 32000), HALF),
    "float16": ((1024, 2048), torch.float16),
    "float32": ((1024, 1024), torch.float32),
    "float32, walked": ((600, 20000), torch.float32),
    "odd": ((777, 1001), HALF),
    "few rows": ((100, 1024), HALF),
}


def gradients(function: Callable[..., torch.Tensor], args: list[torch.Tensor], g: torch.Tensor) -> list[torch.Tensor]:
    learns = [a.detach().requires_grad_() for a in args]
    return list(torch.autograd.grad(function(*learns), learns, g))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str, shape: str) -> None:
    """Litz's error, against float64, is at most twice eager's; and the same each time."""
    torch._dynamo.reset()
    size, dtype = SHAPES[shape]
    x, g = (torch.randn(size, device="cuda").to(dtype) for _ in range(2))
    args = [x, *(1 + torch.rand(size[-1], device="cuda").to(dtype) for _ in range(2))]
    run = torch.compile(FUNCTIONS[name], backend="litz", options={"never_slower": False})
    found, again = gradients(run, args, g), gradients(run, args, g)
    assert litz.last_report().left_to_eager is None
    wanted = gradients(FUNCTIONS[name], args, g)
    exact = gradients(FUNCTIONS[name], [a.double() for a in args], g.double())
    for got, more, eager, right in zip(found, again, wanted, exact, strict=True):
        assert torch.equal(got, more)
        errors = [float((a.double() - right).abs().max()) for a in (got, eager)]
        assert errors[0] <= 2 * errors[1] + 1e-6 * float(right.abs().max()), errors


def test_rows_whose_number_changes() -> None:
    torch._dynamo.reset()
    run = torch.compile(FUNCTIONS["layer"], backend="litz", dynamic=True, options={"never_slower": False})
    for rows in (2048, 1500, 9, 3000):
        x, g = (torch.randn(rows, 1024, device="cuda") for _ in range(2))
        args = [x, *(1 + torch.rand(1024, device="cuda") for _ in range(2))]
        for got, want in zip(gradients(run, args, g), gradients(FUNCTIONS["layer"], args, g), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
