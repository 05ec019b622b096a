"""Inputs mutated in place: data, shape, under `no_grad`, through views; who requires grad and who does not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from tests.autograd.both import Route, agrees, both, grad, left_to_eager, through_compile


@both
def test_inputs_mutated_in_place(route: Route) -> None:
    def data(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * w

    agrees(route, data, lambda: [torch.randn(4, 3), grad(3)])


@both
def test_an_input_mutated_with_what_requires_grad(route: Route) -> None:
    """The buffer becomes part of the autograd graph, as in eager."""

    def accumulate(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(w)
        return x.sin()

    agrees(route, accumulate, lambda: [torch.randn(4, 3), grad(3)])


@both
def test_inputs_mutated_through_views(route: Route) -> None:
    def rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x[0].mul_(2)
        x.t()[1].zero_()
        return (x * w).sum(0)

    def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x[1:].copy_(w * 3)
        return x * 2

    agrees(route, rows, lambda: [torch.randn(4, 3), grad(3)])
    agrees(route, written, lambda: [torch.randn(4, 3), grad(3, 3)])


@both
def test_a_view_of_a_larger_tensor_mutated(route: Route) -> None:
    def part(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return x + w

    agrees(route, part, lambda: [torch.randn(8, 6)[::2, 1:4], grad(3)])


@both
def test_inputs_mutated_under_no_grad(route: Route) -> None:
    def leaf(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            w.mul_(0.5)
        return x * w

    agrees(route, leaf, lambda: [grad(4, 3), grad(3)])


@both
def test_the_value_before_a_mutation_is_what_its_reader_differentiates(route: Route) -> None:
    """The backward needs what the input held before the forward wrote over it."""

    def before(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.clone() * w
        x.add_(1)
        return y

    def old_leaf(w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            old = w.clone()
            w.zero_()
        return old * u

    def both_values(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x * 2).exp() * w
        x.mul_(x.clone())
        return y + x * w.sin()

    agrees(route, before, lambda: [torch.randn(4, 3), grad(3)])
    agrees(route, old_leaf, lambda: [grad(4), grad(4)])
    agrees(route, both_values, lambda: [torch.randn(4, 3), grad(3)])


@both
def test_a_mutated_input_that_requires_grad(route: Route) -> None:
    def scale(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(w)
        return x.exp()

    def made() -> list:
        leaf, w = grad(4, 3), grad(3)
        return [leaf * 2, w, {"leaves": [leaf, w]}]

    agrees(route, scale, made)


@both
def test_a_mutated_view_that_requires_grad(route: Route) -> None:
    def scale(x: torch.Tensor) -> torch.Tensor:
        x[1].mul_(3)
        return x.sum(0)

    def made() -> list:
        leaf = grad(4, 3)
        return [leaf * 2, {"leaves": [leaf]}]

    agrees(route, scale, made)


@both
def test_a_mutated_input_returned(route: Route) -> None:
    def made() -> list:
        leaf = grad(4, 3)
        return [leaf * 2, {"leaves": [leaf]}]

    agrees(route, lambda x: x.mul_(3), made)
    agrees(route, lambda x: (x.mul_(3), x[0], x.t()), made)
    fast = route(lambda x: x.mul_(3))
    x = torch.randn(3)
    assert fast(x) is x


@both
def test_a_leaf_that_requires_grad_refuses_mutation(route: Route) -> None:
    fast = route(lambda x: x.mul_(2) + 1)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        fast(grad(3))


@both
def test_metadata_mutated(route: Route) -> None:
    def turn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.t_()
        return x * w

    def views(x: torch.Tensor, w: torch.Tensor) -> tuple:
        first = x[1:]
        x.unsqueeze_(0).transpose_(1, 2)
        return x, first, x[0], x.sum() * w

    for function, width in ((turn, 4), (views, 1)):
        agrees(route, function, lambda width=width: [torch.randn(4, 3), grad(width)])
        x = torch.randn(4, 3)
        route(function)(x, grad(width))
        assert x.shape == ((3, 4) if function is turn else (1, 3, 4))


@both
def test_metadata_and_data_mutated(route: Route) -> None:
    """Both at once are left to eager, and the report says so."""

    def reshape(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.t_().mul_(2)
        return x * w

    agrees(route, reshape, lambda: [torch.randn(4, 3), grad(4)], compiled=False, calls=1)
    assert left_to_eager() or route is through_compile, "Dynamo breaks the graph before and after it"


@both
def test_a_tensor_of_the_closure_mutated(route: Route) -> None:
    seen = torch.zeros(3)

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.add_(x.detach().sum(0))
        return x * 2

    fast = route(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            fast(torch.ones(4, 3, requires_grad=True)).sum().backward()
    assert torch.equal(seen, torch.full((3,), 12.0))


@both
def test_buffers_updated_in_forward(route: Route) -> None:
    torch.manual_seed(0)
    eager, mine = (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(2))
    mine.load_state_dict(eager.state_dict())
    fast = route(mine)
    for _ in range(3):
        x = torch.randn(2, 3, 6, 6)
        for model, run in ((eager, eager), (mine, fast)):
            model.zero_grad()
            run(x).square().mean().backward()
        for (name, a), b in zip(mine.named_parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=name)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert int(mine[1].num_batches_tracked) == 3


@both
def test_a_mutation_bumps_the_version_of_what_others_saved(route: Route) -> None:
    fast = route(lambda b: b.add_(1))
    w = grad(3)
    b = torch.randn(3)
    y = w * b
    fast(b)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
