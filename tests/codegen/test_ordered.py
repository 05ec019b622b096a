"""Kernels that run step by step, as machine code: scans and updates, over rows and columns, in sizes with tails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.codegen.compiled import agrees

SIZES = (1, 2, 15, 17, 64, 130)
NAN, INF = float("nan"), float("inf")
SCANS: dict[str, Callable[..., object]] = {
    "cumsum": torch.cumsum, "cumprod": torch.cumprod, "cummax": torch.cummax, "cummin": torch.cummin,
    "logcumsumexp": torch.logcumsumexp,
}  # fmt: skip


def generated(function: Callable[..., object], *inputs: torch.Tensor, **tolerances: float) -> None:
    assert not agrees(function, *inputs, **tolerances).fallbacks


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", SCANS)
def test_scans(kind: str, dim: int) -> None:
    for size in SIZES:
        x = torch.randn((33, size) if dim else (size, 33)) / 4 + 0.9
        generated(lambda x: SCANS[kind](x, dim), x, rtol=1e-4)
        if kind != "logcumsumexp":
            generated(lambda x: SCANS[kind](x, dim), (4 * x).to(torch.int32))


@pytest.mark.parametrize("dim", [0, 1])
def test_scans_of_what_is_no_number(dim: int) -> None:
    x = torch.tensor([[1, NAN, 3, INF], [-INF] * 4, [INF, -INF, 2, 3], [0.0, -0.0, 0.0, 5.0]])
    generated(lambda x: (*x.cummax(dim), *x.cummin(dim), x.logcumsumexp(dim), x.cumsum(dim)), x)


def test_a_long_sum_is_as_exact_as_eager() -> None:
    x = torch.rand(1 << 18)
    generated(lambda x: x.cumsum(0), x, rtol=0, atol=0)


def test_what_surrounds_a_scan() -> None:
    generated(lambda x: (x.exp().cumsum(1) * 2).softmax(1), torch.randn(5, 40))
    generated(lambda x: x.cumsum(0).cumsum(1).sum(), torch.randn(9, 20))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str, whole: bool, dim: int) -> None:
    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(dim, i, s, reduce, include_self=whole)

    for size in (9, 33, 70):
        x, source, index = torch.randn(40, 33), torch.randn(size, 33) / 2 + 1, torch.randint(0, 30, (size, 33))
        if dim:
            source, index = source.t().contiguous(), index.t().contiguous()
        generated(function, x, index, source, rtol=1e-4)
        generated(function, x.long(), index, source.long())


def test_updates_follow_the_order_of_the_index() -> None:
    index = torch.randint(0, 5, (50,))
    generated(lambda x, i, s: x.scatter(0, i, s), torch.zeros(8), index, torch.arange(50.0))
    generated(
        lambda x, i, s: x.index_copy(0, i, s), torch.zeros(8, 20), torch.arange(8).repeat(2)[:8], torch.randn(8, 20)
    )
    generated(lambda x, i, s: x.scatter(1, i, s), torch.zeros(3, 8), index.expand(3, 50), torch.randn(3, 50))


def test_sums_through_indices() -> None:
    rows, columns = torch.randint(-40, 40, (5, 6)), torch.randint(-33, 33, (6,))
    x, bools = torch.randn(40, 33), torch.rand(40, 33) > 0.5
    generated(lambda x, r, c, v: torch.index_put(x, (r, c), v, True), x, rows, columns, torch.randn(5, 6))
    generated(lambda x, r, v: torch.index_put(x, (r,), v, True), x, rows, torch.randn(5, 6, 33))
    generated(lambda x, r, v: torch.index_put(x, (r,), v, True), bools, rows, torch.rand(5, 6, 33) > 0.5)
    generated(lambda x, i, s: x.index_add(1, i, s, alpha=3), x, torch.randint(0, 33, (70,)), torch.randn(40, 70))
    generated(lambda x, i, s: torch.put(x, i, s, True), x, torch.randint(-1000, 1000, (7, 11)), torch.randn(7, 11))


def test_a_start_that_is_cheap_is_not_taken_for_the_result() -> None:
    generated(lambda i, s: torch.zeros(20).scatter_add(0, i, s) + 1, torch.randint(0, 20, (50,)), torch.randn(50))
