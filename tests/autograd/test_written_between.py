"""Writes between the forward and the backward, to arguments and results: eager's gradients, and eager's errors.

Eager keeps some arguments and results for its formulas, and reads those as they are when the backward runs, or raises
if their version has changed; all else that a formula reads, nobody can write to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.autograd.both import Route, assert_compiled, both, grad

Function = Callable[..., Any]


def outcome(function: Function, write: Callable[[list[Any], list[Any]], None], leaf: bool, data: bool) -> list[Any]:
    """Gradients, or the error, where `write` is done to the arguments and results after the forward."""
    torch.manual_seed(0)
    leaves = [(torch.randn(4, 4, dtype=torch.float64) / 3).requires_grad_() for _ in range(2)]
    given = [x * 1 for x in leaves] if not leaf else leaves
    results = function(*given)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    loss = results[-1].sin().sum() if leaf else (results[-1].sum() * 2)
    seen = [*given, *results]
    with torch.no_grad():
        write([t.data if data else t for t in seen[:2]], [t.data if data else t for t in results])
    try:
        return [type(None), *torch.autograd.grad(loss, leaves, allow_unused=True)]
    except RuntimeError as error:
        return [type(error), "inplace" in str(error)]


FUNCTIONS: dict[str, Function] = {
    "sigmoid": lambda x, w: x.sigmoid(),
    "relu": lambda x, w: torch.relu(x) + w,
    "sin": lambda x, w: x.sin() + w.t().cos(),
    "two factors": lambda x, w: x.exp() * w.tanh(),
    "both forms": lambda x, w: x * x.tanh() * w,
    "product": lambda x, w: ((y := x @ w), y.sigmoid())[1],
    "result and more": lambda x, w: ((y := x @ w), y.relu()),
    "result of a result": lambda x, w: ((y := (x @ w).sin()), y.sigmoid() * 2, y.t().sigmoid().exp()),
    "scaled by one": lambda x, w: ((p := (x @ w).softmax(-1)) * 1.0, p @ w),
    "copies": lambda x, w: x.clone() * w.float().double(),
    "copied result": lambda x, w: (x @ w).exp().clone(),
    "views": lambda x, w: (x.t()[1:].sigmoid() * w[1:].t().reshape(3, 4)).exp(),
    "loss and scores": lambda x, w: ((y := x @ w), F.cross_entropy(y, torch.arange(4))),
    "norm": lambda x, w: F.layer_norm(x.sigmoid(), (4,), w[0].exp(), w[1]),
    "wide and views of it": lambda x, w: ((y := x.float().double()).t(), (z := w.bfloat16().double())[1:], y * z),
    "cast": lambda x, w: (x.bfloat16() @ w.bfloat16()).double(),
    "mask": lambda x, w: torch.where(x > 0, w, x) * (x > 0.5),
    "smaller": lambda x, w: torch.minimum(x, x + (x @ w) * 2),
    "the same twice": lambda x, w: (x.cos() + x.sin(), x.cos() * w.sin() + w.cos()),
}  # fmt: skip
WRITES: dict[str, Callable[[list[Any], list[Any]], None]] = {
    "first argument": lambda given, results: given[0].mul_(2),
    "second argument": lambda given, results: given[1].add_(1),
    "first result": lambda given, results: results[0].mul_(3),
    "all": lambda given, results: [t.mul_(2) for t in (*given, *results)] and None,  # type: ignore[func-returns-value]
}


@both
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_and_errors_are_those_of_eager(route: Route, name: str) -> None:
    """Out of autograd's sight, where the numbers themselves tell what was read; and in its sight."""
    function = FUNCTIONS[name]
    fast = route(function)
    for write, leaf, data in itertools.product(WRITES, (True, False), (True, False)):
        want, got = (outcome(f, WRITES[write], leaf, data) for f in (function, fast))
        what = f"{write}, leaves {leaf}, out of sight {data}"
        assert got[0] is want[0], f"{what}: {got}, with eager {want}"
        if want[0] is type(None):
            torch.testing.assert_close(got[1:], want[1:], rtol=1e-5, atol=1e-6, msg=f"{what}: {got}, with eager {want}")
    assert_compiled()


@both
def test_what_is_added_to_in_place_afterwards(route: Route) -> None:
    """A residual, as it is often written."""

    def run(block: Function) -> torch.Tensor:
        torch.manual_seed(0)
        w = grad(4)
        h = w * 2
        h += block(h)
        return torch.autograd.grad(h.sum(), w)[0]

    def block(h: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(h) * 2

    torch.testing.assert_close(run(route(block)), run(block))
    assert_compiled()


class Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * torch.rand(4) + torch.rand_like(g) - torch.rand(4)


@both
def test_a_backward_draws_its_random_numbers_itself(route: Route) -> None:
    def run(function: Function) -> list[torch.Tensor]:
        x = torch.ones(4, requires_grad=True)
        torch.manual_seed(0)
        y = function(x)
        found = [torch.rand(1)]
        torch.manual_seed(5)
        for _ in range(2):
            found += [*torch.autograd.grad(y.sum(), x, retain_graph=True), torch.rand(1)]
        return found

    def function(x: torch.Tensor) -> torch.Tensor:
        return Noise.apply(x).sin()

    torch.testing.assert_close(run(route(function)), run(function))
    assert_compiled()
