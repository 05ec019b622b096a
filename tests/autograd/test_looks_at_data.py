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


BEST: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "greatest": torch.max,
    "least": torch.min,
    "median": torch.median,
    "median of numbers": torch.nanmedian,
    "greatest of one": lambda x: x[1, :1].max() + x[1, 1].max(),
}
TANGENTS = {"negative": -1.0, "infinite": float("inf"), "no number": float("nan"), "negative zero": -0.0}


@both
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", PRODUCTS)
def test_of_products(name: str, odd: str, route: Route) -> None:
    x = _numbers(odd)
    shape = PRODUCTS[name](x).shape
    tangent = torch.linspace(-1, 2, shape.numel()).view(shape)
    _agree(PRODUCTS[name], x, tangent, route)


@both
@pytest.mark.parametrize("tangent", TANGENTS)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", BEST)
def test_of_the_best(name: str, odd: str, tangent: str, route: Route) -> None:
    """It hands its gradient on to those that are the best, and to the rest exactly nothing."""
    _agree(BEST[name], _numbers(odd).clamp(max=3), torch.tensor(TANGENTS[tangent]), route)


def _numbers(odd: str) -> torch.Tensor:
    x = torch.arange(1.0, 13.0).sub(6.5).reshape(3, 4)
    x.view(-1)[4 : 4 + len(ODD[odd])] = torch.tensor(ODD[odd])
    return x


def _agree(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, given: torch.Tensor, route: Route
) -> None:
    theirs, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    want, found = function(theirs), route(function)(mine)
    assert_compiled()
    tangent = given.to(want.dtype)
    (eager,), (own,) = torch.autograd.grad(want, theirs, tangent), torch.autograd.grad(found, mine, tangent)
    torch.testing.assert_close(own, eager, rtol=1e-6, atol=0, equal_nan=True)
    assert judge._zeros(own, eager, None) is None
