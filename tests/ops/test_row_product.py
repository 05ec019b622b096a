"""A single row times columns that lie in one piece: a sum for each column, and no product of a library's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.freeze.freezing import frozen, judge, lively, report


class Across(nn.Module):
    """Columns that do not lie in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(70, 96)), nn.Parameter(torch.randn(96))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight).relu()


def calls() -> int:
    assert not report().fallbacks
    return sum(count for _, count in report().calls)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("freeze", [True, False])
def test_a_linear_of_a_single_row(bias: bool, dtype: torch.dtype, freeze: bool) -> None:
    model = lively(nn.Sequential(nn.Linear(70, 96, bias=bias), nn.SiLU(), nn.Linear(96, 70, bias=bias))).to(dtype)
    x = torch.randn(1, 70, dtype=dtype)
    with torch.no_grad():
        judge(model, frozen(model, freeze)(x), x)
    assert calls() == 0


@pytest.mark.parametrize(("freeze", "expected"), [(True, 0), (False, 1)])
def test_frozen_columns_are_laid_out_for_it(freeze: bool, expected: int) -> None:
    model, x = lively(Across()), torch.randn(1, 70)
    with torch.no_grad():
        judge(model, frozen(model, freeze)(x), x)
    assert calls() == expected


def test_joined_products_of_a_single_row() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up = nn.Linear(64, 96), nn.Linear(64, 96)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gate(x).sigmoid() * self.up(x)

    model, x = lively(Gated()), torch.randn(1, 1, 64)
    with torch.no_grad():
        judge(model, frozen(model)(x), x, ulps=32)
    assert calls() == 0 and report().kernels == 2


def test_a_library_s_where_that_is_asked_for() -> None:
    model, x = lively(nn.Linear(64, 96)), torch.randn(1, 64)
    with torch.no_grad():
        judge(model, frozen(model, matmul="library")(x), x)
    assert calls() == 1
