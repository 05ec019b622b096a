"""Products with weights of 8 bits, as weight-only quantisation spells them: one kernel reads them as they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from litz.compat import torch_version
from tests.freeze.freezing import fired, frozen, report


class Weights(nn.Module):
    """A linear layer as `torchao` traces it."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight = torch.randint(-128, 128, (rows, columns), generator=generator).to(torch.int8)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", torch.rand(rows, 1, generator=generator) / 64)
        self.register_buffer("bias", torch.randn(rows, generator=generator).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = torch.mm(x.reshape(-1, x.shape[-1]), self.weight.t().to(x.dtype))
        product = product * self.scale.to(x.dtype).view(-1)
        return product.view(*x.shape[:-1], -1) + self.bias

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        product = x.double() @ self.weight.double().t()
        return product * self.scale.to(x.dtype).double().view(-1) + self.bias.double()


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(("shape", "how"), [((1, 160), False), ((4, 70), True), ((3, 11, 64), False), ((40, 37), True)])
def test_weights_become_floats_in_registers(shape: tuple[int, ...], how: bool, dtype: torch.dtype) -> None:
    model, x = Weights(70, shape[-1], dtype).eval(), torch.randn(shape).to(dtype)
    found, eager, exact = frozen(model, how, verify=True)(x), model(x), model.exact(x)
    assert (found.dtype, found.shape, found.stride()) == (eager.dtype, eager.shape, eager.stride())
    floor = 4 * torch.finfo(dtype).eps * exact.abs().max()
    assert (found - exact).abs().max() <= 2 * (eager - exact).abs().max() + floor
    assert fired()["int8_weights"] == 1 and not report().calls
    assert report().launches == 1 or not how  # scales that are no constants are cast at each call


class Groups(nn.Module):
    """A weight of numbers of 4 bits, each in 8, with a scale for each group of them, as `torchao` traces it."""

    def __init__(self, rows: int, groups: int, members: int, has_zeros: bool, has_bias: bool):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight = torch.randint(-8, 8, (rows, groups * members), generator=generator).to(torch.int8)
        self.register_buffer("weight", weight)
        self.register_buffer("scales", torch.rand(rows, groups, generator=generator) / 8)
        zeros = torch.randint(-3, 4, (rows, groups), generator=generator).to(torch.int8)
        self.register_buffer("zeros", zeros if has_zeros else None)
        self.register_buffer("bias", torch.randn(rows, generator=generator) if has_bias else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.weight.view(*self.scales.shape, -1).to(x.dtype)
        if self.zeros is not None:
            wide = wide - self.zeros.view(*self.scales.shape, 1).to(x.dtype)
        wide = wide * self.scales.to(x.dtype).view(*self.scales.shape, 1)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return nn.functional.linear(x, wide.view(self.weight.shape), bias)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(
    ("rows", "form"), [(1, (70, 5, 32, True, True)), (4, (33, 3, 20, False, True)), (3, (64, 2, 64, True, False))]
)
def test_groups_become_floats_in_registers(rows: int, form: tuple, dtype: torch.dtype) -> None:
    model = Groups(*form).eval()
    x = torch.randn(rows, form[1] * form[2]).to(dtype)
    found, eager = frozen(model, verify=True)(x), model(x)
    exact = model.double()(x.double())
    floor = 4 * torch.finfo(dtype).eps * exact.abs().max()
    assert (found.dtype, found.stride()) == (eager.dtype, eager.stride())
    assert (found - exact).abs().max() <= 2 * (eager - exact).abs().max() + floor
    assert fired()["int8_groups"] == 1 and not report().calls and report().launches == 1


@torch.no_grad()
def test_many_rows_have_the_weight_made_of_floats() -> None:
    model, x = Groups(64, 2, 32, True, True).eval(), torch.randn(40, 64)
    torch.testing.assert_close(frozen(model)(x), model(x), rtol=1e-5, atol=1e-4)
    assert "int8_groups" not in fired()
    assert any(miss.rule == "int8_groups" and "40 rows" in miss.why for miss in report().near_misses)


@torch.no_grad()
def test_asked_for_the_library_nothing_changes() -> None:
    model, x = Weights(70, 64, torch.float32).eval(), torch.randn(4, 64)
    torch.testing.assert_close(frozen(model, matmul="library")(x), model(x), rtol=1e-5, atol=1e-4)
    assert "int8_weights" not in fired()
    assert any(miss.rule == "int8_weights" and "are not to be" in miss.why for miss in report().near_misses)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_products_of_whole_numbers(dtype: torch.dtype) -> None:
    """`torchao`'s dynamically quantised layers call this operator."""
    if dtype is torch.uint8 and torch_version()[:2] < (2, 13):
        pytest.skip("fakes of torch 2.11 refuse numbers without signs here")
    low = 0 if dtype is torch.uint8 else -128
    x = torch.randint(low, low + 256, (33, 72)).to(dtype)
    y = torch.randint(-128, 128, (48, 72)).to(torch.int8).t()
    run = torch.compile(torch._int_mm, backend="litz")
    assert torch.equal(run(x, y), x.int() @ y.int())
    assert not report().calls
