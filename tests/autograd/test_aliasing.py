"""Outputs that alias inputs, each other or an intermediate; one tensor twice; overlapping inputs; tied weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.autograd.both import Route, agrees, both, grad


@both
def test_outputs_that_alias_inputs(route: Route) -> None:
    agrees(route, lambda x: (x[1:], x.t(), x * 2), lambda: [grad(4, 3)])
    agrees(route, lambda x: (x.view(-1), x.unsqueeze(0), x.exp()), lambda: [grad(4, 3)])
    agrees(route, lambda x, y: (x, y, x + y), lambda: [grad(3), torch.randn(3)])


@both
def test_an_alias_of_a_non_leaf_input(route: Route) -> None:
    def made() -> list:
        leaf = grad(4, 3)
        return [leaf * 2, {"leaves": [leaf]}]

    agrees(route, lambda x: (x[1:], x.t().sin()), made)


@both
def test_detached_aliases_need_no_grad(route: Route) -> None:
    agrees(route, lambda x: (x.detach(), x * 2), lambda: [grad(4, 3)])
    agrees(route, lambda x: ((x * 2).detach(), x * 3), lambda: [grad(4, 3)])

    def half(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y.detach(), y[0].detach(), y[0]

    agrees(route, half, lambda: [grad(4, 3)])


@both
def test_outputs_that_alias_each_other(route: Route) -> None:
    def base_and_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y[0], y.t()

    def same_twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y

    agrees(route, base_and_views, lambda: [grad(4, 3)])
    agrees(route, same_twice, lambda: [grad(4, 3)])


@both
def test_outputs_that_alias_an_intermediate(route: Route) -> None:
    """Views of a tensor that is not returned itself: each one's gradient reaches it."""
    agrees(route, lambda x: (x * 2).unbind(0), lambda: [grad(4, 3)])
    agrees(route, lambda x: (x.exp())[1:3], lambda: [grad(4, 3)])
    agrees(route, lambda x: (x.exp())[1:3].t(), lambda: [grad(4, 3)])

    def rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y[1:], y[:2], y.t()[0], y.sum()

    agrees(route, rows, lambda: [grad(4, 3)])
    agrees(route, lambda x: torch.chunk(x * 2, 2, 1), lambda: [grad(4, 6)])
    agrees(route, lambda x: (x * 2).expand(5, 4, 3), lambda: [grad(4, 3)])


@both
def test_aliases_of_an_intermediate_that_is_mutated_later(route: Route) -> None:
    def rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        first = y[0]
        y.mul_(3)
        return first, y[1:]

    agrees(route, rows, lambda: [grad(4, 3)])


@both
def test_outputs_may_be_modified_by_the_user(route: Route) -> None:
    def program(fast: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z = fast(x)
        y.mul_(2)
        z.add_(1)
        return torch.autograd.grad((y.sum() + z.sum()), [x])

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2)[1:3], x + 1

    fast = route(function)
    x = grad(4, 3)
    for got, want in zip(program(fast, x), program(function, x), strict=True):
        torch.testing.assert_close(got, want)


@both
def test_the_same_tensor_passed_twice(route: Route) -> None:
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y.sin()

    def twice() -> list:
        x = grad(4, 3)
        return [x, x]

    agrees(route, product, twice)

    def mutated(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return y * w

    def one() -> list:
        x = torch.randn(3)
        return [x, x, grad(3)]

    agrees(route, mutated, one)
    fast = route(mutated)
    for same in (False, True, False):
        x = torch.ones(3)
        w = grad(3)
        found = fast(x, x if same else torch.ones(3), w)
        assert torch.equal(found, (2 if same else 1) * w)


@both
def test_overlapping_views_of_one_storage_as_two_inputs(route: Route) -> None:
    def read(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b.sin()

    def write(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return b * w

    def views() -> list:
        base = grad(10)
        whole = base * 1
        return [whole[:6], whole[3:9], {"leaves": [base]}]

    def written() -> list:
        base = torch.randn(10)
        return [base[:6], base[3:9], grad(6)]

    def apart() -> list:
        base = torch.randn(12)
        return [base[:6], base[6:], grad(6)]

    agrees(route, read, views)
    agrees(route, write, written, compiled=False)
    agrees(route, write, apart, compiled=False)


@both
def test_tied_parameters(route: Route) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.head(self.embed(ids).sin()).flatten(0, 1), ids.flatten())

    model = Tied()
    ids = torch.randint(0, 11, (2, 5))
    model(ids).backward()
    want = model.embed.weight.grad.clone()
    model.zero_grad()
    route(model)(ids).backward()
    torch.testing.assert_close(model.embed.weight.grad, want, rtol=1e-4, atol=1e-6)
    assert model.head.weight.grad is model.embed.weight.grad


@both
def test_functions_that_return_parameters_and_buffers(route: Route) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))
            self.register_buffer("scale", torch.randn(3))

        def forward(self, x: torch.Tensor) -> Any:
            return x * self.weight, self.weight, self.scale, {"view": self.weight[1:]}

    model = Layer()
    fast = route(model)
    x = grad(4, 3)
    found, wanted = fast(x), model(x)
    assert found[1] is model.weight and found[2] is model.scale
    for got, want in ((found, wanted),):
        torch.testing.assert_close(got[3]["view"], want[3]["view"])
    total = lambda r: r[0].sum() + r[1].square().sum() + r[3]["view"].exp().sum()  # noqa: E731
    for got, want in zip(
        torch.autograd.grad(total(found), [x, model.weight]),
        torch.autograd.grad(total(wanted), [x, model.weight]),
        strict=True,
    ):
        torch.testing.assert_close(got, want)
