"""Functions of 16-bit results on a GPU, over every number of the types, and kernels that are bound by instructions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine")

Function = Callable[..., torch.Tensor]


def every(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(1 << 15), 1 << 15, device="cuda").to(torch.int16).view(dtype)


def compiled(function: Function) -> Function:
    torch._dynamo.reset()
    return torch.compile(function, backend="litz", fullgraph=True, options={"never_slower": False})


def gelu_backward(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(torch.ones_like(x), x)


FUNCTIONS: dict[str, Function] = {
    "gelu": F.gelu, "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu backward": gelu_backward,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_number(name: str, dtype: torch.dtype) -> None:
    """Numbers are where eager has some, and as near: a quarter of a unit may be lost beside what rounding loses, and of
    what is nearly nothing, more."""
    function, x = FUNCTIONS[name], every(dtype)
    found, eager, exact = compiled(function)(x), function(x), function(x.double())
    assert torch.equal(found.isnan(), eager.isnan()) and torch.equal(found.isinf(), eager.isinf())
    info = torch.finfo(dtype)
    unit = torch.exp2(torch.frexp(exact.abs().clamp(min=info.tiny, max=info.max)).exponent.double() - 1) * info.eps
    beside = 2.0**-11.5 if name == "gelu backward" and dtype is torch.bfloat16 else 2.0**-16
    off = (found.double() - exact).abs().nan_to_num(0.0, 0.0)
    assert (off <= 0.75 * unit + beside).all()
    if name == "gelu":
        assert (off <= 0.75 * unit)[x > -4].all() and off[x < -5.65].max() < 2.0**-24


@pytest.mark.parametrize("shape", [(8192, 4096), (300, 768), (64, 5000)], ids=str)
def test_layer_norm_gelu_dropout(shape: tuple[int, int]) -> None:
    """The same elements are dropped, and the rest is no further off than eager's, nor are gradients."""
    x, w, tangent = (torch.randn(size, device="cuda").bfloat16() for size in (shape, shape[1:], shape))

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.gelu(F.layer_norm(x, shape[1:], w, w)), 0.1)

    def learned(run: Function) -> list[torch.Tensor]:
        torch.manual_seed(3)
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        out = run(*leaves)
        out.backward(tangent)
        return [out.detach(), *(leaf.grad for leaf in leaves)]  # type: ignore[list-item]

    found, eager = learned(compiled(function)), learned(function)
    leaves = [t.double().requires_grad_() for t in (x, w)]
    whole = F.gelu(F.layer_norm(leaves[0], shape[1:], leaves[1], leaves[1]))
    kept = eager[0] != 0  # but far out on the left, where eager's function is zero and ours hardly more
    told = whole.abs() > 2.0**-20
    assert torch.equal(kept[told], (found[0] != 0)[told])
    right = whole * kept / 0.9
    right.backward(tangent.double())
    for got, theirs, exact in zip(found, eager, (right.detach(), *(t.grad for t in leaves)), strict=True):
        errors = [(t.double() - exact).abs() for t in (got, theirs)]
        assert errors[0].max() <= 2 * errors[1].max() and errors[0].mean() <= 1.25 * errors[1].mean()
        assert math.isfinite(float(got.double().sum()))
