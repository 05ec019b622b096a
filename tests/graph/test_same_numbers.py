"""Rules that drop an operator keep its NaNs, infinities and signs, and what a backward is to find."""

from __future__ import annotations

import math

import pytest
import torch

COMPLEX = {
    "times one": lambda c: (c * 1) * 2,
    "by one": lambda c: c / 1,
    "times ones": lambda c: c * torch.ones_like(c),
    "plus zero": lambda c: (c + 0).exp(),
    "minus zero": lambda c: (c - 0.0).cos(),
    "gelu, written out": lambda c: 0.5 * c * (1 + torch.tanh(0.7978845608028654 * (c + 0.044715 * c**3))),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_parts_of_complex_numbers(name):
    inf, nan = math.inf, math.nan
    c = torch.tensor([complex(nan, 1), complex(1, inf), complex(1, -0.0), complex(-0.0, 0.0), complex(2, 3)])
    ours = torch.view_as_real(torch.compile(COMPLEX[name], backend="litz")(c))
    eagers = torch.view_as_real(COMPLEX[name](c))
    torch.testing.assert_close(ours, eagers, equal_nan=True)
    assert torch.equal(ours.signbit() & ~ours.isnan(), eagers.signbit() & ~eagers.isnan())


@pytest.mark.parametrize("alpha", [math.inf, -math.inf, math.nan])
def test_zero_times_what_is_no_number(alpha):
    def function(x):
        return torch.add(x, torch.zeros_like(x), alpha=alpha) * 2

    x = torch.randn(5)
    assert torch.equal(torch.compile(function, backend="litz")(x).isnan(), function(x).isnan())


@pytest.mark.parametrize(
    "function", [lambda x, y: torch.cat(x.split(2), 0) * y, lambda x, y: torch.stack(x.unbind()) * y]
)
def test_a_copy_is_what_the_backward_finds(function):
    x, y = torch.randn(4, 3), torch.randn(4, 3, requires_grad=True)
    before = x.clone()
    result = torch.compile(function, backend="litz")(x, y)
    x.mul_(3)
    result.sum().backward()
    assert torch.equal(y.grad, before)
