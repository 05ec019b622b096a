"""Optimizer steps compiled: by themselves, around a compiled model, and with forward and backward in one function."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from tests.autograd.both import Route, assert_compiled, both, grad

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True, weight_decay=0.1),
    "Adam, one by one": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False, amsgrad=True),
}
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def trained(
    wrap: Callable[[nn.Module, torch.optim.Optimizer], Callable[[torch.Tensor], Any]], make: Any
) -> list[torch.Tensor]:
    torch._dynamo.reset()
    model = net()
    optimizer = make(model.parameters())
    step = wrap(model, optimizer)
    torch.manual_seed(1)
    for _ in range(4):
        step(torch.randn(6, 5))
    return [p.detach().clone() for p in model.parameters()]


def plainly(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


@every_optimizer
def test_optimizer_step_compiled(make: Any) -> None:
    def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], Any]:
        update = torch.compile(lambda: optimizer.step(), backend="litz")

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            update()
            assert_compiled()

        return step

    torch.testing.assert_close(trained(wrap, make), trained(plainly, make), rtol=1e-4, atol=1e-5)


@every_optimizer
def test_optimizer_around_a_compiled_model(make: Any) -> None:
    def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], Any]:
        fast = torch.compile(model, backend="litz")

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            fast(x).square().mean().backward()
            optimizer.step()

        return step

    torch.testing.assert_close(trained(wrap, make), trained(plainly, make), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["SGD with momentum", "AdamW, foreach"])
def test_forward_backward_and_optimizer_in_one_function(name: str) -> None:
    def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], Any]:
        return torch.compile(plainly(model, optimizer), backend="litz")

    make = OPTIMIZERS[name]
    torch.testing.assert_close(trained(wrap, make), trained(plainly, make), rtol=1e-4, atol=1e-5)


MANY = {
    **OPTIMIZERS,
    "SGD, foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True, maximize=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "Adam, many options": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True, amsgrad=True, maximize=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "RMSprop, foreach": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, foreach=True),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p, foreach=True),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
}


@pytest.mark.parametrize("name", MANY)
def test_a_parameter_is_one_pass(name: str) -> None:
    """Twenty parameters, so that the operators of one stand far apart: still a kernel for each, and one for the
    numbers that come with it, such as its count of steps; nothing large is kept between kernels. Ten for the
    optimizers that are more of the same."""
    import litz

    torch._dynamo.reset()
    parameters = [nn.Parameter(torch.randn(40, 40)) for _ in range(20 if name in OPTIMIZERS else 10)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = MANY[name](parameters)
    optimizer.step()
    torch.compile(lambda: optimizer.step(), backend="litz")()
    report = litz.last_report()
    assert report.kernels <= 2 * len(parameters)
    assert report.arena_bytes < 40 * 40 * 4 * 2


@both
def test_an_update_written_by_hand(route: Route) -> None:
    """Called directly as well: a step of momentum, its state updated in place."""

    def update(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            m.mul_(0.9).add_(g)
            w.sub_(m, alpha=0.1)
        return (w * w).sum()

    fast = route(update)
    for run in (update, fast):
        torch.manual_seed(0)
        w, g, m = grad(5), torch.randn(5), torch.randn(5)
        loss = run(w, g, m)
        loss.backward()
        if run is update:
            want = [w.detach().clone(), m.clone(), w.grad.clone(), loss.detach()]
    torch.testing.assert_close([w.detach(), m, w.grad, loss.detach()], want)


@both
def test_eight_threads(route: Route) -> None:
    """One compiled function, its backward compiled by whoever needs it first; every thread its own gradients."""
    model = net()
    fast = route(model)
    inputs = [torch.randn(6, 5) for _ in range(8)]
    parameters = list(model.parameters())
    want = [torch.autograd.grad(model(x).square().mean(), parameters) for x in inputs]
    fast(inputs[0])

    def work(number: int) -> None:
        for _ in range(10):
            got = torch.autograd.grad(fast(inputs[number]).square().mean(), parameters)
            torch.testing.assert_close(got, want[number], rtol=1e-4, atol=1e-6)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
