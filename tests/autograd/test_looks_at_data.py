"""Derivatives that eager computes by a look at the data: zeros, of either sign, infinities and what is no number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.autograd.both import Route, assert_compiled, both
from tests.opinfo import judge

PRODUCTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of all": torch.prod,
    "of all, in float64": lambda x: x.prod(dtype=torch.float64),
    "of rows": lambda x: x.prod(-1),
    "of columns, kept": lambda x: x.prod(0, keepdim=True),
    "running down": lambda x: x.cumprod(0),
    "running along": lambda x: (x * 2).cumprod(-1),
    "of one column": lambda x: x[:, :1].cumprod(1) * x[:, :1].prod(1, keepdim=True),
}
ODD: dict[str, tuple[float, ...]] = {
    "none": (),
    "one zero": (0.0,),
    "zeros of both signs": (0.0, -0.0),
    "zeros beside each other": (1.0, -0.0, 0.0),
    "infinity": (float("inf"),),
    "no number": (1.0, float("nan")),
    "zeros and infinity": (0.0, float("inf"), -0.0),
    "no number behind a zero": (-0.0, 1.0, float("nan")),
}


@both
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", PRODUCTS)
def test_of_products(name: str, odd: str, route: Route) -> None:
    function = PRODUCTS[name]
    x = torch.arange(1.0, 13.0).sub(6.5).reshape(3, 4)
    x.view(-1)[4 : 4 + len(ODD[odd])] = torch.tensor(ODD[odd])
    theirs, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    want, found = function(theirs), route(function)(mine)
    assert_compiled()
    tangent = torch.linspace(-1, 2, want.numel(), dtype=want.dtype).view(want.shape)
    (eager,), (own,) = torch.autograd.grad(want, theirs, tangent), torch.autograd.grad(found, mine, tangent)
    torch.testing.assert_close(own, eager, rtol=1e-6, atol=0, equal_nan=True)
    assert judge._zeros(own, eager, None) is None
