"""Corner semantics: Litz does to the bit what eager does where hardware, C and intuition would differ.

One section a subject; each case is a function of tensors that is compiled and compared, signs of zeros included.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.context import Context
from litz.options import Options
from litz.pipeline import compile_function
from litz.target import detect

INF, NAN = math.inf, math.nan


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def compiled(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Any]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strides = [r.stride() for r in flat(function(*inputs))]
        return list(compile_function(function, inputs, strides, Context(Options(verify=True), detect(None)))(*inputs))


def same(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Equal to the bit, up to which NaN it is; same type, shape and strides."""
    with torch.no_grad():
        wanted = flat(function(*inputs))
    found = compiled(function, *inputs)
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
        if want.is_floating_point():
            assert torch.equal(got.isnan(), want.isnan()), (got, want)
            got, want = (
                got.nan_to_num(nan=7.0, posinf=INF, neginf=-INF),
                want.nan_to_num(nan=7.0, posinf=INF, neginf=-INF),
            )
            assert torch.equal(got.signbit(), want.signbit()), (got, want)
        assert torch.equal(got, want), (got, want)


def near(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    found, wanted = compiled(function, *inputs), flat(function(*inputs))
    for got, want in zip(found, wanted, strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, equal_nan=True)


def table(cases: dict[str, Callable[..., Any]]) -> Any:
    return pytest.mark.parametrize("function", cases.values(), ids=cases.keys())


# -- nothing, and a single thing --------------------------------------------------------------
EMPTY = {
    "add": lambda x: x + 1,
    "sum": lambda x: x.sum(),
    "sum-last": lambda x: x.sum(-1),
    "prod": lambda x: x.prod(),
    "mean": lambda x: x.mean(),
    "any": lambda x: (x > 0).any(),
    "all": lambda x: (x > 0).all(-1),
    "softmax": lambda x: x.softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "cat": lambda x: torch.cat([x, x]),
    "clone": lambda x: x.clone(),
    "flip": lambda x: x.flip(-1),
    "sort": lambda x: x.sort(-1),
    "exp": lambda x: x.exp(),
    "reshape": lambda x: x.reshape(-1) * 2,
    "index": lambda x: x[torch.tensor([], dtype=torch.int64)],
    "nansum": lambda x: x.nansum(),
    "var": lambda x: x.var(),
    "logsumexp": lambda x: x.logsumexp(-1),
    "count": lambda x: x.count_nonzero(),
    "where": lambda x: torch.where(x > 0, x, -x),
}


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3)], ids=str)
@table(EMPTY)
def test_zero_size(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    same(function, torch.ones(shape))


def test_a_product_over_nothing_is_zero() -> None:
    same(torch.mm, torch.ones(3, 0), torch.ones(0, 4))
    same(lambda x: x.amax(1), torch.ones(0, 3))


ZERO_DIM = {
    "add": lambda x: x + x,
    "sum": lambda x: x.sum(),
    "sum-0": lambda x: x.sum(0),
    "max": lambda x: x.max(0),
    "argmax": lambda x: x.argmax(),
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(),
    "reshape": lambda x: x.reshape(1, 1) + 1,
    "softmax": lambda x: x.softmax(0),
    "expand": lambda x: x.expand(3) * 2,
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
    "gather": lambda x: x.gather(0, torch.tensor(0)),
}


@table(ZERO_DIM)
def test_zero_dimensional(function: Callable[..., Any]) -> None:
    same(function, torch.tensor(2.5))


# -- broadcasting, expanded and overlapping inputs ---------------------------------------------
def test_broadcasting() -> None:
    a, b, c = torch.randn(5, 1, 7), torch.randn(6, 1), torch.randn(())
    same(lambda a, b, c: a + b * c, a, b, c)
    same(lambda a, b: torch.where(a > 0, a, b), a, b)


EXPANDED = {
    "add": lambda x: x + 1,
    "sum": lambda x: x.sum(0),
    "amax": lambda x: x.amax((0, 1)),
    "mul": lambda x: x * x.t(),
    "argmax": lambda x: x.argmax(0),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
}


@table(EXPANDED)
def test_stride_zero(function: Callable[..., Any]) -> None:
    same(function, torch.arange(6.0).expand(6, 6))
    same(function, torch.arange(6.0).unsqueeze(1).expand(6, 6))
    same(function, torch.tensor(3.0).expand(6, 6))


def test_overlapping_views() -> None:
    base = torch.arange(12.0)
    same(lambda x: x * 2 + 1, base.as_strided((5, 4), (2, 1)))
    same(lambda x: x.sum(1), base.as_strided((9, 4), (1, 1)))
    same(lambda x, y: x - y, base[:-1], base[1:])
    same(lambda x: x.unfold(0, 3, 1) * torch.tensor([1.0, 2.0, 4.0]), base)


def test_channels_last() -> None:
    x = torch.randn(2, 5, 4, 6).to(memory_format=torch.channels_last)
    same(lambda x: x * 2, x)
    same(lambda x: x + x.contiguous(), x)
    same(lambda x: F.max_pool2d(x, 2), x)
    near(lambda x: F.avg_pool2d(x, 2), x)
    near(lambda x, w: F.relu(F.conv2d(x, w, padding=1)), x, torch.randn(7, 5, 3, 3))
    near(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), x)


# -- NaN and infinity -------------------------------------------------------------------------
SPECIAL = torch.tensor([[1.0, NAN, -INF, INF], [INF, 2.0, 3.0, -1.0], [-INF, -INF, NAN, NAN], [0.0, -1.0, 5.0, 5.0]])
ORDER = {
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(0),
    "max-dim": lambda x: x.max(1),
    "min-dim": lambda x: x.min(0),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(0),
    "argmax-all": lambda x: x.argmax(),
    "maximum": lambda x: torch.maximum(x, x.t()),
    "minimum": lambda x: torch.minimum(x, x.t()),
    "fmax": lambda x: torch.fmax(x, x.t()),
    "fmin": lambda x: torch.fmin(x, x.t()),
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp-tensor": lambda x: torch.clamp(x, x.t()),
    "relu": lambda x: x.relu(),
    "sort": lambda x: x.sort(dim=1, stable=True),
    "sort-descending": lambda x: x.sort(dim=1, descending=True, stable=True),
    "topk": lambda x: x.topk(2, 1)[0],
    "compare": lambda x: (x < x.t(), x <= x.t(), x == x.t(), x != x.t()),
    "isnan": lambda x: (x.isnan(), x.isinf(), x.isfinite()),
    "cummax": lambda x: x.cummax(1),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "sign": lambda x: x.sign(),
    "hardtanh": lambda x: F.hardtanh(x),
    "leaky_relu": lambda x: F.leaky_relu(x),
    "max_pool": lambda x: F.max_pool1d(x, 2),
    "nan_to_num": lambda x: x.nan_to_num(),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@table(ORDER)
def test_order_of_nan_and_infinity(function: Callable[..., Any], dtype: torch.dtype) -> None:
    same(function, SPECIAL.to(dtype))
    same(function, SPECIAL.to(dtype).repeat(5, 5))


def test_argmax_is_the_first_of_equals() -> None:
    x = torch.zeros(3, 1000)
    x[0, 700] = x[0, 300] = x[1, 999] = x[2, 0] = 1
    same(lambda x: (x.argmax(1), x.argmin(1), x.argmax(), *x.max(0), *x.max(1)), x)


# -- signed zeros, denormals -------------------------------------------------------------------
ZEROS = torch.tensor([0.0, -0.0, 1.0, -1.0, -0.5, 0.5, 2.5, -2.5] * 5)
SIGNS = {
    "neg": lambda x: -x,
    "abs": lambda x: x.abs(),
    "mul": lambda x: x * 0.0,
    "mul-negative": lambda x: x * -0.0,
    "add": lambda x: x + 0.0,
    "add-negative": lambda x: x + -0.0,
    "sub": lambda x: x - x,
    "div": lambda x: 1.0 / x,
    "sqrt": lambda x: x.sqrt(),
    "floor": lambda x: x.floor(),
    "ceil": lambda x: x.ceil(),
    "trunc": lambda x: x.trunc(),
    "round": lambda x: x.round(),
    "frac": lambda x: x.frac(),
    "fmod": lambda x: x.fmod(1.0),
    "sign": lambda x: x.sign(),
    "remainder": lambda x: x.remainder(1.0),
    "remainder-negative": lambda x: x.remainder(-1.0),
    "signbit": lambda x: x.signbit(),
    "copysign": lambda x: torch.copysign(torch.ones_like(x), x),
    "floor_div": lambda x: x // 2.0,
    "sum": lambda x: x[1:2].sum(),
    "trunc_div": lambda x: torch.div(x, 2.0, rounding_mode="trunc"),
    "where": lambda x: torch.where(x == 0, x, 1.0),
    "clone": lambda x: x.clone(),
    "tanh": lambda x: x[:2].tanh(),
    "sin": lambda x: x[:2].sin(),
    "erf": lambda x: x[:2].erf(),
    "expm1": lambda x: x[:2].expm1(),
    "to-half": lambda x: x.half(),
    "to-bfloat16": lambda x: x.bfloat16(),
    "atan2": lambda x: torch.atan2(x[:2], x[:2].flip(0)),
    "rsqrt": lambda x: x[:2].rsqrt(),
    "reciprocal": lambda x: x.reciprocal(),
    "log1p": lambda x: x[:2].log1p(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@table(SIGNS)
def test_signed_zeros(function: Callable[..., Any], dtype: torch.dtype) -> None:
    same(function, ZEROS.to(dtype))


DENORMAL = {
    "add": lambda x: x + x,
    "mul": lambda x: x * 0.5,
    "div": lambda x: x / 2.0,
    "neg": lambda x: -x,
    "sum": lambda x: x.sum(),
    "max": lambda x: x.amax(),
    "compare": lambda x: (x > 0, x == 0),
    "sqrt": lambda x: x.sqrt(),
    "to-double": lambda x: x.double(),
    "reciprocal": lambda x: x.reciprocal(),
    "bool": lambda x: x.bool(),
    "sign": lambda x: x.sign(),
    "abs": lambda x: x.abs(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@table(DENORMAL)
def test_denormals(function: Callable[..., Any], dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    steps = torch.arange(-16, 17, dtype=torch.float64)
    same(function, (steps * tiny / 16).to(dtype))


def test_results_may_be_denormal() -> None:
    x = torch.linspace(-104, -80, 97)
    near(torch.exp, x)
    assert compiled(torch.exp, x)[0].gt(0).sum() == torch.exp(x).gt(0).sum()
    near(torch.log, torch.tensor([1e-45, 1e-40, 1e-38, 1.0]))


# -- whole numbers ----------------------------------------------------------------------------
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
OVERFLOW = {
    "add": lambda x: x + 1,
    "sub": lambda x: x - 1,
    "mul": lambda x: x * x,
    "neg": lambda x: -x,
    "abs": lambda x: x.abs(),
    "sum": lambda x: x.sum(),
    "prod": lambda x: x.prod(),
    "pow": lambda x: x**3,
    "cumsum": lambda x: x.cumsum(0),
    "add-large": lambda x: x + 100,
    "square": lambda x: x.square(),
    "dot": lambda x: (x * x).sum(),
    "not": lambda x: ~x,
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@table(OVERFLOW)
def test_integers_wrap_around(function: Callable[..., Any], dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    same(function, torch.tensor([info.max, info.min, info.max - 1, info.min + 1, 1, 0, 77] * 5, dtype=dtype))


DIVISION = {
    "floor": lambda a, b: a // b,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "true": lambda a, b: a / b,
    "remainder": lambda a, b: a % b,
    "fmod": torch.fmod,
    "floor-number": lambda a, b: a // 7,
    "remainder-number": lambda a, b: a % -3,
    "trunc-number": lambda a, b: torch.div(a, -4, rounding_mode="trunc"),
    "fmod-number": lambda a, b: torch.fmod(a, 5),
}


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float32, torch.float64, torch.bfloat16], ids=str)
@table(DIVISION)
def test_division(function: Callable[..., Any], dtype: torch.dtype) -> None:
    if dtype is torch.uint8:
        function = (
            DIVISION["floor"] if function in (DIVISION["remainder-number"], DIVISION["trunc-number"]) else function
        )
    info = torch.iinfo(dtype) if dtype in INTEGERS else torch.finfo(dtype)
    some = [info.max, 7, 1, 3, 100] + ([info.min, -7, -1, -3] if dtype is not torch.uint8 else [])
    pairs = torch.cartesian_prod(torch.arange(len(some)), torch.arange(len(some)))
    values = torch.tensor(some, dtype=dtype)
    a, b = values[pairs[:, 0]], values[pairs[:, 1]]
    if dtype in INTEGERS:
        keep = ~((a == info.min) & (b == torch.tensor(-1).to(dtype)) & (info.min < 0))  # undefined in C, and in eager
        a, b = a[keep], b[keep]
    else:
        b = torch.cat([b, torch.tensor([0.0, -0.0, INF, -INF, NAN]).to(dtype)])
        a = torch.cat([a, torch.tensor([1.0, 1.0, 3.0, -3.0, 2.0]).to(dtype)])
    same(function, a, b)


def test_the_least_number_divided_by_minus_one_does_not_kill_the_process() -> None:
    a = torch.full((9,), torch.iinfo(torch.int64).min)
    compiled(lambda a, b: (a * 1, torch.div(a + 1, b, rounding_mode="floor")), a, torch.full((9,), -1))


@pytest.mark.parametrize("name", ["floor", "trunc", "remainder", "fmod"])
def test_whole_division_by_zero_is_the_error_of_eager(name: str) -> None:
    a, b = torch.arange(40), torch.ones(40, dtype=torch.int64)
    run = compile_function(DIVISION[name], (a, b), None, Context(Options(), detect(None)))
    b[33] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError") as eager:
        DIVISION[name](a, b)
    with pytest.raises(RuntimeError, match="ZeroDivisionError") as ours:
        run(a, b)
    assert type(ours.value) is type(eager.value)
    b[33] = 2
    assert torch.equal(run(a, b)[0], DIVISION[name](a, b))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_past_the_width(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    values = torch.tensor([info.max, info.min, 1, 3, 77], dtype=dtype)
    amounts = torch.tensor([0, 1, info.bits - 1, info.bits, info.bits + 1, 100], dtype=dtype)
    a, b = values.repeat_interleave(len(amounts)), amounts.repeat(len(values))
    same(lambda a, b: (a << b, a >> b), a, b)
    same(lambda a: (a << 70, a >> 70, a << 3, a >> 3), values)


# -- booleans ---------------------------------------------------------------------------------
BOOLEAN = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "and-or-xor": lambda a, b: (a & b, a | b, a ^ b, ~a),
    "sum": lambda a, b: a.sum(),
    "add-number": lambda a, b: a + 1,
    "add-float": lambda a, b: a + 1.5,
    "max": lambda a, b: a.amax(),
    "cumsum": lambda a, b: a.cumsum(0),
    "compare": lambda a, b: (a < b, a <= b, a == b),
    "any-all": lambda a, b: (a.any(), a.all()),
    "where": lambda a, b: torch.where(a, b, ~b),
    "float": lambda a, b: a.float() - b.float(),
    "mean": lambda a, b: a.float().mean(),
    "argmax": lambda a, b: a.int().argmax(),
    "maximum": torch.maximum,
    "prod": lambda a, b: a.prod(),
    "true-div": lambda a, b: a / b,
    "logical": lambda a, b: (torch.logical_and(a, b), torch.logical_xor(a, b)),
    "masked": lambda a, b: a.masked_fill(b, True),
}


@table(BOOLEAN)
def test_booleans(function: Callable[..., Any]) -> None:
    same(function, torch.tensor([True, False, True, False] * 9), torch.tensor([True, True, False, False] * 9))


def test_a_byte_that_is_not_one_is_true() -> None:
    odd = torch.tensor([0, 1, 2, 255] * 9, dtype=torch.uint8).view(torch.bool)
    same(lambda x: (x.sum(), x | False, ~x, torch.where(x, 1.0, 2.0)), odd)


def test_subtracting_booleans_is_the_error_of_eager() -> None:
    a = torch.tensor([True])
    with pytest.raises(RuntimeError, match="Subtraction"):
        torch.compile(lambda a: a - a, backend="litz")(a)


# -- type promotion ---------------------------------------------------------------------------
ALL = [torch.float32, torch.float64, torch.bfloat16, torch.float16, *INTEGERS, torch.bool]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_promotion_with_python_numbers(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1, 0, 1], dtype=dtype)
    same(lambda x: (x + 1, x + 1.5, x * True, x / 2, 2 - x.float(), x == 1.5, x > 0.5, torch.where(x > 0, x, 2)), x)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("other", ALL, ids=str)
def test_promotion_with_tensors(dtype: torch.dtype, other: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1, 0, 1, 3], dtype=dtype)
    dimensionless, full = torch.tensor(2, dtype=other), torch.tensor([1, 1, 2, 5, 7, 1], dtype=other)
    same(
        lambda x, y, z: (x + y, y * x, x + z, torch.maximum(x, z), x < y, z == x, torch.where(x > 0, y, z)),
        x,
        dimensionless,
        full,
    )


# -- large ------------------------------------------------------------------------------------
def test_indices_past_32_bits() -> None:
    far = 1 << 31
    big = torch.empty(far + 4096, dtype=torch.uint8)  # only the pages that are touched exist
    big[:64], big[far : far + 64] = torch.arange(64), torch.arange(100, 164)
    same(lambda x: x + 1, big.as_strided((2, 64), (far, 1)))
    same(lambda x: x.sum(0), big.as_strided((2, 64), (far, 1)))
    same(lambda x: x + 1, big.as_strided((64, 2), (1, far)))
    same(lambda x: x * 2, big[far:][:64])
    same(lambda x, i: x[i], big, torch.tensor([3, far + 5, -4096 + 7]))
    same(lambda x, i: x.index_select(0, i) + 1, big, torch.tensor([3, far + 5]))
    step = 1 << 27
    for place in range(16):
        big[place * step] = place
    same(lambda x: x + 1, big.as_strided((17,), (step,)))


def test_more_than_32_bits_of_elements() -> None:
    x = torch.ones(1, 1, dtype=torch.int8).expand(1 << 16, (1 << 15) + 1)
    assert x.numel() > 1 << 31
    function = lambda x: (x.sum(dtype=torch.int64), x[-1, -1] + 1)  # noqa: E731
    with torch.no_grad():  # eager, which takes half a minute for it, is not asked
        found = compile_function(function, [x], [(), ()], Context(Options(verify=True), detect(None)))(x)
    assert [int(f) for f in found] == [x.numel(), 2]


# -- targets that end before their row does -----------------------------------------------------
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_what_follows_the_end_of_the_targets_is_none(reduction: str) -> None:
    rows = torch.tensor([[0, -1, 1, 2, 3], [3, 1, 4, -1, 0], [-1, 0, 0, 0, 0], [4, 0, 1, 3, 2]])
    near(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), torch.randn(4, 5), rows)
    if reduction != "none":  # then the fake of a single row has another shape than eager's result
        near(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), torch.randn(5), rows[1])


def test_what_torch_takes_apart_otherwise_than_eager_computes_it() -> None:
    torch._dynamo.reset()
    cases = (
        (lambda x, y: torch.bucketize(x, y), torch.randn(3), torch.empty(0)),
        (lambda x, y: F.multilabel_margin_loss(x, y, reduction="none"), torch.randn(3), torch.tensor([1, -1, 0])),
    )
    for function, *inputs in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # their fakes are wrong too, which shows when they are called
            found, want = torch.compile(function, backend="litz")(*inputs), function(*inputs)
        assert found.dtype is want.dtype and found.shape == want.shape
        torch.testing.assert_close(found, want)


# -- long sums --------------------------------------------------------------------------------
LONG = {
    "all": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "rows": lambda x: x.view(-1, 1 << 20).sum(1),
    "columns": lambda x: x.view(1 << 18, -1).sum(0),
    "transposed": lambda x: x.view(1 << 11, -1).t().sum(),
    "odd": lambda x: x[:4194301].sum(),
    "odd-rows": lambda x: x[: 3 * 1398101].view(3, -1).sum(1),
    "norm": lambda x: x.norm(),
    "var": lambda x: x.var(),
    "dot": lambda x: (x * x).sum(),
    "many-rows": lambda x: x.view(64, -1).sum(1),
}


@pytest.mark.parametrize("kind", ["uniform", "tenths", "normal"])
@table(LONG)
def test_sums_of_millions_are_as_good_as_eagers(function: Callable[..., Any], kind: str) -> None:
    torch.manual_seed(0)
    x = {"uniform": torch.rand, "tenths": lambda n: torch.full((n,), 0.1), "normal": torch.randn}[kind](1 << 22)
    exact = function(x.double())
    (found,), eager = compiled(function, x), function(x)
    scale = exact.abs().clamp(min=1e-6)  # the variance of equal numbers is nothing but rounding
    error, allowed = ((found - exact).abs() / scale).max(), ((eager - exact).abs() / scale).max()
    assert error <= 2 * allowed + 4 * torch.finfo(torch.float32).eps, f"{float(error):.2e}, eager {float(allowed):.2e}"
