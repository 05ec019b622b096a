"""`autograd.Function`s of the user's that return an argument, a view, or memory autograd does not know as either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.autograd.both import Route, agrees, both, grad


def reversal(forward: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    class Reversal(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return forward(x)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return -3 * g

    return Reversal.apply


KINDS = {
    "itself": reversal(lambda x: x),
    "view": reversal(lambda x: x.view_as(x)),
    "detached": reversal(lambda x: x.detach()),
    "copied": reversal(lambda x: x.clone()),
}
PROGRAMS: dict[str, Callable[..., Any]] = {
    "alone": lambda own, x: own(x),
    "beside": lambda own, x: (own(x), x * 2),
    "part": lambda own, x: own(x)[1:],
    "of a part": lambda own, x: (own(x[1:]), x[:1]),
    "of a result": lambda own, x: own(x.sin()),
    "and what it is of": lambda own, x: ((y := x.sin()), own(y)),
    "of two parts": lambda own, x: ((y := x.sin()), own(y[:1]), own(y[1:]), y[1:]),
    "of an argument, twice": lambda own, x: (own(x), own(own(x)), x.t()),
    "after a write": lambda own, x: ((y := x * 2).add_(1), own(y)[0])[1],
}


class Auxiliary(torch.autograd.Function):
    """What experts balance their load with: the value passes, and a loss is added in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(loss)
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (loss,) = ctx.saved_tensors
        return g, torch.ones_like(loss) * 0.01


@both
@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_of_a_function_that_returns_memory_it_was_given(route: Route, kind: str) -> None:
    for program in PROGRAMS.values():

        def inner() -> list[Any]:
            leaf = grad(3, 2)
            return [leaf * 1, {"leaves": [leaf]}]

        own = KINDS[kind]
        agrees(route, lambda x, p=program, own=own: p(own, x), lambda: [grad(3, 2)], calls=1)
        agrees(route, lambda x, p=program, own=own: p(own, x), inner, calls=1)


@both
def test_a_loss_added_on_the_way_through(route: Route) -> None:
    agrees(route, lambda x: Auxiliary.apply(x, x.square().mean()), lambda: [grad(3)])
    agrees(route, lambda x: Auxiliary.apply(x * 2, x.square().mean()), lambda: [grad(3)])
    # The value itself needs no gradient.
    agrees(route, lambda x, w: Auxiliary.apply(x, w.square().mean()), lambda: [torch.randn(3), grad(3)])
    agrees(route, lambda x, w: Auxiliary.apply(x[1:], w.square().mean())[1:], lambda: [torch.randn(4), grad(3)])


class _PlusOne(torch.autograd.Function):
    """Its gradient is not linear: without a tangent, it is not to run."""

    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, tangent):
        return tangent + 1


_AND_OTHERS = {
    "beside": lambda x, y: (_PlusOne.apply(x), x * y),
    "within": lambda x, y: (_PlusOne.apply(x) * y, x * y),
    "twice": lambda x, y: (_PlusOne.apply(x), _PlusOne.apply(_PlusOne.apply(x) + y), x * y),
}


@pytest.mark.parametrize("name", _AND_OTHERS)
def test_gradients_added_to_its_own_are_no_tangents_of_it(name):
    function = _AND_OTHERS[name]
    compiled = torch.compile(function, backend="litz")
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    for used in range(len(function(x, y))):
        mine, theirs = (
            torch.autograd.grad(f(x, y)[used].sum(), (x, y), allow_unused=True) for f in (compiled, function)
        )
        assert all(a is b or torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
