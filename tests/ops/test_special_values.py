"""Numbers at the edges of their types: infinities, zeros of both signs, NaNs, ties, and what a type does not hold."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import litz

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
T = torch.tensor
EDGES = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -1.9, 127.5, 128.0, -129.0, 255.5, 256.0, 300.0, 32768.0, -32769.0,
    65504.0, 65519.0, 65520.0, 1e5, 2.0**31 - 1, 2.0**31, 2.0**31 + 129, -(2.0**31) - 300, 2.0**32 + 5, 2.0**40 + 77,
    2.0**53, 2.0**62, 2.0**63, -(2.0**63), 1e19, -1e30, 3.4e38, 3.5e38, 1e300, math.inf, -math.inf, math.nan, 5.96e-8,
    2.98e-8, 6.09e-5, 1e-40, 1e-45, 1e-320, 1 + 2**-11, 1 + 2**-11 + 2**-30, 1 + 2**-11 + 2**-40, 1 + 2**-8 + 2**-30,
    1 + 2**-24 + 2**-40, 1 + 3 * 2**-12,
]  # fmt: skip
WHOLE_EDGES = [
    0, 1, -1, 127, 128, -129, 255, 256, -300, 32768, -32769, 65519, 65520, 2049, 2051, 257, 2**24 + 1, 2**31 - 1, 2**31,
    -(2**31), 2**32 + 5, 2**53 + 1, 2**62 + 1, 2**63 - 1, -(2**63),
]  # fmt: skip


def identical(function: Callable, *inputs: torch.Tensor) -> None:
    """The same bits as in eager, but for those of NaNs."""
    torch._dynamo.reset()
    want, got = function(*inputs), litz.compile(function, dynamic=False)(*inputs)
    for a, b in zip(got, want, strict=True) if isinstance(want, list) else ((got, want),):
        assert a.dtype is b.dtype
        same = (a == b) & (a.signbit() == b.signbit())
        same = same | (a.isnan() & b.isnan()) if a.is_floating_point() else same
        wrong = (~same).nonzero()
        assert not len(wrong), (wrong[:4].tolist(), a[~same][:4].tolist(), b[~same][:4].tolist())


@pytest.mark.parametrize("source", [*FLOATS, *WHOLE, torch.bool], ids=str)
def test_conversions(source: torch.dtype) -> None:
    edges = T(EDGES, dtype=torch.float64).to(source) if source.is_floating_point else T(WHOLE_EDGES).to(source)

    def everything(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.to(to) for to in (*FLOATS, *WHOLE, torch.bool)]

    identical(everything, edges.repeat(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_written_out(dtype: torch.dtype) -> None:
    for number in (1 + 2**-11 + 2**-40, 1 + 2**-8 + 2**-40, 60000.01, 1e-8):
        identical(lambda x, v=number: x.masked_fill(x == 0, v), torch.zeros(3, dtype=dtype))
        identical(lambda x, v=number: F.pad(x, (1, 1), value=v), torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_powers(dtype: torch.dtype) -> None:
    x = T([-math.inf, -0.0, 0.0, 4.0, math.inf, -1.0, math.nan], dtype=dtype)
    for exponent in (0.5, -0.5, 2, 3, -1, -2, 1.5, 0, math.inf):
        identical(lambda x, e=exponent: x**e, x)


def test_neighbours_of_every_bfloat16() -> None:
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
    for towards in (math.inf, -math.inf, 0.0, 1.0, math.nan):
        identical(torch.nextafter, x, torch.full_like(x, towards))
    identical(torch.nextafter, x, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("total", [torch.sum, torch.nansum, torch.mean, torch.prod], ids=lambda f: f.__name__)
def test_elements_are_rounded_before_they_are_added_up(total: Callable, dtype: torch.dtype) -> None:
    for x in (T([2049, 2049, 2049]), T([1e5, -1e5, 1.0]), T([1.7, 2.7, -1.2]), T([1.7, 2.7, -1.2]).double()):
        if x.is_floating_point() or total is not torch.mean:
            identical(lambda x: total(x, dtype=dtype), x)
            identical(lambda x: total(x, 0, dtype=dtype), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_slopes_of_what_is_certain(dtype: torch.dtype) -> None:
    x, y = T([0.1, 0.9, 0.0, 1.0, 1.0], dtype=dtype), T([0.0, 1.0, 0.5, 1.0, 0.0], dtype=dtype)

    def slope(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.binary_cross_entropy_backward(torch.ones_like(x), x, y, None, 0)

    torch.testing.assert_close(litz.compile(slope)(x, y), slope(x, y), equal_nan=True)


def test_what_comes_after_the_last_bag() -> None:
    weight, offsets = torch.randn(7, 5).bfloat16(), T([0, 3, 3, 8])
    index = torch.arange(10) % 7
    for mode in ("sum", "max"):

        def bags(w: torch.Tensor, i: torch.Tensor, o: torch.Tensor, mode: str = mode) -> torch.Tensor:
            return F.embedding_bag(i, w, o, mode=mode, include_last_offset=True)

        torch.testing.assert_close(litz.compile(bags)(weight, index, offsets), bags(weight, index, offsets))


def _with_nans(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    return x.masked_fill(torch.rand(*shape, generator=torch.Generator().manual_seed(4)) < 0.3, math.nan)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_of_several_nans_a_window_takes_the_last(dtype: torch.dtype) -> None:
    for x in (_with_nans(2, 3, 9, 11, dtype=dtype), _with_nans(1, 2, 64, 64, dtype=dtype)):
        for given in (x, x.to(memory_format=torch.channels_last)):
            identical(lambda x: list(F.max_pool2d(x, 3, 2, 1, return_indices=True)), given)
            identical(lambda x: list(F.adaptive_max_pool2d(x, 1, return_indices=True)), given)
            identical(lambda x: list(F.adaptive_max_pool2d(x, 4, return_indices=True)), given)
    line, cube = _with_nans(2, 3, 50, dtype=dtype), _with_nans(2, 2, 7, 6, 9, dtype=dtype)
    identical(lambda x: list(F.max_pool1d(x, 3, 2, 1, return_indices=True)), line)
    identical(lambda x: list(F.adaptive_max_pool1d(x, 3, return_indices=True)), line)
    identical(lambda x: list(F.max_pool3d(x, 2, 1, return_indices=True)), cube)
    identical(lambda x: [*x.max(2), *x.min(2), x.argmax(1), x.argmin(0)], line)  # and these the first


def test_the_gradient_of_a_window_of_nans_goes_where_eagers_goes() -> None:
    x = _with_nans(2, 3, 9, 9, dtype=torch.float32)

    def slope(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(F.max_pool2d(x, 3, 2, 1).sum(), x)[0]

    mine = x.clone().requires_grad_()
    litz.compile(lambda x: F.max_pool2d(x, 3, 2, 1), dynamic=False)(mine).sum().backward()
    assert torch.equal(mine.grad, slope(x.requires_grad_()))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bounds_that_are_no_numbers(dtype: torch.dtype) -> None:
    def bounded(x: torch.Tensor) -> list[torch.Tensor]:
        alone = [x.clamp(min=math.nan), x.clamp(max=math.nan), x.clamp_min(math.nan), x.clamp_max(math.nan)]
        return [*alone, x.clamp(math.nan, 1.0), x.clamp(-1.0, math.nan), x.clamp(min=T(math.nan, dtype=x.dtype))]

    identical(bounded, T([-2.0, -0.0, 0.5, math.inf, math.nan], dtype=dtype))
