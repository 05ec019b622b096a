"""Numbers that change from call to call, and numbers made of sizes: values of one program, and not one program each.

Each case is compiled for its first numbers and once for all others, unless Dynamo itself asks them for more.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import litz
from tests.test_dynamic import compiled_with_count

N = (2, 3, 4, 7)
T = (0.5, 0.6, 0.7, 1.25)


def rows(*sizes: int) -> list[tuple]:
    return [(torch.randn(size, 6),) for size in sizes]


def images(*sizes: int) -> list[tuple]:
    return [(torch.randn(1, 2, size, size),) for size in sizes]


def beside(numbers: tuple, *shapes: tuple[int, ...]) -> list[tuple]:
    return [(*(torch.randn(shape) for shape in shapes), number) for number in numbers]


Cases = dict[str, tuple[Callable[..., Any], list[tuple]]]
WHOLE: Cases = {
    "factor": (lambda x, n: x * n, beside((*N, -5, 0), (4, 8))),
    "beta": (lambda b, x, n: torch.addmm(b, x, x, beta=n), beside(N, (4, 4), (4, 4))),
    "alpha, generated": (lambda b, x, n: torch.addmm(b, x / 9, x / 9, alpha=n), beside(N, (128, 128), (128, 128))),
    "filled": (lambda x, n: torch.full((3,), n) + x, beside((*N, -5), (3,))),
    "bound": (lambda x, n: x.clamp(min=-n).clamp_max(n), beside(N, (4, 8))),
    "exponent": (lambda x, n: x.abs() ** n, beside((*N, -3), (4, 8))),
    "cut": (lambda x, n: x[n:] + 1, beside(N, (30,))),
    "cut at both ends, stepped": (lambda x, n: x[n:-n:2] + 1, beside(N, (30,))),
    "selected": (lambda x, n: x[n] * 2, beside(N, (30, 2))),
    "narrowed": (lambda x, n: x.narrow(0, n, n) * 2, beside(N, (30, 2))),
    "triangle": (lambda x, n: (x.tril(n), x.triu(-n)), beside((*N, -5), (9, 9))),
    "how many": (lambda x, n: x.topk(n)[0] + 1, beside(N, (30,))),
    "repeated": (lambda x, n: x.repeat(n, 2), beside(N, (3, 4))),
    "in place": (lambda x, n: x.add_(n).mul_(n / 7), beside((*N, 0), (4, 8))),
    "compared": (lambda x, n: (x > n) | (x < -n) | (x == n), beside(N, (4, 8))),
    "divided": (lambda x, n: (x // n, x % n, torch.fmod(x, n)), beside((*N, -5), (4, 8))),
    "put": (lambda x, n: x.masked_fill(x > 0, n).scatter(0, torch.tensor([[1, 2]]), n), beside(N, (4, 8))),
    "only a number": (lambda n: torch.arange(n) * 2, [(n,) for n in N]),
    "range": (lambda x, n: x[:1] + torch.arange(-n, 5 * n, n), beside(N, (3,))),
    "range backwards": (lambda x, n: x[:1] + torch.arange(4 * n, 1, -n) * 2, beside(N, (3,))),
    "padded by": (lambda x, n: F.pad(x, (n, 1)), beside(N, (3,))),
    "rolled by": (lambda x, n: (x.roll(n), x.roll((n, 1), (0, 1))), beside((*N, -5), (6, 5))),
    "held by a tensor": (lambda x, i: torch.narrow(x, 0, i, 2), [(torch.randn(9), torch.tensor(i)) for i in (3, 4, 6)]),
    "larger of two": (lambda x, n: x * max(n, x.shape[0]), beside((8, 9, 11), (5, 4))),
}
MADE_OF_SIZES: Cases = {
    "factor": (lambda x: torch.ones(6) * x.shape[0] + x, rows(5, 6, 7)),
    "inverse": (lambda x: x + torch.arange(6.0) * (1 / x.shape[0]), rows(5, 6, 7)),
    "root": (lambda x: x / math.sqrt(x.shape[0]) * x.shape[0] ** -0.25, rows(5, 6, 7)),
    "half": (lambda x: x[: int(x.shape[0] * 0.5)] * (x.shape[0] * 0.5), rows(4, 5, 6, 9)),
    "half as much again": (lambda x: torch.zeros(int(x.shape[0] * 1.5)) + x.shape[0], rows(4, 5, 6, 9)),
    "rounded": (lambda x: x * round(x.shape[0] * 0.37), rows(4, 5, 6, 9)),
    "returned": (lambda x: (x + 1, x.shape[0] * 0.5, x.shape[0] // 2), rows(4, 5, 6, 9)),
    "scaled up": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), images(9, 10, 13)),
    "twice as large": (lambda x: F.interpolate(x, scale_factor=2), images(9, 10, 13)),
    "to a fixed size": (lambda x: F.interpolate(x, size=(9, 7), mode="nearest-exact"), images(5, 6, 9)),
    "to a fixed size, cubic": (lambda x: F.interpolate(x, size=(9, 7), mode="bicubic"), images(5, 6, 9)),
    "mean, variance, norms": (lambda x: (x.mean(0), x.var(0), x.std(), x.norm()), rows(5, 6, 7)),
    "pooled": (lambda x: (F.adaptive_avg_pool2d(x, 3), F.avg_pool2d(x, 3, 2, 1)), images(9, 10, 13)),
    "reflected": (lambda x: F.pad(x, (2, 1, 1, 0), mode="reflect"), images(9, 10, 13)),
    "loss": (lambda x: (F.mse_loss(x, x * 2), F.smooth_l1_loss(x, x.sin())), rows(5, 6, 7)),
}
FLOATS: Cases = {
    "temperature": (lambda x, t: torch.softmax(x.sin() / t, -1) * t, beside(T, (4, 8))),
    "in several places": (lambda x, t: x * t + torch.softmax(x / (2 * t + 1), -1), beside(T, (4, 8))),
    "beta and alpha": (lambda b, x, t: torch.addmm(b, x, x, beta=t, alpha=t * 2), beside(T, (4, 4), (4, 4))),
    "rate": (lambda p, g, t: p.sub_(g, alpha=t), beside(T, (4, 4), (4, 4))),
    "part of a size": (lambda x, t: x[: int(x.shape[0] * t)] + 1, beside(T[:3], (40, 3))),
    "view of that size": (lambda x, t: x[: int(x.shape[0] * t)], beside(T[:3], (40, 3))),
    "returned": (lambda x, t: (x + 1, t * 2, x.shape[0] * t), beside(T, (4, 3))),
    "filled": (lambda x, t: torch.full_like(x, t) + torch.full((4, 1), t, dtype=torch.int32), beside(T, (4, 3))),
    "chosen": (lambda x, t: torch.where(x > 0, x, t) + torch.lerp(x, 2 * x, t), beside(T, (4, 3))),
    "slope": (lambda x, t: F.leaky_relu(x, t), beside(T, (4, 3))),
    "half precision": (lambda x, t: x.bfloat16() * t + t, beside(T, (4, 3))),
    "only a number": (lambda t: torch.full((3,), t) * t, [(t,) for t in T]),
}
CASES = {
    f"{kind}: {name}": case
    for kind, cases in (("whole", WHOLE), ("of sizes", MADE_OF_SIZES), ("float", FLOATS))
    for name, case in cases.items()
}


def copies(args: tuple) -> list[Any]:
    return [a.clone() if isinstance(a, torch.Tensor) else a for a in args]


@pytest.mark.parametrize("name", CASES)
def test_one_program_for_all_numbers(name: str) -> None:
    torch._dynamo.reset()
    function, calls = CASES[name]
    compiled, graphs = compiled_with_count(function)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is left to eager
        for args in calls:
            mine, eager = copies(args), copies(args)
            torch.testing.assert_close(compiled(*mine), function(*eager), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)
    assert len(graphs) <= 2


LAYERS = {
    "layer norm": (lambda: torch.nn.LayerNorm(8), (4, 8)),
    "dropout": (lambda: torch.nn.Dropout(0.1), (4, 8)),
    "leaky relu": (lambda: torch.nn.LeakyReLU(0.2), (4, 8)),
    "batch norm": (lambda: torch.nn.BatchNorm1d(8), (4, 8)),
    "encoder layer": (lambda: torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), (2, 5, 16)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_floats_that_are_attributes_are_numbers_too(name: str) -> None:
    """With `dynamic=True` Dynamo takes them for numbers that change; for some it then asks."""
    torch._dynamo.reset()
    make, shape = LAYERS[name]
    layer, x = make(), torch.randn(shape, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients = []
        for run in (torch.compile(layer, backend="litz", dynamic=True), layer):
            torch.manual_seed(0)
            layer.zero_grad()
            run(x).pow(2).sum().backward()
            gradients.append([x.grad.clone(), *(p.grad.clone() for p in layer.parameters())])
            x.grad = None
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_a_float_of_the_forward_is_one_of_the_backward() -> None:
    torch._dynamo.reset()
    weight = torch.randn(8, 8, requires_grad=True)
    function = lambda x, t: torch.softmax((x @ weight).sin() * t * x.shape[0] ** 0.5, -1) / t  # noqa: E731
    compiled, graphs = compiled_with_count(function)
    for size, t in ((3, 0.5), (4, 0.75), (9, 2.5)):
        x = torch.randn(size, 8, requires_grad=True)
        found = []
        for run in (compiled, function):
            found.append(torch.autograd.grad(run(x, t).pow(2).sum(), [x, weight]))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 2


def chosen(x: torch.Tensor) -> Any:
    y = x[(x > 0).nonzero().squeeze(1)]
    return (y * 2 + 1).sum(), y.sin(), torch.softmax(y, 0), y.view(-1, 1).expand(-1, 3).contiguous()


def made(x: torch.Tensor, n: int) -> Any:
    return torch.zeros(n) + 1, torch.zeros(n, 3).sum(0), torch.ones(n, 4) @ x.mT, torch.cat([torch.zeros(n), x[0]])


def taken(x: torch.Tensor, n: int) -> Any:
    return x[:n] * 2, x[:n].sum(0), x[n:].mean(1), torch.cat([x[:n], x])


EMPTY: Cases = {
    "from data": (chosen, [(torch.cat([torch.rand(k), -torch.rand(6 - k)]),) for k in (3, 0, 1, 5, 0, 6, 2)]),
    "made": (made, beside((3, 4, 0, 1, 6), (5, 4))),
    "taken": (taken, beside((3, 4, 0, 1, 5), (5, 4))),
    "given": (lambda x: (x.sin(), x.sum(0), x.mT.contiguous()), [(torch.randn(n, 4),) for n in (3, 5, 0, 1, 7)]),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", EMPTY)
def test_sizes_that_turn_out_to_be_nothing(name: str, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    function, calls = EMPTY[name]
    compiled = torch.compile(function, backend="litz", dynamic=dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for args in calls:
            torch.testing.assert_close(compiled(*args), function(*args), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_number_that_is_asked_for_after_it_was_used() -> None:
    """Whole division asks whether it is zero: what was made of it before still finds it among the inputs."""
    torch._dynamo.reset()

    def function(x: torch.Tensor, t: float) -> tuple[torch.Tensor, ...]:
        return x * t, x // t, x % t, x + t

    compiled = torch.compile(function, backend="litz", dynamic=True)
    x = torch.tensor([1.0, -2.0, 3.5])
    for t in (0.5, 0.6, 0.0, math.inf, math.nan):
        torch.testing.assert_close(compiled(x, t), function(x, t), equal_nan=True)
        assert litz.last_report().left_to_eager is None


ODD = torch.tensor([0.0, -0.0, 1.0, -2.0, math.inf, -math.inf, math.nan])
BY_VALUE: Cases = {
    # Eager compares the number, and computes something else where it is one of these.
    "roots": (lambda x, t: x**t, [(ODD, t) for t in (0.7, 0.5, -0.5, 2.0, -1.0)]),
    "roots of halves": (lambda x, t: x.half() ** t, [(ODD, t) for t in (0.7, 0.5, -0.5)]),
    "no product": (
        lambda x, t: torch.addmv(x[:2] * 0.5, x[3:].view(2, 2), x[2:4], alpha=t, beta=t),
        [(ODD, t) for t in (0.7, 0.0, -0.0, 1.0)],
    ),
    # These are asked for their value, and to a guard zeros are equal.
    "padded with": (lambda x, t: F.pad(x, (1, 1), value=t), [(ODD, t) for t in (0.7, 0.0, -0.0, 0.0)]),
    "minus zero first": (lambda x, t: F.pad(x, (1, 1), value=t), [(ODD, t) for t in (0.7, -0.0, 0.0, -0.0)]),
}


@pytest.mark.parametrize("name", BY_VALUE)
def test_what_eager_does_for_some_numbers_alone(name: str) -> None:
    torch._dynamo.reset()
    function, cases = BY_VALUE[name]
    compiled = torch.compile(function, backend="litz", dynamic=True)
    for args in cases:
        found, want = compiled(*args), function(*args)
        torch.testing.assert_close(found, want, equal_nan=True)
        assert torch.equal(found.signbit()[want == 0], want.signbit()[want == 0]), args[1]
        assert litz.last_report().left_to_eager is None
