"""Products of one matrix with several frozen ones become one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.freeze.freezing import fired, frozen, judge, lively, report

ROWS = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(5))


class Several(nn.Module):
    def __init__(self, *linears: nn.Linear) -> None:
        super().__init__()
        self.linears = nn.ModuleList(linears)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *rest = (linear(x) for linear in self.linears)
        for other in rest:
            first = first.sigmoid() * other
        return first


class Attention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32, bias=bias) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).view(2, 16, 4, 8).transpose(1, 2) for p in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 16, 32)


def check(model: nn.Module, x: torch.Tensor = ROWS, **options: Any) -> dict[str, int]:
    run = frozen(lively(model), **options)
    with torch.no_grad():
        judge(model, run(x), x, ulps=32)
    return fired()


def products() -> int:
    return sum(count for name, count in report().calls if "mm" in name)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [2, 3])
def test_products_of_equal_shape_are_one(bias: bool, count: int) -> None:
    found = check(Several(*(nn.Linear(32, 48, bias=bias) for _ in range(count))), matmul="library")
    assert found["joined_products"] == 1 and products() == 1


@pytest.mark.parametrize("bias", [True, False])
def test_attention_reads_the_parts_where_they_lie(bias: bool) -> None:
    found = check(Attention(bias), matmul="library")
    assert found["joined_products"] == 1 and products() == 1


def test_generated_products() -> None:
    found = check(Several(*(nn.Linear(32, 48) for _ in range(3))), torch.randn(64, 32), matmul="generate")
    assert found["joined_products"] == 1


def test_rows_that_vary() -> None:
    model = lively(Several(nn.Linear(32, 48), nn.Linear(32, 48)))
    run = frozen(model, dynamic=True)
    with torch.no_grad():
        for rows in (3, 40):
            x = torch.randn(rows, 32)
            judge(model, run(x), x, ulps=32)
    assert fired()["joined_products"] == 1


def misses() -> list[str]:
    return [miss.why for miss in report().near_misses if miss.rule == "joined_products"]


@pytest.mark.parametrize("other", [nn.Linear(32, 64), nn.Linear(32, 48, bias=False)])
def test_other_shapes_stay_apart(other: nn.Linear) -> None:
    first, second = nn.Linear(32, 48), other
    if other.out_features != 48:
        model: nn.Module = Shapes(first, second)
    else:
        model = Several(first, second)
    assert "joined_products" not in check(model)
    assert other.bias is None or any("another shape" in why for why in misses())


class Shapes(Several):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = (linear(x) for linear in self.linears)
        return a.sigmoid() * b[..., :48].tanh()


def test_those_of_equal_shape_among_others() -> None:
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(32, 64), nn.Linear(32, 16), nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.q(x).sum(-1, keepdim=True).sigmoid() * self.k(x).tanh() * self.v(x).exp()

    assert check(Grouped())["joined_products"] == 1


def test_results_that_the_user_gets_stay_apart() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 48), nn.Linear(32, 48)

        def forward(self, x: torch.Tensor) -> Any:
            return self.a(x), self.b(x)

    model = lively(Both())
    run = frozen(model)
    with torch.no_grad():
        for given, expected in zip(run(ROWS), model(ROWS), strict=True):
            torch.testing.assert_close(given, expected)
    assert "joined_products" not in fired() and any("copied" in why for why in misses())


def test_weights_that_are_not_frozen_stay_apart() -> None:
    assert "joined_products" not in check(Several(nn.Linear(32, 48), nn.Linear(32, 48)), how=False)
