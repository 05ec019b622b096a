"""Writes through `.data` and `detach()`, out of autograd's sight; and tensors that are given other memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.autograd.both import Route, assert_compiled, both, grad, through_compile


def halved(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = (w * x).sin().sum()
    w.data.mul_(0.5)
    return y


def counted(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    w.detach().mul_(0.5)
    return (w * x).sum()


def both_ways(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    w.data.mul_(0.5)
    with torch.no_grad():
        w.add_(1)
    return (w * x).sum()


def seen_as_well(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    w.data.mul_(0.5)
    w.add_(x)
    return w.sum()


@both
@pytest.mark.parametrize("function", [halved, counted, both_ways, seen_as_well], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", ["leaf", "inner", "constant"])
def test_writes_out_of_sight(route: Route, function: Callable[..., Any], kind: str) -> None:
    """Values, gradients and exact versions: a write through `.data` is no new version, one through `detach` is."""
    if kind == "leaf" and function is seen_as_well:
        return  # refused by autograd

    def run(called: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        leaf, x = grad(4), grad(4)
        w = {"leaf": leaf, "inner": leaf * 1, "constant": leaf.detach()}[kind]
        earlier = (w * x).sum() if function is halved else torch.zeros(())
        y = called(w, x) + earlier
        return [y.detach(), w.detach().clone(), w._version, *torch.autograd.grad(y, [leaf, x], allow_unused=True)]

    torch.testing.assert_close(run(route(function)), run(function))
    assert_compiled()


@both
@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_are_kept_short(route: Route, make: Any) -> None:
    def train(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(make(6, 4, max_norm=0.5), nn.Linear(4, 2))
        called = route(model) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            called(torch.randint(0, 6, (3, 2))).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in model.parameters()]

    torch.testing.assert_close(train(True), train(False))
    assert_compiled()


def given_another(x: torch.Tensor, y: torch.Tensor) -> Any:
    a = (x * 3).sin().sum()
    x.data = y
    return (x * 2 + 1).exp().sum() + a, y.cos()


def given_a_new_one(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y * 2
    x.add_(1)
    return x * 2


def given_to_an_intermediate(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = (x[:, None] * x).sin()
    z.data = y * 1
    return (z * 2 + 1).exp().sum(-1), z


@pytest.mark.parametrize("function", [given_another, given_a_new_one, given_to_an_intermediate])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_tensor_that_is_given_other_memory(function: Callable[..., Any], dynamic: bool | None) -> None:
    def run(called: Callable[..., Any]) -> list[Any]:
        x, y = torch.ones(3), torch.arange(4.0)
        return [called(x, y), x, y, x._version, x.data_ptr() == y.data_ptr()]

    torch._dynamo.reset()
    fast = torch.compile(function, backend="litz", dynamic=dynamic)
    for _ in range(2):
        torch.testing.assert_close(run(fast), run(function), rtol=1e-5, atol=1e-5)


def test_a_parameter_that_is_given_other_memory() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = (x * y).sin().sum()
        x.data = y.detach() * 2
        return loss + (x * y).sum()

    def run(called: Callable[..., Any]) -> list[Any]:
        x, y = torch.ones(4, requires_grad=True), torch.arange(4.0).requires_grad_()
        loss = called(x, y)
        loss.backward()  # what Dynamo makes of it gives `grad` something else, whatever the backend
        return [loss, x, x.grad, y.grad]

    torch.testing.assert_close(run(through_compile(function)), run(function))
