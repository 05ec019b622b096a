"""Autocast, grad modes, deterministic mode, randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.autograd.both import Route, agrees, assert_compiled, both, grad


@pytest.fixture(autouse=True)
def _plain_modes() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def step(run: Callable[..., Any], model: nn.Module, x: torch.Tensor, inside: bool = False) -> list[torch.Tensor]:
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = run(x)
        loss = y.float().square().mean()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return [y.detach(), *(p.grad.clone() for p in model.parameters())]


@both
@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
def test_autocast_around(route: Route, inside: bool) -> None:
    torch.manual_seed(0)
    model = Block()
    x = torch.randn(5, 16)
    want = step(model, model, x, inside)
    fast = route(model)
    for _ in range(2):
        found = step(fast, model, x, inside)
        assert [t.dtype for t in found] == [t.dtype for t in want]
        torch.testing.assert_close(found, want, rtol=3e-2, atol=3e-3)
    assert_compiled()


@both
def test_autocast_within(route: Route) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            with torch.autocast("cpu", enabled=False):
                z = x @ w
        return y, z, x @ w

    agrees(route, function, lambda: [grad(5, 16), grad(16, 8)], rtol=3e-2, atol=3e-2)


@both
def test_no_autocast_within_an_autocast(route: Route) -> None:
    """Operators called in full precision stay there though the thread is under autocast."""
    weight = torch.randn(4, 3, 3, 3)

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return F.conv2d(x, weight).sin()

    fast = route(function)
    x = grad(2, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = fast(x, weight)
        want = function(x, weight)
        assert found.dtype == want.dtype == torch.float32
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
        mine, theirs = (torch.autograd.grad(y.sum(), [x])[0] for y in (found, want))
    torch.testing.assert_close(mine, theirs, rtol=3e-2, atol=3e-2)


@both
def test_no_grad_regions_inside(route: Route) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            scale = (x * w).abs().amax()
        y = x / scale * w
        with torch.no_grad():
            z = y * 2
            with torch.enable_grad():
                u = w.exp()
        return y, z, u

    agrees(route, function, lambda: [grad(4, 3), grad(3)])


@both
def test_called_under_no_grad_and_with_grad(route: Route) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    fast = route(function)
    x = grad(4)
    for _ in range(2):
        with torch.no_grad():
            assert not fast(x).requires_grad
        with torch.inference_mode():
            assert fast(x).is_inference() or not fast(x).requires_grad
        y = fast(x)
        assert y.requires_grad
        torch.testing.assert_close(torch.autograd.grad(y.sum(), [x])[0], 2 * x.cos())


@both
def test_deterministic_mode(route: Route) -> None:
    def function(x: torch.Tensor, index: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.embedding(index, w).sum(0) @ x + x.index_add(0, index, w[index])[0]

    x, w = grad(16, 16), grad(16, 16)
    index = torch.randint(0, 16, (200,))
    torch.use_deterministic_algorithms(True)
    fast = route(function)
    runs = [torch.autograd.grad(fast(x, index, w).square().sum(), [x, w]) for _ in range(5)]
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))
    want = torch.autograd.grad(function(x, index, w).square().sum(), [x, w])
    torch.testing.assert_close(runs[0], want, rtol=1e-4, atol=1e-3)


@both
def test_deterministic_mode_refuses_what_eager_refuses(route: Route) -> None:
    def function(x: torch.Tensor, index: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * 1).put_(index, w)

    arguments = (grad(8), torch.tensor([1, 2]), torch.randn(2))
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="deterministic"):
        function(*arguments)
    with pytest.raises(RuntimeError, match="deterministic"):
        route(function)(*arguments)


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(F.gelu(self.up(x)), 0.3)
        y = F.dropout(self.down(y), 0.1) + torch.rand_like(x)
        return y * torch.bernoulli(torch.full_like(y, 0.5))


@both
def test_dropout_and_other_randomness(route: Route) -> None:
    """One seed, the same numbers as eager's, in the forward and in what the backward knows of it."""
    model = Drops().train()
    fast = route(model)
    x = torch.randn(5, 16)
    for seed in range(3):
        found = []
        for run in (model, fast):
            torch.manual_seed(seed)
            model.zero_grad()
            y = run(x)
            y.square().mean().backward()
            found.append([y.detach(), torch.rand(3), *(p.grad.clone() for p in model.parameters())])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert_compiled()


@both
def test_draws_whose_result_is_dropped_still_count(route: Route) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.rand(4)
        return x * torch.rand(3)

    agrees(route, function, lambda: [grad(4, 3)])


def _views_and_writes(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    state.add_(x.sum())
    with torch.enable_grad():
        y = x @ w
        view = w.t()
    z = y * 2
    with torch.enable_grad():
        return y, z, view, w[1:], (z * y).sum(), y.detach(), (w.detach() * 2)


@both
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_gradients_in_parts(mode: Callable[..., Any], route: Route) -> None:
    fast = route(_views_and_writes)

    def inside(*args: Any) -> Any:
        with mode():
            return _views_and_writes(*args)

    def inside_fast(*args: Any) -> Any:
        with mode():
            return fast(*args)

    agrees(lambda _: inside_fast, inside, lambda: [grad(3, 4), grad(4, 4), torch.zeros(())])


@both
def test_gradients_in_parts_of_what_is_no_leaf(route: Route) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            y.mul_(2)
            with torch.enable_grad():
                return (x * 2).exp(), y + x

    def inside(f: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with torch.no_grad():
                return f(*args)

        return run

    def make() -> list[Any]:
        leaf = grad(3)
        return [leaf * 1, torch.ones(3), {"leaves": [leaf]}]

    agrees(lambda f: inside(route(function)), inside(function), make)
