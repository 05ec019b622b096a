"""Where wrong numbers hide: memory used again, written in place, read past an end or as another type."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from litz.loop.dtype import DTYPES, to_torch
from litz.loop.interpret import interpret
from litz.loop.parse import parse_program
from litz.schedule.memory import plan_memory
from tests.codegen.compiled import agrees, compiled
from tests.codegen.native import over_each, run


# -- updates of inputs fused with what reads them ------------------------------------------------
def test_an_updated_input_is_not_read_again_by_a_later_pass() -> None:
    def scale_then_softmax(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.softmax(-1)

    def centre_then_shift(x: torch.Tensor) -> torch.Tensor:
        spread = (x - x.mean(-1, keepdim=True)).square().sum(-1)
        x.add_(1)
        return spread

    for size in (5, 50, 300):
        agrees(scale_then_softmax, torch.randn(40, size))
        agrees(centre_then_shift, torch.randn(40, size), atol=1e-3, rtol=1e-4)
        agrees(lambda x: x.copy_(x.softmax(-1)), torch.randn(40, size))
        agrees(lambda x: x.sub_(x.mean(0)).div_(x.std(0)), torch.randn(40, size), rtol=1e-3, atol=1e-4)


def test_an_update_from_elsewhere_in_the_same_input() -> None:
    agrees(lambda x: x.copy_(x.flip(0)), torch.randn(100))
    agrees(lambda x: x.copy_(x.t().clone()), torch.randn(30, 30))
    agrees(lambda x: x[1:].copy_(x[:-1].clone()), torch.randn(100))
    agrees(lambda x, w: x.copy_(x @ w), torch.randn(30, 30), torch.randn(30, 30), atol=1e-4, matmul="generate")
    agrees(lambda x, w: x.add_(x @ w), torch.randn(30, 30), torch.randn(30, 30), atol=1e-4, matmul="generate")
    agrees(lambda x, i: x.copy_(x[i]), torch.randn(50, 3), torch.randperm(50))
    agrees(lambda x: (x[::2].add_(x[1::2]), x.sum()), torch.randn(64))


def test_results_may_take_the_place_of_what_they_are_made_from() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.cumsum(x, 0)  # a step of its own: what comes before must be in memory
            x = x - x.mean(-1, keepdim=True)
            x = torch.sort(x.softmax(-1) * 3, -1).values
        return x

    for size in (3, 50, 200):
        agrees(chain, torch.randn(30, size))


_PRODUCT = """\
program(x: f32[64], w: f32[64]) -> (y: f32[8, 8])
buffer t: f32[64] temp
buffer u: f32[64] temp
buffer y: f32[64] output
kernel first
  for i0 < 64 parallel:
    v0: f32 = load x[i0]
    v1: f32 = neg v0
    store t[i0] = v1
kernel product
  for i0 < 8 parallel, i1 < 8 parallel, r0 < 8 reduce:
    v0: f32 = load SUMMED
    v1: f32 = load w[8*r0 + i1]
    v2: f32 = mul v0, v1
    v3: f32 = reduce sum v2
    v4: f32 = load COMBINED
    v5: f32 = mul v3, v4
    store u[8*i0 + i1] = v5
kernel last
  for i0 < 64 parallel:
    v0: f32 = load u[i0]
    store y[i0] = v0
"""


@pytest.mark.parametrize(
    ("summed", "combined", "over"),
    [
        ("x[8*i0 + r0]", "t[8*i0 + i1]", True),
        ("x[8*i0 + r0]", "t[8*i1 + i0]", False),  # another element, which may not have had its turn
        ("t[8*i0 + r0]", "t[8*i0 + i1]", False),  # other elements take it in
        ("t[8*i0 + r0]", "x[8*i0 + i1]", False),
    ],
)
def test_a_product_lies_over_what_its_sum_is_combined_with(summed: str, combined: str, over: bool) -> None:
    program = parse_program(_PRODUCT.replace("SUMMED", summed).replace("COMBINED", combined))
    spans = [set(span.members) for span in plan_memory(program, sums_first=True).shared]
    assert ({"t", "u"} in spans) == over
    assert {"t", "u"} not in [set(span.members) for span in plan_memory(program).shared]
    inputs = [torch.randn(64), torch.randn(64)]
    (got,), (want,) = run(program, inputs), interpret(program, inputs)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_products_in_place() -> None:
    def gated(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(x @ w) * (x @ u) + x
        return x

    for rows, width in ((3, 5), (17, 33), (64, 64), (50, 130), (200, 100)):
        x, w, u = torch.randn(rows, width), torch.randn(width, width) / width, torch.randn(width, width) / width
        agrees(gated, x, w, u, matmul="generate", rtol=1e-4, atol=1e-4)
        x, w, u = (t.bfloat16() for t in (x, w, u))
        agrees(gated, x, w, u, matmul="generate", rtol=5e-2, atol=5e-2)


# -- operators that return memory of their arguments ---------------------------------------------
def test_a_view_as_another_type_outlives_its_source() -> None:
    def reread(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bits = (x + 1).view(torch.int32)
        other = torch.cumsum(torch.cumsum(x * 3, 0) - 1, 0)
        return bits + 1, other

    agrees(reread, torch.randn(64, 64), rtol=1e-4, atol=1e-4)
    made, _ = compiled(lambda x: (x + 1).view(torch.int32), [torch.zeros(8)])
    (first,) = made(torch.zeros(8))
    kept = first.clone()
    made(torch.ones(8))
    assert torch.equal(first, kept), "the result of a call changed during the next one"


def test_parts_that_alias_without_saying_so() -> None:
    def parts(x: torch.Tensor) -> torch.Tensor:
        a, b = torch.unsafe_chunk(torch.cumsum(x, 0) * 2, 2)
        c = torch.sort(torch.sort(x * 3)[0] * 2 + 1)[0] * 2
        return torch.sort(a)[0] + b + c[:32]

    agrees(parts, torch.randn(64, 64), rtol=1e-4, atol=1e-4)


def test_outputs_stay_what_they_were() -> None:
    """Each call has results of its own, also those of called operators and windows on intermediates."""

    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        ordered = torch.sort(y).values
        return y[1:3], y.t(), ordered, ordered[0], torch.cumsum(y, 0), x.new_zeros(3)

    made, _ = compiled(several, [torch.randn(5, 6)])
    first = made(torch.randn(5, 6))
    kept = [t.clone() for t in first]
    made(torch.randn(5, 6))
    for now, before in zip(first, kept, strict=True):
        assert torch.equal(now, before)


# -- random numbers ---------------------------------------------------------------------------------
def test_draws_come_in_eagers_order() -> None:
    def draws(x: torch.Tensor) -> torch.Tensor:
        p = torch.sigmoid(x)
        coins = torch.bernoulli(p)
        noise = torch.rand(64, 64)
        return coins + noise + p * 2

    x = torch.randn(64, 64)
    made, _ = compiled(draws, [x])
    torch.manual_seed(3)
    wanted = draws(x)
    torch.manual_seed(3)
    torch.testing.assert_close(made(x)[0], wanted)


# -- indices --------------------------------------------------------------------------------------
def test_views_over_views() -> None:
    x = torch.randn(4, 6, 10)
    agrees(lambda x: x.flip(1).reshape(24, 10).t().reshape(-1) * 2, x)
    agrees(lambda x: F.pad(x, (3, -2, 1, 4)).reshape(-1, 11).flip(0) + 1, x)
    agrees(lambda x: x.roll((2, -3), (1, 2)).permute(2, 0, 1).reshape(10, 24).sum(1), x)
    agrees(lambda x: F.pad(x, (2, 2), mode="reflect").reshape(4, -1)[:, ::3] - 1, x)
    agrees(lambda x: torch.cat([x.flip(2), x[:, :, 3:5]], 2).view(-1, 3)[::5], x)
    agrees(lambda x: x.unfold(2, 4, 3).sum(-1), x)
    agrees(lambda x: x.tril(-1) + x.triu(2).transpose(1, 2)[:, :, :6].transpose(1, 2)[:, :6, :1], x)


def test_masked_tails_of_gathers() -> None:
    for size in (1, 15, 17, 100):
        table, index = torch.randn(37, size), torch.randint(-37, 37, (23,))
        agrees(lambda t, i: t[i] * 2, table, index)
        agrees(lambda t, i: t[:, :1].t()[:, i], table, index)
        agrees(lambda t, i: F.embedding(i, t).sum(0), table, index.abs() % 37, atol=1e-4)


def test_the_last_element_is_in_reach_and_the_next_is_not() -> None:
    """Inputs that end where a page of memory may: a vector read past the end would show under a guard, and the
    element after the window must never be written."""
    for length in (1, 15, 17, 31):
        base = torch.full((length + 8,), 7.0)
        made, _ = compiled(lambda x: x.mul_(3), [base[4 : 4 + length]])
        with torch.no_grad():
            made(base[4 : 4 + length])
        assert torch.equal(base[:4], torch.full((4,), 7.0)) and torch.equal(base[4 + length :], torch.full((4,), 7.0))
        assert torch.equal(base[4 : 4 + length], torch.full((length,), 21.0))


def test_gaps_between_elements_are_left_alone() -> None:
    base = torch.zeros(10, 10)
    made, _ = compiled(lambda x: x.add_(1), [base[::2, 1::3]])
    made(base[::2, 1::3])
    wanted = torch.zeros(10, 10)
    wanted[::2, 1::3] += 1
    assert torch.equal(base, wanted)


# -- types -------------------------------------------------------------------------------------------
NUMBERS = {
    "f64": [0.0, -0.0, 1.5, -2.5, 100.0, 1e-3], "f32": [0.0, -0.0, 1.5, -2.5, 100.0, 1e-3],
    "f16": [0.0, -0.0, 1.5, -2.5, 100.0], "bf16": [0.0, -0.0, 1.5, -2.5, 100.0], "b1": [False, True],
    "i64": [0, -1, 100, -100], "i32": [0, -1, 100, -100], "i16": [0, -1, 100, -100], "i8": [0, -1, 100, -100],
    "u8": [0, 1, 200],
}  # fmt: skip


@pytest.mark.parametrize("source", DTYPES)
def test_casts(source: str) -> None:
    for target in DTYPES:
        values = [v for v in NUMBERS[source] if target != "u8" or v >= 0]  # a negative one has no certain value there
        for repeats in (1, 9):
            x = torch.tensor(values * repeats, dtype=to_torch(source))
            (found,) = run(over_each([x], "cast", target), [x])
            torch.testing.assert_close(found, x.to(to_torch(target)), rtol=0, atol=0)
            assert torch.equal(found.float().signbit(), x.to(to_torch(target)).float().signbit())


@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_half_precisions_round_to_even(target: str) -> None:
    x = torch.cat([torch.randn(2000) * 10.0**e for e in range(-42, 39, 3)])
    x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan, 65504.0, 65519.0, 65520.0, 3.4e38])])
    (found,) = run(over_each([x], "cast", target), [x])
    torch.testing.assert_close(found, x.to(to_torch(target)), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_functions_of_other_floats(dtype: torch.dtype) -> None:
    loose = {torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for size in (1, 17, 100):
        x = torch.randn(3, size).to(dtype)
        agrees(lambda x: (F.gelu(x), x.softmax(-1), x.exp(), x.sigmoid()), x, rtol=loose, atol=loose)
        agrees(lambda x: (x.sum(0), x * 2 + 1), x, rtol=loose, atol=loose)


def test_an_argument_is_read_before_a_result_takes_its_place():
    """Fused, the first result is stored before the dying argument is loaded for the second."""

    def function(a, b, c):
        gate = torch.sigmoid(a) * b
        fresh = (c @ c.t()) + 1
        return (gate @ gate.t()) + (fresh * gate).sum(), fresh * b, fresh * a

    a, b, c = (torch.randn(24, 24) for _ in range(3))
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz", options={"verify": True})
    with torch.no_grad():
        for mine, eager in zip(compiled(a, b, c), function(a, b, c), strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)


def test_stores_follow_the_loads_they_may_overwrite():
    program = parse_program(
        """program(x: f32[64], w: f32[64]) -> (y: f32[64], z: f32[64])
buffer t: f32[64] temp
buffer u: f32[64] temp
buffer y: f32[64] output
buffer z: f32[64] output
kernel first
  for i0 < 64 parallel:
    v0: f32 = load x[i0]
    v1: f32 = exp v0
    store t[i0] = v1
kernel both
  for i0 < 64 parallel:
    v0: f32 = load w[i0]
    store u[i0] = v0
    v1: f32 = load t[i0]
    v2: f32 = mul v0, v1
    store y[i0] = v2
kernel last
  for i0 < 64 parallel:
    v0: f32 = load u[i0]
    store z[i0] = v0
"""
    )
    x, w = torch.randn(64), torch.randn(64)
    y, z = run(program, [x, w])
    torch.testing.assert_close(y, x.exp() * w)
    torch.testing.assert_close(z, w)


@pytest.mark.parametrize("wide", [torch.float32, torch.int32, torch.int64])
@pytest.mark.parametrize("narrow", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bfloat16, torch.float16])
def test_values_cut_to_fewer_bits_are_stored_in_as_many(wide: torch.dtype, narrow: torch.dtype) -> None:
    """One live lane is what LLVM stores whole: see `Scope._unforeseen`."""

    def cut(x: torch.Tensor, y: torch.Tensor) -> None:
        x.copy_(y - y.amin(1, keepdim=True))

    for length in (1, 9, 17, 33, 65):
        base, values = torch.full((3 * length + 8,), 7, dtype=narrow), torch.arange(3 * length).reshape(3, -1).to(wide)
        made, _ = compiled(cut, [base[: 3 * length].view(3, -1), values])
        with torch.no_grad():
            made(base[: 3 * length].view(3, -1), values)
        assert torch.equal(base[: 3 * length], torch.arange(length).repeat(3).to(narrow))
        assert torch.equal(base[3 * length :], torch.full((8,), 7, dtype=narrow))
