"""`detect_anomaly` around compiled functions: right results, and an error where a gradient is NaN, as in eager."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import litz

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield


def root(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sqrt().sum()


@pytest.mark.parametrize("dynamic", [None, True])
def test_results_are_right(dynamic: bool | None) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    x = torch.randn(3, 4, requires_grad=True)
    compiled = torch.compile(model, backend="litz", dynamic=dynamic)
    wanted = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    with torch.autograd.detect_anomaly():
        for _ in range(2):
            found = torch.autograd.grad(compiled(x).square().sum(), [x, *model.parameters()])
            torch.testing.assert_close(found, wanted)
    assert litz.last_report().left_to_eager is None


@pytest.mark.parametrize("around", ["both", "forward", "backward"])
def test_a_gradient_that_is_nan_raises(around: str) -> None:
    def nan(x: torch.Tensor) -> torch.Tensor:
        return root(x) * 0 / x.sum()

    def step(function: object) -> None:
        x = torch.zeros(3, requires_grad=True)
        with torch.autograd.set_detect_anomaly(around != "backward"):
            y = function(x)  # type: ignore[operator]
        with torch.autograd.set_detect_anomaly(around != "forward"):
            y.backward()

    compiled = torch.compile(nan, backend="litz")
    for function in (nan, compiled, compiled):
        if around == "forward":
            step(function)
            continue
        with pytest.raises(RuntimeError, match="returned nan values"):
            step(function)


def test_infinite_gradients_do_not_raise() -> None:
    x = torch.zeros(3, requires_grad=True)
    with torch.autograd.detect_anomaly():
        (found,) = torch.autograd.grad(torch.compile(root, backend="litz")(x), x)
    torch.testing.assert_close(found, torch.full((3,), torch.inf))


def test_without_looking_for_nans() -> None:
    x = torch.zeros(3, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=False):
        (found,) = torch.autograd.grad(torch.compile(root, backend="litz")(x) * torch.nan, x)
    assert found.isnan().all()
