"""Scatters, scans and functions that are generated for a GPU, run on one, against eager and float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import litz

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine")

HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, torch.float64, *HALVES)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
NAN, INF = float("nan"), float("inf")


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if not dtype.is_floating_point:
        return torch.randint(0, 9, shape, device="cuda").to(dtype)
    return torch.randn(*shape, device="cuda").to(dtype)


def places(limit: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, limit, shape, device="cuda")


def generated(function: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> tuple[torch.Tensor, ...]:
    """The results, of kernels alone."""
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(function, backend="litz", dynamic=dynamic)(*args)
    report = litz.last_report()
    assert report.left_to_eager is None and not report.fallbacks, (report.left_to_eager, report.fallbacks)
    return found if isinstance(found, tuple) else (found,)


def agrees(function: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> None:
    """Litz's error, against float64, is at most twice eager's; whole numbers are the same."""
    found = generated(function, *args, dynamic=dynamic)
    wanted = function(*args)
    exact = function(*(a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in args))
    triples = zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted, exact)), strict=True)
    for got, eager, right in triples:
        assert (got.shape, got.dtype, got.stride()) == (eager.shape, eager.dtype, eager.stride())
        if not got.dtype.is_floating_point:
            assert torch.equal(got, eager)
            continue
        assert torch.equal(got.isnan(), eager.isnan()) and torch.equal(got.isinf(), eager.isinf())
        errors = [float((x.double() - right.double()).nan_to_num(0.0, 0.0, 0.0).abs().max()) for x in (got, eager)]
        floor = 2 * torch.finfo(got.dtype).eps * float(right.double().nan_to_num(0.0, 0.0, 0.0).abs().max())
        assert errors[0] <= 2 * errors[1] + floor, errors


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# -- scatters -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=str)
@pytest.mark.parametrize("columns", [1, 33, 64, 768])
def test_sums_at_places(columns: int, dtype: torch.dtype) -> None:
    x, index, source = numbers(50, columns, dtype=dtype), places(50, 700), numbers(700, columns, dtype=dtype)
    agrees(lambda x, i, s: x.index_add(0, i, s), x, index, source)
    agrees(lambda x, i, s: torch.index_put(x, (i,), s, True), x, index - 50, source)
    agrees(lambda x, i, s: x.scatter_add(0, i, s), x, places(50, 700, columns), source)
    turned = x.t().contiguous(), places(50, columns, 700), source.t().contiguous()
    agrees(lambda x, i, s: x.scatter_add(1, i, s), *turned)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("whole", [True, False])
def test_scatter_reduce(whole: bool, reduce: str, dtype: torch.dtype) -> None:
    x, index, source = numbers(50, 65, dtype=dtype), places(50, 300, 65), numbers(300, 65, dtype=dtype)
    if reduce == "prod":
        source = source.sign() if dtype.is_floating_point else source.clamp(max=1)
    agrees(lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=whole), x, index, source)


def test_extrema_of_what_is_no_number() -> None:
    x = torch.tensor([0.0, NAN, -INF, 1.0, -0.0], device="cuda")
    source = torch.tensor([NAN, 5.0, 1.0, -1.0, NAN, INF, -0.0, 0.0, -INF, 2.0], device="cuda")
    index = torch.tensor([0, 1, 2, 3, 3, 0, 4, 4, 2, 1], device="cuda")
    for reduce in ("amax", "amin"):
        agrees(lambda x, i, s, how=reduce: x.scatter_reduce(0, i, s, how), x, index, source)


def test_all_at_one_place() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        source = numbers(10_000, 64, dtype=dtype).abs() % 2
        index = torch.zeros(10_000, dtype=torch.int64, device="cuda")
        if dtype == torch.bfloat16:  # each sum is rounded, and large ones stop growing, as in eager
            source = source[:100]
            index = index[:100]
        agrees(lambda x, i, s: x.index_add(0, i, s), numbers(3, 64, dtype=dtype), index, source)


def test_what_is_put() -> None:
    order = torch.randperm(500, device="cuda")
    agrees(lambda x, i, s: x.scatter(0, i, s), numbers(500), order, numbers(500))
    agrees(lambda x, i, s: x.index_copy(0, i, s), numbers(600, 64), order, numbers(500, 64))
    agrees(lambda x, i, s: torch.index_put(x, (i - 600,), s), numbers(600, 5), order, numbers(500, 5))
    (found,) = generated(lambda x, i, s: x.scatter(0, i, s), numbers(8), order % 5, torch.arange(500.0, device="cuda"))
    assert all(int(order[int(found[place])]) % 5 == place for place in range(5))


def test_nothing_to_put() -> None:
    none = torch.empty(0, dtype=torch.int64, device="cuda")
    agrees(lambda x, i, s: x.index_add(0, i, s) + 1, numbers(5, 3), none, torch.empty(0, 3, device="cuda"))


def test_sizes_that_change() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, i, s: x.index_add(0, i, s * 2).cumsum(1), backend="litz", dynamic=True)
    for rows, count, columns in ((30, 100, 64), (31, 1000, 33), (200, 17, 2500)):
        args = numbers(rows, columns), places(rows, count), numbers(count, columns)
        wanted = args[0].index_add(0, args[1], args[2] * 2).cumsum(1)
        torch.testing.assert_close(compiled(*args), wanted, rtol=1e-4, atol=1e-3)


def test_what_is_scattered_is_made_where_it_is_scattered() -> None:
    agrees(lambda x, i, s: x.index_add(0, i, (s * 2).relu()), numbers(100, 256), places(100, 5000), numbers(5000, 256))
    agrees(lambda x, i, s: (x.index_add(0, i, s + 1), s + 1), numbers(100, 256), places(100, 5000), numbers(5000, 256))


# -- the backward of an embedding -------------------------------------------------------------------------
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("rows", [50_257, 10])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_embeddings(dtype: torch.dtype, rows: int, padding: int | None) -> None:
    index = places(rows, 8, 512)
    index[0, :200] = 3
    index[3, 5:400] = 7
    weight, tangent = numbers(rows, 768, dtype=dtype), numbers(8, 512, 768, dtype=dtype)

    def gradient(function: Callable[..., Any], weight: torch.Tensor) -> torch.Tensor:
        weight = weight.detach().requires_grad_()
        out = function(index, weight, padding)
        return torch.autograd.grad(out, weight, tangent.to(out.dtype))[0]

    torch._dynamo.reset()
    found = gradient(torch.compile(F.embedding, backend="litz"), weight)
    assert bool(litz.last_report().fallbacks) == (dtype == torch.float32 and rows > 10)
    eager, exact = gradient(F.embedding, weight), gradient(F.embedding, weight.double())
    errors = [float((x.double() - exact).abs().max()) for x in (found, eager)]
    assert errors[0] <= 2 * errors[1] + torch.finfo(dtype).eps * float(exact.abs().max()), errors
    assert torch.equal(found == 0, eager == 0)


# -- when torch is to be deterministic ---------------------------------------------------------------------
@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_deterministic() -> None:
    x, index, source = numbers(50, 64), places(50, 5000), numbers(5000, 64)
    function = lambda x, i, s: x.index_add(0, i, s)  # noqa: E731
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz")
    first = compiled(x, index, source)
    assert any("deterministic" in fallback.why for fallback in litz.last_report().fallbacks)
    assert all(torch.equal(compiled(x, index, source), first) for _ in range(5))
    assert torch.equal(first, function(x, index, source))


# -- scans -------------------------------------------------------------------------------------------------
SCANS: dict[str, Callable[..., Any]] = {
    "cumsum": lambda x, dim: x.cumsum(dim), "cummax": lambda x, dim: tuple(x.cummax(dim)),
    "cummin": lambda x, dim: tuple(x.cummin(dim)), "logcumsumexp": lambda x, dim: x.logcumsumexp(dim),
    "cumprod": lambda x, dim: (1 + x / 100).cumprod(dim),
}  # fmt: skip


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("length", [2, 7, 33, 64, 1000, 4096, 5000, 33_333])
@pytest.mark.parametrize("kind", SCANS)
def test_scans(kind: str, length: int, dim: int) -> None:
    x = numbers(37, length)
    agrees(lambda x: SCANS[kind](x, dim), x if dim else x.t().contiguous())


@pytest.mark.parametrize("dtype", [torch.float64, *HALVES, torch.int64, torch.int32, torch.int8], ids=str)
def test_scans_of_each_type(dtype: torch.dtype) -> None:
    x = numbers(300, 1000, dtype=dtype)
    for dim in (0, 1):
        agrees(lambda x, dim=dim: (x.cumsum(dim), *x.cummax(dim)), x)


def test_scans_of_what_is_no_number() -> None:
    x = torch.tensor([[1, NAN, 3, INF], [-INF] * 4, [INF, -INF, 2, 3], [0.0, -0.0, 0.0, 5.0]], device="cuda")
    for dim in (0, 1):
        agrees(lambda x, dim=dim: (*x.cummax(dim), *x.cummin(dim), x.logcumsumexp(dim), x.cumsum(dim)), x)


def test_what_surrounds_a_scan() -> None:
    agrees(lambda x: (x.exp().cumsum(1) * 2).log() + x, numbers(100, 5000))
    agrees(lambda m: (m.long().cumsum(-1) - 1).clamp(min=0), numbers(64, 2048) > 0)
    assert litz.last_report().kernels == 1


def test_many_columns_and_few() -> None:
    for shape in ((300, 40_000), (20_000, 64), (9000, 3)):
        agrees(lambda x: x.cumsum(0), numbers(*shape))


# -- functions ----------------------------------------------------------------------------------------------
FUNCTIONS: dict[str, tuple[Callable[..., Any], float, float]] = {
    name: (getattr(torch, name), low, high)
    for name, low, high in (
        ("exp", -100, 88), ("exp2", -120, 127), ("expm1", -20, 88), ("log", 0, 1e30), ("log2", 0, 1e30),
        ("log10", 0, 1e30), ("log1p", -1, 1e30), ("sin", -1e30, 1e30), ("cos", -1e30, 1e30), ("tan", -1e30, 1e30),
        ("asin", -1, 1), ("acos", -1, 1), ("atan", -1e30, 1e30), ("sinh", -88, 88), ("cosh", -88, 88),
        ("tanh", -20, 20), ("asinh", -1e30, 1e30), ("acosh", 1, 1e30), ("atanh", -1, 1), ("erf", -6, 6),
        ("erfc", -6, 9), ("lgamma", 0, 1e30), ("sigmoid", -80, 80), ("erfinv", -1, 1), ("digamma", 0, 100),
    )
}  # fmt: skip
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38, 1.0, -1.0, 0.5, -2.5, 88.7, -103.9, 1e5, -3.0)


def spread(low: float, high: float, dtype: torch.dtype) -> torch.Tensor:
    """Numbers between two, evenly and evenly in their exponents, and near one."""
    share, around = (torch.rand(40_000, device="cuda", dtype=torch.float64) for _ in range(2))
    sizes = [torch.exp2(share * 2 * reach - reach) for reach in (3, 20, math.log2(max(abs(low), high, 2)))]
    numbers = torch.cat([low + (high - low) * around, *sizes, 1 + (around - 0.5) * torch.exp2(-20 * share)])
    numbers = torch.cat([numbers, -numbers]).to(dtype)
    return numbers[(numbers > low) & (numbers < high)]


def units(found: torch.Tensor, exact: torch.Tensor) -> float:
    near = exact.to(found.dtype)
    unit = (torch.nextafter(near.abs(), torch.full_like(near, INF)) - near.abs()).double()
    off = (found.double() - exact).abs() / unit
    return float(torch.where(near.isfinite() & found.isfinite(), off, 0.0).max())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, low, high = FUNCTIONS[name]
    x = spread(low, high, torch.float32)
    (found,) = generated(function, x)
    exact = function(x.double())
    assert units(found, exact) <= max(3.0, 2 * units(function(x), exact))
    special = torch.tensor(SPECIAL, device="cuda")
    (got,) = generated(function, special)
    torch.testing.assert_close(got, function(special), rtol=1e-5, atol=1e-37, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("erfinv", "digamma")])
def test_functions_of_doubles(name: str) -> None:
    function, low, high = FUNCTIONS[name]
    x = spread(low, high, torch.float64)
    (found,) = generated(function, x)
    wanted = function(x)
    assert units(found, wanted) <= (64.0 if name == "lgamma" else 8.0)  # eager's own errors are in it


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_functions_of_two_numbers(dtype: torch.dtype) -> None:
    special = torch.tensor(SPECIAL, device="cuda", dtype=dtype)
    left, right = (x.contiguous() for x in torch.cartesian_prod(special, special).unbind(1))
    for function in (torch.pow, torch.atan2, torch.hypot):
        (got,) = generated(function, left, right)
        torch.testing.assert_close(got, function(left, right), equal_nan=True)
    base, exponent = torch.exp(4 * numbers(100_000)).to(dtype), numbers(100_000).to(dtype) * 5
    agrees(lambda x, y: (torch.atan2(x, y), torch.hypot(x, y)), base, exponent)
    (found,) = generated(torch.pow, base, exponent)
    torch.testing.assert_close(found, torch.pow(base, exponent))


def test_functions_are_fused() -> None:
    agrees(lambda x: (x.sin() + x.cos().abs().pow(0.3)).log1p().softmax(-1), numbers(200, 1000).bfloat16())
    assert litz.last_report().kernels == 1
