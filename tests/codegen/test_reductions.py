"""Reductions as machine code: every kind, over rows and columns, in sizes that leave tails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.codegen.compiled import agrees, compiled

SIZES = (1, 2, 15, 16, 17, 33, 64, 65, 127, 257)
KINDS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum, "prod": torch.prod, "amax": torch.amax, "amin": torch.amin, "argmax": torch.argmax,
    "argmin": torch.argmin, "mean": torch.mean, "var": torch.var, "logsumexp": torch.logsumexp,
}  # fmt: skip


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str, dim: int) -> None:
    for size in SIZES:
        shape = (5, size) if dim else (size, 5)
        if kind == "var" and size == 1:
            continue
        agrees(lambda x: KINDS[kind](x, dim=dim), torch.rand(shape) + 0.5, rtol=1e-4)


ALIKE: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "rows": ((3, 4032), lambda x: x.sum(1)),
    "columns": ((50, 40), lambda x: x.sum(0)),
    "short loops inside one another": ((15, 15), lambda x: x.unsqueeze(-1).expand(15, 15, 15).sum()),
    "a number seen many times": ((7, 8), lambda x: x.unsqueeze(-1).expand(7, 8, 28).sum()),
}


@pytest.mark.parametrize("name", ALIKE)
def test_sums_of_equal_numbers(name: str) -> None:
    """Their roundings all go the same way. An accumulator that takes in 63 of them is off by up to 14 units in the last
    place, in the end, and one that takes in 16, as eager's do, by up to 7."""
    shape, function = ALIKE[name]
    summed, _ = compiled(lambda x: [function(x)], [torch.ones(shape)])
    for value in torch.linspace(0.5, 1.5, 60):
        x = value.expand(shape).contiguous()
        exact = function(x.double())
        unit = torch.finfo(torch.float32).eps * 2.0 ** exact.log2().floor()
        assert bool(((summed(x)[0] - exact).abs() <= 7 * unit).all()), value


@pytest.mark.parametrize("dim", [0, 1])
def test_booleans_and_integers(dim: int) -> None:
    for size in SIZES:
        shape = (3, size) if dim else (size, 3)
        x = torch.randint(-9, 9, shape)
        agrees(lambda x: ((x > 0).any(dim), (x > -9).all(dim), x.sum(dim), x.amax(dim), x.amin(dim), x.argmax(dim)), x)
        agrees(lambda x: (x.sum(dim), x.amax(dim), x.argmin(dim)), x.to(torch.int32))
        agrees(lambda x: (x.amax(dim), x.amin(dim)), x.to(torch.int8))
        agrees(lambda x: (x.amax(dim), x.amin(dim)), x.abs().to(torch.uint8))


@pytest.mark.parametrize("function", [torch.argmax, torch.argmin], ids=["argmax", "argmin"])
def test_the_first_of_equals(function: Callable[..., torch.Tensor]) -> None:
    for size in SIZES:
        x = torch.randint(0, 3, (4, size)).float()
        agrees(lambda x: (function(x, 1), function(x, 0), function(x)), x)


@pytest.mark.parametrize("function", [torch.argmax, torch.argmin, torch.amax, torch.amin, torch.sum])
def test_nan_wins(function: Callable[..., torch.Tensor]) -> None:
    for size in (5, 17, 40, 100):
        x = torch.randn(3, size)
        x[1, size // 2] = x[1, size - 1] = torch.nan
        x[2] = torch.nan
        agrees(lambda x: (function(x, 1), function(x, 0)), x)


@pytest.mark.parametrize("function", [torch.amax, torch.amin])
def test_a_single_nan_wins_wherever_it_is(function: Callable[..., torch.Tensor]) -> None:
    for size in (16, 64, 72):
        x = torch.randn(size + 1, size)
        x.diagonal().fill_(torch.nan)  # in each row but the last
        agrees(lambda x: function(x, 1), x)
        agrees(lambda x: function(x, 1), x.double())


@pytest.mark.parametrize("value", [torch.inf, -torch.inf])
def test_rows_of_infinities(value: float) -> None:
    for size in (3, 17, 64):
        x = torch.full((3, size), value)
        agrees(lambda x: (x.argmax(1), x.argmin(1), x.amax(1), x.amin(1), x.softmax(1)), x)


def test_softmax_and_norms() -> None:
    for size in SIZES:
        x, weight, bias = torch.randn(7, size), torch.randn(size), torch.randn(size)
        agrees(lambda x: (x.softmax(1), x.softmax(0), x.log_softmax(1)), x)
        if size > 1:
            agrees(lambda x, w, b: torch.nn.functional.layer_norm(x, x.shape[1:], w, b), x, weight, bias, atol=1e-4)


def test_over_several_axes() -> None:
    x = torch.randn(3, 5, 7, 19)
    agrees(lambda x: (x.sum((1, 3)), x.amax((0, 2)), x.sum(), x.var((0, 1))), x, atol=1e-4)
    agrees(lambda x: x.mean((2, 3), keepdim=True), x)
    agrees(lambda x: (x.softmax(1), x.transpose(1, 3).softmax(-1)), x)


def test_over_nothing() -> None:
    agrees(lambda x: (x.sum(1), x.prod(1), x.sum(0), (x > 0).any(1), (x > 0).all(1)), torch.randn(3, 0))


def test_wide_sums_are_accurate() -> None:
    """A running sum in one register would be off by thousands of units."""
    x = torch.rand(2, 1 << 18)
    found = agrees(lambda x: x.sum(1), x, rtol=1e-5)
    assert found.kernels


LONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: (x.sin() + 1).sum(),
    "mean": lambda x: (x + 1).mean(),
    "rows": lambda x: (x + 1).expand(3, -1).contiguous().sum(1),
    "columns": lambda x: (x + 1).unsqueeze(1).expand(-1, 8).contiguous().sum(0)[:1],
    "variance": lambda x: (x + 100).var(),
    "norm": lambda x: torch.linalg.vector_norm(x + 1),
    "softmax": lambda x: torch.softmax(x * 3, 0) * x.shape[0],
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "product": lambda x: (x + 1) @ (x + 2),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape),
    "loss": lambda x: torch.nn.functional.mse_loss(x, x * 0.5),
}


@pytest.mark.parametrize("kind", LONG)
def test_sums_are_accurate_whatever_the_first_size(kind: str) -> None:
    """One program, made for two or three numbers, that then meets many."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    function = LONG[kind]
    made = torch.compile(function, backend="litz")
    for size in (2, 3, 2_000_003):
        x = torch.rand(size)
        exact = function(x.double())
        scale = exact.abs().max()
        mine, eager = ((f(x) - exact).abs().max() / scale for f in (made, function))
        assert mine <= 2 * eager + 5e-7


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("size", [2, 3, 6, 7])
def test_a_short_sum_is_rounded_as_in_eager(size: int, dim: int) -> None:
    """In its order, and along columns with products added unrounded: of terms that cancel, little else is left."""
    shape = (50, size) if dim else (size, 50)
    grad = torch.randn(shape)
    weights = (torch.randn(shape) * 10.0 ** torch.randint(-3, 4, shape)).softmax(dim)
    agrees(lambda g, p: torch.ops.aten._softmax_backward_data(g, p, dim, g.dtype), grad, weights, rtol=0, atol=0)


def test_a_dear_value_is_kept_between_passes() -> None:
    """Values kept in scratch: rows shorter and longer than a vector, several reduced axes, and too long to keep."""
    for shape in ((3, 5), (3, 40), (2, 1000), (1, 90_000)):
        agrees(lambda x: torch.exp(x) / torch.exp(x).sum(1, keepdim=True), torch.randn(shape))
    x = torch.randn(4, 6, 3, 5)
    agrees(lambda x: torch.exp(x) / torch.exp(x).sum((1, 3), keepdim=True), x)
    agrees(lambda x: torch.exp(x) / torch.exp(x).sum((0, 2), keepdim=True), x)
