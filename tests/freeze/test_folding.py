"""Folding into frozen weights: what folds, what does not and why, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.freeze.freezing import fired, frozen, judge, lively, report

IMAGE = torch.randn(2, 8, 9, 9, generator=torch.Generator().manual_seed(2))
ROWS = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(3))


class Then(nn.Module):
    """A product, and what is done to it with a constant `c`."""

    def __init__(self, product: nn.Module, c: Any, then: Callable[..., Any]) -> None:
        super().__init__()
        self.product, self.then = product, then
        if isinstance(c, torch.Tensor):
            self.register_buffer("c", c)
        else:
            self.c = c

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self.product(x), self.c).relu()


OPERATIONS = {
    "add": lambda y, c: y + c,
    "added to": lambda y, c: c + y,
    "add with alpha": lambda y, c: torch.add(y, c, alpha=3),
    "sub": lambda y, c: y - c,
    "subtracted from": lambda y, c: c - y,
    "sub with alpha": lambda y, c: torch.sub(c, y, alpha=0.5) if isinstance(c, torch.Tensor) else c - 0.5 * y,
    "mul": lambda y, c: y * c,
    "multiplied by": lambda y, c: c * y,
    "div": lambda y, c: y / c,
}
CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "with a bias": lambda: nn.Conv2d(8, 16, 3),
    "without": lambda: nn.Conv2d(8, 16, 3, bias=False),
    "in groups": lambda: nn.Conv2d(8, 16, 3, groups=2),
    "of points": lambda: nn.Conv2d(8, 16, 1),
    "transposed": lambda: nn.ConvTranspose2d(8, 16, 3, stride=2),
}


def channels(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(4)) + 0.5


def check(model: nn.Module, x: torch.Tensor, **options: Any) -> dict[str, int]:
    run = frozen(model.eval(), **options)
    with torch.no_grad():
        judge(model, run(x), x)
    return fired()


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("c", [2.5, channels(16, 1, 1), channels(1, 16, 1, 1), channels(1)], ids=str)
def test_a_convolution_and_a_constant(name: str, c: Any) -> None:
    model = Then(lively(nn.Conv2d(8, 16, 3)), c, OPERATIONS[name])
    assert check(model, IMAGE)["binary_folding"] >= 1


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_every_kind(name: str) -> None:
    model = Then(lively(CONVOLUTIONS[name]()), channels(16, 1, 1), lambda y, c: y * c + c)
    assert check(model, IMAGE)["binary_folding"] == 2
    assert not any(n.startswith("binary") for n in report().notes)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("c", [2.5, channels(16), channels(1, 1, 16)], ids=str)
def test_a_linear_and_a_constant(name: str, bias: bool, c: Any) -> None:
    model = Then(lively(nn.Linear(8, 16, bias=bias)), c, OPERATIONS[name])
    assert check(model, ROWS)["binary_folding"] >= 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(bias: bool, affine: bool) -> None:
    model = lively(nn.Sequential(nn.Conv2d(8, 16, 3, bias=bias), nn.BatchNorm2d(16, affine=affine), nn.ReLU()))
    assert check(model, IMAGE)["conv_bn"] == 1
    freezing = report().freezing
    assert freezing is not None and (freezing.constants, freezing.computed) == (2, 2)


def test_batch_norm_behind_a_linear() -> None:
    model = lively(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU()))
    assert check(model, ROWS[0])["conv_bn"] == 1


def test_one_folding_makes_way_for_the_next() -> None:
    """And the weights are rounded once."""
    model = Then(
        lively(nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16))), 3.0, lambda y, c: (y / c + 0.1) * 7 - c
    )
    found = check(model, IMAGE)
    assert found["conv_bn"] == 1 and found["binary_folding"] == 4
    freezing = report().freezing
    assert freezing is not None and (freezing.constants, freezing.computed) == (2, 2)


def test_a_constant_that_is_computed_of_others() -> None:
    class Weighed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.scale = nn.Conv2d(8, 16, 3), nn.Parameter(torch.rand(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.conv(x) * (self.scale.exp() + 1)[:, None, None]).relu()

    assert check(lively(Weighed()), IMAGE)["binary_folding"] == 1


def test_a_weight_that_is_normalised() -> None:
    conv = torch.nn.utils.parametrizations.weight_norm(lively(nn.Conv2d(8, 16, 3)))
    check(nn.Sequential(conv, nn.ReLU()).eval(), IMAGE)
    freezing = report().freezing
    assert freezing is not None and freezing.computed == 1


# -- what does not fold ------------------------------------------------------------------------------
def misses() -> str:
    return "\n".join(f"{miss.rule}: {miss.why}" for miss in report().near_misses)


class Read(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.conv(x)
        return y * 3 + y.sigmoid()


class Moves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return (self.conv(x) * x.sum()).relu()


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: Read(), "others read the product"),
        (lambda: Then(nn.Conv2d(8, 16, 3), channels(16, 7, 7), lambda y, c: y + c), "for each channel"),
        (lambda: Then(nn.Conv2d(8, 16, 3), channels(1, 7), lambda y, c: y + c), "for each channel"),
        (lambda: Then(nn.Conv2d(8, 16, 3), channels(3, 1, 1, 1, 1), lambda y, c: y + c), "more dimensions"),
        (lambda: Then(nn.Conv2d(8, 16, 3), float("inf"), lambda y, c: y * c), "finite"),
        (lambda: Then(nn.Conv2d(8, 16, 3), channels(16, 1, 1).double(), lambda y, c: y * c), "another type"),
        (lambda: Then(nn.Conv2d(8, 16, 3), 0.0, lambda y, c: y / c), "finite"),
        (lambda: Then(nn.Conv2d(8, 16, 3), channels(16, 1, 1), lambda y, c: c / y), "finite"),
    ],
)
def test_what_does_not_fold_says_why(model: Callable[[], nn.Module], why: str) -> None:
    run = model().eval()
    compiled = frozen(run)
    with torch.no_grad():
        torch.testing.assert_close(compiled(IMAGE), run(IMAGE), rtol=1e-4, atol=1e-4, equal_nan=True)
    assert "binary_folding" not in fired() and why in misses(), misses()


def test_what_varies_is_no_constant() -> None:
    assert "binary_folding" not in check(lively(Moves()), IMAGE)


def test_nothing_folds_without_freezing() -> None:
    model = lively(nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)))
    check(model, IMAGE, how=False)
    assert report().freezing is None and not {"conv_bn", "binary_folding", "hoist"} & fired().keys()


# -- types -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.float64])
def test_constants_of_another_type(dtype: torch.dtype) -> None:
    """A number of any type, or a tensor whose type gives way to the product's, folds as it is."""
    c = torch.tensor(3, dtype=dtype) if dtype is torch.float64 else (channels(16, 1, 1) * 4).to(dtype)
    model = Then(lively(nn.Conv2d(8, 16, 3)), c, lambda y, c: y * c)
    run = frozen(model.eval())
    with torch.no_grad():
        torch.testing.assert_close(run(IMAGE), model(IMAGE), rtol=1e-4, atol=1e-4)
    assert fired()["binary_folding"] == 1


@pytest.mark.parametrize(("factor", "folds"), [(2.0, 1), (-0.25, 1), (3.0, 0)])
def test_weights_of_16_bits_are_scaled_where_that_is_exact(factor: float, folds: int) -> None:
    model = Then(lively(nn.Linear(8, 16)), factor, lambda y, c: y * c).bfloat16()
    check_bfloat16(model)
    assert fired().get("binary_folding", 0) == folds
    assert folds or "16 bits" in misses()


def test_what_is_added_to_16_bits_folds() -> None:
    check_bfloat16(Then(lively(nn.Linear(8, 16)), channels(16), lambda y, c: y + c).bfloat16())
    assert fired()["binary_folding"] == 1


def check_bfloat16(model: nn.Module) -> None:
    run, x = frozen(model.eval()), ROWS.bfloat16()
    with torch.no_grad():
        judge(model, run(x), x, ulps=1)


# -- fuel, and sizes ---------------------------------------------------------------------------------
def test_each_folding_asks_for_fuel() -> None:
    model = lively(nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)))
    for fuel in range(8):
        check(model, IMAGE, fuel=fuel)
        assert report().fuel_left is not None
    check(model, IMAGE, fuel=0)
    assert "conv_bn" not in fired() and "hoist" not in fired()


def test_rows_that_vary() -> None:
    model = Then(lively(nn.Linear(8, 16)), channels(16), lambda y, c: y * c + c).eval()
    run = frozen(model, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5, 9):
            x = torch.randn(rows, 4, 8)
            judge(model, run(x), x)
    assert fired()["binary_folding"] == 2


# -- layouts -----------------------------------------------------------------------------------------
def test_a_view_that_the_channels_last_layout_does_not_allow() -> None:
    model = lively(
        nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.Flatten())
    )
    found = check(model, torch.randn(2, 8, 24, 24))
    assert found["conv_bn"] == 1
