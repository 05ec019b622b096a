"""Products of quantised numbers: what is recognised, what it computes, and what the report says where it is not."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import litz
from litz.ops.int8 import INT8_CONVOLUTION, INT8_MM
from tests.freeze.freezing import fired, frozen, report
from tests.graph.quantised_models import Block, Convolution, Linear, Quantised, quantised


@torch.no_grad()
def run(model: nn.Module, *given: torch.Tensor, **options: Any) -> torch.Tensor:
    return frozen(model.eval(), verify=True, **options)(*given)


def products() -> int:
    return fired().get("quantised_product", 0)


@torch.no_grad()
def judge(model: nn.Module, x: torch.Tensor, step: float = 0.0, **options: Any) -> None:
    """As near to the model in float64 as eager is, and a few units in the last place; where the result is quantised,
    one `step` beside it, as a number may be that lies between two."""
    found, eager = run(model, x, **options), model(x)
    assert (found.dtype, found.shape, found.stride()) == (eager.dtype, eager.shape, eager.stride())
    floor = 8 * torch.finfo(eager.dtype).eps * eager.abs().max()
    assert (found.double() - eager.double()).abs().max() <= max(step, float(floor))
    assert not report().calls


# -- numbers --------------------------------------------------------------------------------------
LINEAR = {
    "whole": (Linear(64, 128), (32, 128)),
    "nothing whole": (Linear(50, 71), (33, 71)),
    "a row": (Linear(40, 64), (1, 64)),
    "a depth of one": (Linear(7, 1), (5, 1)),
    "batches": (Linear(48, 64), (3, 17, 64)),
    "no bias": (Linear(48, 64, bias=False), (17, 64)),
    "signed input": (Linear(48, 64, dtype=torch.int8, zero=-7), (17, 64)),
    "no zero point": (Linear(48, 64, zero=0), (17, 64)),
    "zero points at the ends": (nn.Sequential(Linear(48, 64, zero=255), Linear(32, 48, zero=0)), (17, 64)),
    "saturated": (Linear(48, 64, scale=1e-4, zero=255), (17, 64)),
    "found at run time": (Linear(48, 64, dynamic=True), (17, 64)),
    "found at run time, signed": (Linear(48, 64, dynamic=True, dtype=torch.int8), (2, 17, 64)),
    "bfloat16": (Linear(48, 64, of=torch.bfloat16), (17, 64)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str) -> None:
    model, shape = LINEAR[name]
    judge(model, torch.randn(shape))
    assert products() == (2 if isinstance(model, nn.Sequential) else 1)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], dict[str, Any]]] = {
    "padded": ((2, 64, 9, 11), (48, 64, 3, 3), {"padding": 1}, {}),
    "uneven": ((2, 16, 8, 7), (5, 16, 3, 2), {"stride": (1, 2), "padding": (2, 1), "dilation": (1, 2)}, {"zero": 255}),
    "point": ((2, 64, 5, 7), (33, 64, 1, 1), {}, {}),
    "image": ((1, 3, 17, 21), (40, 3, 7, 7), {"stride": 2, "padding": 3}, {}),
    "few channels": ((2, 20, 9, 11), (48, 20, 3, 3), {"padding": 1}, {"bias": False}),
    "signed": ((1, 32, 6, 6), (16, 32, 3, 3), {"padding": 1}, {"dtype": torch.int8, "zero": 11}),
    "found at run time": ((1, 32, 6, 6), (16, 32, 3, 3), {"padding": 1}, {"dynamic": True}),
    "bfloat16": ((1, 32, 6, 6), (16, 32, 3, 3), {"padding": 1}, {"of": torch.bfloat16}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    shape, weight, form, how = CONVOLUTIONS[name]
    judge(Convolution(*weight, form=form, **how), torch.randn(shape))
    assert products() == 1


def test_a_block_is_one_kernel_a_product() -> None:
    """Requantised, with the bias, what is added and the activation, where the sums are: nothing of it is float32 in
    memory."""
    judge(Block(), torch.randn(2, 16, 12, 12), step=0.5)
    assert products() == 2
    assert report().launches == 3  # the input is quantised, and two products


@torch.no_grad()
def test_sums_are_exact() -> None:
    """To the last bit what the sums of whole numbers give, scaled and shifted as eager does it."""
    model = Linear(64, 700, zero=131)
    x = torch.randn(40, 700)
    numbers = quantised.quantize_per_tensor(x, *model.how).double() - 131
    sums = numbers @ model.weight.double().t()
    assert sums.abs().max() < 2**24  # which float32 holds
    scales = (model.scales.double() * model.how[0]).float()
    assert torch.equal(run(model, x), sums.float() * scales + model.bias)


@torch.no_grad()
@pytest.mark.parametrize("zero", [0, 128, 255])
def test_extremes_of_every_operand(zero: int) -> None:
    """The largest sums there are, of both signs."""
    model = Linear(32, 1030, scale=1.0, zero=zero, bias=False)
    model.weight[:16], model.weight[16:] = 127, -128
    x = torch.full((20, 1030), -300.0)
    x[10:] = 300.0
    numbers = torch.where(x < 0, 0.0, 255.0).double() - zero
    exact = numbers @ model.weight.double().t() * model.scales.double()
    torch.testing.assert_close(run(model, x).double(), exact, rtol=2**-22, atol=0)


def test_quantising_rounds_to_even_and_clamps() -> None:
    class There(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            ways = [quantised.quantize_per_tensor(x, 0.5, 3, 0, 255, torch.uint8)]
            ways += [quantised.quantize_per_tensor(x, 0.5, -3, -100, 100, torch.int8)]
            scale, zero = torch.tensor([0.1], dtype=torch.float64), torch.tensor([7])
            return *ways, quantised.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)

    halves = torch.arange(-400, 400) / 4
    given = torch.cat([halves, torch.tensor([1e9, -1e9, float("inf"), -float("inf")])])
    for ours, eager in zip(torch.compile(There(), backend="litz")(given), There()(given), strict=True):
        assert torch.equal(ours, eager)
    assert not report().calls


def test_scales_and_zero_points_found_at_run_time() -> None:
    choose = lambda x: quantised.choose_qparams.tensor(x, 0, 255, 2.0**-12, torch.uint8)  # noqa: E731
    run = litz.compile(choose)
    for x in (torch.randn(50), torch.rand(3, 40) + 1, -torch.rand(40), torch.zeros(5)):
        for ours, eager in zip(run(x), choose(x), strict=True):
            assert torch.equal(ours, eager)


def test_maxima_are_found_among_whole_numbers() -> None:
    class Pool(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            how = (0.03, 120, 0, 255, torch.uint8)
            there = quantised.dequantize_per_tensor(quantised.quantize_per_tensor(x, *how), *how)
            return quantised.quantize_per_tensor(F.max_pool2d(there, 3, 2, 1), *how)

    x = torch.randn(2, 5, 9, 11).contiguous(memory_format=torch.channels_last)
    assert torch.equal(torch.compile(Pool(), backend="litz")(x), Pool()(x))
    assert fired()["quantised_max_pool"] == 1 and report().launches == 2


def test_weights_that_are_quantised_stay_so() -> None:
    class Weights(nn.Module):
        def forward(self, x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> tuple[torch.Tensor, ...]:
            small = quantised.quantize_per_channel(x, scales, zeros, 1, -128, 127, torch.int8)
            return small, quantised.dequantize_per_channel(small, scales, zeros, 1, -128, 127, torch.int8)

    given = (torch.randn(9, 17), torch.rand(17) / 16 + 0.01, torch.randint(-9, 9, (17,)))
    for ours, eager in zip(torch.compile(Weights(), backend="litz")(*given), Weights()(*given), strict=True):
        assert torch.equal(ours, eager)


@torch.no_grad()
def test_rows_that_vary() -> None:
    model = Linear(50, 70).eval()
    run = frozen(model, dynamic=True)
    for rows in (40, 3, 57):
        x = torch.randn(rows, 70)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-4)
        assert products() == 1


@torch.no_grad()
def test_operators_mean_what_is_generated() -> None:
    """The two operators of Litz's own, as they are called without it."""
    x, y = torch.randint(0, 256, (5, 40), dtype=torch.uint8), torch.randint(-128, 128, (40, 9)).to(torch.int8)
    assert torch.equal(INT8_MM(x, y), x.int() @ y.int())
    image = torch.randint(0, 256, (1, 3, 6, 7), dtype=torch.uint8)
    weight = torch.randint(-128, 128, (4, 3, 3, 2)).to(torch.int8)
    whole = F.pad(image.double(), (1, 1, 2, 2), value=9)
    wanted = F.conv2d(whole, weight.double(), stride=(1, 2)).int()
    assert torch.equal(INT8_CONVOLUTION(image, weight, None, 9, [1, 2], [2, 1], [1, 1]), wanted)
    assert torch.equal(INT8_CONVOLUTION(image, weight, torch.tensor([9]), 0, [1, 2], [2, 1], [1, 1]), wanted)


# -- what is not recognised -----------------------------------------------------------------------
class Other(Linear):
    """One whose input or weight takes another way."""

    def __init__(self, what: str, **how: Any):
        super().__init__(48, 64, **how)
        self.what = what

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        there, wide = self.there_and_back(x), self.wide()
        if self.what == "input":
            there = torch.sin(there)
        if self.what == "weight":
            wide = wide * 2
        return F.linear(there, wide, self.bias)


class Grouped(Convolution):
    pass


def _with_zero_points(model: Quantised) -> Quantised:
    model.zeros += 1
    return model


MISSED: dict[str, tuple[nn.Module, tuple[int, ...], str, dict[str, Any]]] = {
    "not frozen": (Linear(48, 64), (17, 64), "not frozen: compile with freeze=True", {"how": False}),
    "another input": (Other("input"), (17, 64), "its input is no dequantised tensor.*from aten::sin", {}),
    "another weight": (Other("weight"), (17, 64), "its weight is no dequantised tensor.*from aten::mul", {}),
    "zero points": (_with_zero_points(Linear(48, 64)), (17, 64), "zero points that are not known to be zero", {}),
    "the library": (Linear(48, 64), (17, 64), "or are not to be", {"matmul": "library"}),
    "groups": (Convolution(32, 16, 3, 3, form={"groups": 2}), (1, 32, 6, 6), "in groups", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSED)
def test_what_stops_it_is_told_and_runs_as_it_is(name: str) -> None:
    model, shape, why, options = MISSED[name]
    x = torch.randn(shape)
    with torch.no_grad():
        found, eager = frozen(model.eval(), **options)(x), model(x)
    torch.testing.assert_close(found, eager, rtol=1e-5, atol=1e-4)
    assert products() == 0
    told = [miss for miss in report().near_misses if miss.rule == "quantised_product"]
    assert [miss for miss in told if re.search(why, miss.why) and miss.source], told


def test_without_fuel_nothing_changes() -> None:
    model, x = Linear(48, 64), torch.randn(17, 64)
    with torch.no_grad():
        torch.testing.assert_close(run(model, x, fuel=0), model(x), rtol=1e-5, atol=1e-4)
    assert products() == 0


@torch.no_grad()
def test_zero_points_that_are_zero_no_longer() -> None:
    """What was found out about a constant is looked at again when it changes."""
    model, x = Linear(48, 64).eval(), torch.randn(17, 64)
    run = frozen(model)
    torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-4)
    assert products() == 1
    model.zeros += 3
    with pytest.warns(UserWarning, match=r"zeros was zero when the program was compiled, and is not now"):
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-4)
    model.zeros -= 3
    torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-4)
