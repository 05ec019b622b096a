"""Differentiation around a compiled function: many tangents at once, forward mode, inference tensors; and functions of
the user's own whose backward is not linear, where a result is not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from tests.autograd.both import Route, assert_compiled, both, grad


def curve(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x.sum()


def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin() * x.sum(), (x[:2] * 3).exp()


# -- many tangents at once -----------------------------------------------------------------------
@both
def test_jacobians_by_many_tangents_at_once(route: Route) -> None:
    fast = route(curve)
    x = torch.arange(3.0)
    for vectorize in (True, False):
        got = torch.autograd.functional.jacobian(fast, x, vectorize=vectorize)
        torch.testing.assert_close(got, torch.autograd.functional.jacobian(curve, x, vectorize=vectorize))
    got = torch.autograd.functional.jacobian(route(two), x, vectorize=True)
    torch.testing.assert_close(got, torch.autograd.functional.jacobian(two, x, vectorize=True))
    assert_compiled()


@both
@pytest.mark.parametrize("many", [1, 4])
def test_tangents_in_batches(route: Route, many: int) -> None:
    torch.manual_seed(0)
    x = grad(3)
    tangents = torch.randn(3, many).t()

    def of(function: Callable[..., Any], kept: bool) -> Any:
        return torch.autograd.grad(function(x), x, tangents, is_grads_batched=True, retain_graph=kept)

    fast = route(curve)
    for kept in (True, False):
        torch.testing.assert_close(of(fast, kept), of(curve, kept))


@both
def test_a_backward_under_vmap(route: Route) -> None:
    """Also in two levels, and with one tangent that is the same for all."""
    x = grad(3)
    results, wanted = route(two)(x), two(x)

    def pulled(outputs: Any) -> Callable[..., Any]:
        return lambda a, b: torch.autograd.grad(outputs, x, (a, b), retain_graph=True)[0]

    b, dims = torch.randn(2), (0, None)
    for a in (torch.randn(4, 5, 3), torch.randn(4, 0, 3)):
        got = torch.vmap(torch.vmap(pulled(results), dims), dims)(a, b)
        torch.testing.assert_close(got, torch.vmap(torch.vmap(pulled(wanted), dims), dims)(a, b))


# -- forward mode --------------------------------------------------------------------------------
def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.add_(1)
    return x.sin() * y


@both
@pytest.mark.parametrize("first", ["plain", "dual"])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_forward_mode_around_it(route: Route, first: str, needs_grad: bool) -> None:
    def run(called: Callable[..., Any], dual: bool) -> list[Any]:
        x, y = torch.arange(3.0), torch.ones(3)
        with forward_ad.dual_level():
            x.requires_grad_(needs_grad)
            z = called(forward_ad.make_dual(x, torch.ones(3)) if dual else x, y)
            return [*forward_ad.unpack_dual(z), y]

    for function in (written, lambda x, y: x.sin()):
        fast = route(function)
        for dual in (first == "dual", True, False):
            got, want = run(fast, dual), run(function, dual)
            assert (got[1] is None) == (want[1] is None)
            torch.testing.assert_close([t for t in got if t is not None], [t for t in want if t is not None])


# -- inference tensors ---------------------------------------------------------------------------
@pytest.mark.parametrize("dynamic", [None, True])
def test_tensors_of_inference_mode(dynamic: bool | None) -> None:
    torch._dynamo.reset()
    with torch.inference_mode():
        x = torch.ones(3)
    add = torch.compile(lambda x: x.add_(1), backend="litz", dynamic=dynamic)
    with pytest.raises(RuntimeError, match="inference tensor outside"):
        add(x)
    with torch.inference_mode():
        before = x.clone()
        add(x)
        torch.testing.assert_close(x, before + 1)
    w = grad(3)
    bent = torch.compile(lambda w, x: torch.sigmoid(w + x), backend="litz", dynamic=dynamic)
    got = torch.autograd.grad(bent(w, x).sum(), w)
    torch.testing.assert_close(got, torch.autograd.grad(torch.sigmoid(w + x).sum(), w))


# -- functions of the user's own -----------------------------------------------------------------
class Bent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * (1 + b) + a * torch.exp(-b) + torch.where(b == 0, a, a * 5)


@both
def test_a_backward_that_is_not_linear(route: Route) -> None:
    for function in (Bent.apply, lambda x: tuple(t.sin() for t in Bent.apply(x)), lambda x: (*Bent.apply(x), x.sin())):
        x = grad(3)
        for used in ((0,), (1,), (0, 1), (-1,)):
            got, want = (torch.autograd.grad(sum(f(x)[i].sum() for i in used), x) for f in (route(function), function))
            torch.testing.assert_close(got, want)
    assert_compiled()
