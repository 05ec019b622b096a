"""`torch.func` transforms inside a compiled function: what eager gives, through both doors, and compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from litz.compat import forgetting_fakes
from tests.autograd.both import ROUTES, Route, agrees, both, left_to_eager
from tests.autograd.transforms import PROGRAMS

TRACES_WITHIN = ("linearized",)  # by tracing the function itself, which a trace cannot see into; Dynamo breaks there


@both
@pytest.mark.parametrize("name", PROGRAMS)
def test_transforms_inside(name: str, route: Route) -> None:
    torch.manual_seed(0)
    function, make = PROGRAMS[name]()
    if name in TRACES_WITHIN and route is ROUTES["directly"]:
        agrees(route, function, make, compiled=False)
        assert left_to_eager()
        return
    agrees(route, function, make, rtol=1e-4, atol=1e-5)


def test_tangents_of_what_begins_inside_its_memory() -> None:
    """A tangent is laid out as its primal is. What torch remembers of the fake of one that was made so before has it
    begin where its memory begins, and the two do not agree."""
    function = torch.func.jacfwd(lambda x: x.t() * 2)
    with forgetting_fakes():
        with FakeTensorMode() as mode:
            function(mode.from_tensor(torch.randn(2, 11)[..., 1::2]))  # as Dynamo does, before it calls a backend
        agrees(ROUTES["directly"], function, lambda: [torch.randn(2, 11)[..., 1::2]])


# -- transforms of a compiled function, from outside -------------------------------------------------------
def scalar(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.sum()).sum()


def vector(x: torch.Tensor) -> torch.Tensor:
    return x.exp() * x


def with_dual_numbers(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x, 2 * x))))

    return run


OUTSIDE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "grad": (torch.func.grad, scalar),
    "vmap": (torch.func.vmap, vector),
    "vmap of grad": (lambda f: torch.func.vmap(torch.func.grad(f)), lambda x: (x * x).sin()),
    "jvp": (lambda f: lambda x: torch.func.jvp(f, (x,), (x,)), vector),
    "vjp": (lambda f: lambda x: torch.func.vjp(f, x)[1](x), vector),
    "jacrev": (torch.func.jacrev, vector),
    "jacfwd": (torch.func.jacfwd, vector),
    "hessian": (torch.func.hessian, scalar),
    "functionalize": (torch.func.functionalize, lambda x: x.clone().add_(1)),
    "dual numbers": (with_dual_numbers, vector),
    "jacobian": (lambda f: lambda x: torch.autograd.functional.jacobian(f, x), vector),
}


@both
@pytest.mark.parametrize("name", OUTSIDE)
def test_transforms_outside(name: str, route: Route) -> None:
    transform, function = OUTSIDE[name]
    x = torch.randn(3)
    fast = route(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            torch.testing.assert_close(transform(fast)(x), transform(function)(x))
            torch.testing.assert_close(fast(x), function(x))
