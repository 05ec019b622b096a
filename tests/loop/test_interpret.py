"""The interpreter and the scalar operators against torch, which knows nothing of either."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from litz.errors import CallError
from litz.loop.dtype import DTYPES, to_torch
from litz.loop.interpret import interpret
from litz.loop.ir import Program
from litz.loop.parse import parse_program
from litz.loop.scalar import BOOL, SCALARS, Scalar
from litz.loop.verify import verify
from tests.eager_draws import philox4x32
from tests.strategies import arguments, programs


def run(text: str, *inputs: torch.Tensor | int, **sizes: int) -> list:
    program = parse_program(text)
    verify(program)
    return interpret(program, list(inputs), sizes)


SOFTMAX = """
sizes s0
program(x: f32[32*s0]) -> (y: f32[s0, 32], {s0 + 1}, None, 7)
buffer y: f32[32*s0] output
kernel softmax
  for i0 < s0 parallel, r0 < 32 reduce:
    v0: f32 = load x[32*i0 + r0]
    v1: f32 = reduce max v0
    v2: f32 = sub v0, v1
    v3: f32 = exp v2
    v4: f32 = reduce sum v3
    v5: f32 = div v3, v4
    store y[32*i0 + r0] = v5
"""


def test_softmax_with_a_size_from_its_input() -> None:
    x = torch.randn(5, 32)
    y, size, nothing, number = run(SOFTMAX, x)
    torch.testing.assert_close(y, F.softmax(x, -1))
    assert (size, nothing, number) == (6, None, 7)
    torch.testing.assert_close(run(SOFTMAX, x, s0=2)[0], F.softmax(x[:2], -1))


def test_layer_norm_over_two_axes_on_a_transposed_view() -> None:
    text = """
program(x: f32[60], w: f32[12], b: f32[12]) -> (y: f32[5, 3, 4])
buffer y: f32[60] output
kernel layer_norm
  for i0 < 5 parallel, r0 < 3 reduce, r1 < 4 reduce:
    v0: f32 = load x[i0 + 20*r0 + 5*r1]
    v1: f32 = reduce sum v0
    n: f32 = const 12.0
    mean: f32 = div v1, n
    v2: f32 = sub v0, mean
    v3: f32 = mul v2, v2
    v4: f32 = reduce sum v3
    v5: f32 = div v4, n
    eps: f32 = const 1e-05
    v6: f32 = add v5, eps
    v7: f32 = rsqrt v6
    v8: f32 = mul v2, v7
    v9: f32 = load w[4*r0 + r1]
    v10: f32 = load b[4*r0 + r1]
    v11: f32 = fma v8, v9, v10
    store y[12*i0 + 4*r0 + r1] = v11
"""
    x = torch.randn(3, 4, 5).permute(2, 0, 1)
    w, b = torch.randn(3, 4), torch.randn(3, 4)
    torch.testing.assert_close(run(text, x, w, b)[0], F.layer_norm(x, (3, 4), w, b))


GATHER = """
program(ids: i64[6], table: bf16[40]) -> (y: bf16[2, 3, 4])
buffer y: bf16[24] output
kernel embedding
  for i0 < 6 parallel, i1 < 4 parallel:
    v0: i64 = load ids[i0]
    v1: i64 = check v0 < 10
    v2: bf16 = load table[4*v1 + i1]
    store y[4*i0 + i1] = v2
"""


def test_gather() -> None:
    ids, table = torch.randint(-10, 10, (2, 3)), torch.randn(10, 4).bfloat16()
    assert torch.equal(run(GATHER, ids, table)[0], table[ids])


@pytest.mark.parametrize(("wrong", "wrap"), [(10, True), (-11, True), (10, False), (-1, False)])
def test_an_index_out_of_range_raises_as_eager_does(wrong: int, wrap: bool) -> None:
    text = GATHER if wrap else GATHER.replace("check v0", "check 0 <= v0")
    table = torch.randn(10, 4).bfloat16()
    assert torch.equal(run(text, torch.full((2, 3), 9), table)[0], table[torch.full((2, 3), 9)])
    with pytest.raises(IndexError, match="index out of range in self"):
        run(text, torch.full((6,), wrong), table)


def test_matmul_is_a_sum() -> None:
    text = """
program(a: f32[12], b: f32[20]) -> (c: f32[3, 5] stride [1, 3])
buffer c: f32[15] output
kernel mm
  for i0 < 3 parallel, i1 < 5 parallel, r0 < 4 reduce:
    v0: f32 = load a[4*i0 + r0]
    v1: f32 = load b[5*r0 + i1]
    v2: f32 = mul v0, v1
    v3: f32 = reduce sum v2
    store c[i0 + 3*i1] = v3
"""
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    c = run(text, a, b)[0]
    torch.testing.assert_close(c, a @ b)
    assert c.stride() == (1, 3)


def test_padding_by_a_masked_load_in_half_precision() -> None:
    text = """
program(x: f16[4]) -> (y: f16[8])
buffer y: f16[8] output
kernel pad
  for i0 < 8 parallel:
    v0: i64 = index i0 - 2
    lo: i64 = const 0
    hi: i64 = const 4
    v1: b1 = ge v0, lo
    v2: b1 = lt v0, hi
    v3: b1 = and v1, v2
    v4: f16 = load x[i0 - 2] if v3
    store y[i0] = v4
"""
    x = torch.randn(4).half()
    assert torch.equal(run(text, x)[0], F.pad(x, (2, 2)))


def test_bfloat16_is_rounded_after_each_operator() -> None:
    text = """
program(x: bf16[1000]) -> (y: bf16[1000])
buffer y: bf16[1000] output
kernel cube
  for i0 < 1000 parallel:
    v0: bf16 = load x[i0]
    v1: f32 = cast v0
    v2: f32 = mul v1, v1
    v3: bf16 = cast v2
    v4: f32 = cast v3
    v5: f32 = mul v4, v1
    v6: bf16 = cast v5
    store y[i0] = v6
"""
    x = torch.randn(1000).bfloat16()
    assert torch.equal(run(text, x)[0], x * x * x)


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        ("sum", "f64", lambda x: x.sum((1, 2))),
        ("prod", "i64", lambda x: x.prod(2).prod(1)),
        ("max", "f64", lambda x: x.amax((1, 2))),
        ("min", "i64", lambda x: x.amin((1, 2))),
        ("any", "b1", lambda x: x.any(2).any(1)),
        ("all", "b1", lambda x: x.all(2).all(1)),
        ("argmax", "f64", lambda x: x.flatten(1).argmax(1)),
        ("argmin", "i64", lambda x: x.flatten(1).argmin(1)),
    ],
)
def test_reductions(kind: str, dtype: str, expected: Callable) -> None:
    result = "i64" if kind.startswith("arg") else dtype
    text = f"""
program(x: {dtype}[24]) -> (y: {result}[4])
buffer y: {result}[4] output
kernel reduce
  for i0 < 4 parallel, r0 < 3 reduce, r1 < 2 reduce:
    v0: {dtype} = load x[6*i0 + 2*r0 + r1]
    v1: {result} = reduce {kind} v0
    store y[i0] = v1
"""
    x = torch.randint(-2, 3, (4, 3, 2))
    x = x > -2 if dtype == "b1" else x.to(to_torch(dtype))
    torch.testing.assert_close(run(text, x)[0], expected(x))
    if dtype == "f64":
        x[1, 2, 0] = float("nan")
        torch.testing.assert_close(run(text, x)[0], expected(x), equal_nan=True)


def test_a_constant_counts_once_for_each_reduced_step() -> None:
    text = """
program() -> (y: f32[])
buffer y: f32[1] output
kernel count
  for r0 < 3 reduce, r1 < 4 reduce:
    v0: f32 = const 1.0
    v1: f32 = reduce sum v0
    store y[0] = v1
"""
    assert run(text)[0].item() == 12


def test_inputs_are_changed_in_place_where_they_lie() -> None:
    text = """
program(x: f32[8]) -> (x: f32[4] stride [2])
kernel negate
  for i0 < 4 parallel:
    v0: f32 = load x[2*i0]
    v1: f32 = neg v0
    store x[2*i0] = v1
"""
    whole = torch.arange(10.0)
    (y,) = run(text, whole[1:9:2])
    assert whole.tolist() == [0, -1, 2, -3, 4, -5, 6, -7, 8, 9]
    assert y.data_ptr() == whole[1:].data_ptr()


def test_calls() -> None:
    text = """
sizes n
program(a: f32[4*n], b: f32[20]) -> (c: f32[n, 5], m: f32[n], at: i64[n], b: f32[4, 5], o: f32[n, 5])
buffer c: f32[5*n] output
buffer m: f32[n] output
buffer at: i64[n] output
buffer o: f32[5*n] output
call c0 = aten::mm(a: f32[n, 4], b: f32[4, 5]) -> (c: f32[n, 5])
call c1 = aten::max.dim(c: f32[n, 5], 1, False) -> (m: f32[n], at: i64[n])
call c2 = aten::add_.Tensor(b: f32[4, 5], b: f32[4, 5], alpha=2) -> () mutates b why "in place"
call c3 = aten::add.out(c: f32[n, 5], c: f32[n, 5], out=o: f32[n, 5]) -> (o: f32[n, 5])
call c4 = aten::view(o: f32[n, 5], ({5*n},)) -> (None)
"""
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    expected = a @ b
    triple = 3 * b
    c, m, at, changed, o = run(text, a, b)
    torch.testing.assert_close(c, expected)
    assert torch.equal(m, c.max(1).values)
    assert torch.equal(at, c.max(1).indices)
    torch.testing.assert_close(changed, triple)
    torch.testing.assert_close(b, triple)
    torch.testing.assert_close(o, 2 * expected)


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(CallError, match="takes 1 arguments"):
        run(SOFTMAX)
    with pytest.raises(CallError, match="must be a f32 tensor"):
        run(SOFTMAX, torch.ones(32, dtype=torch.int64))
    with pytest.raises(CallError, match="size s0 follows from no input"):
        run(SOFTMAX.replace("x: f32[32*s0]", "x: f32[320]"), torch.ones(320))


@settings(max_examples=50, deadline=None)
@given(programs())
def test_random_programs_run(program: Program) -> None:
    results = interpret(program, list(arguments(program)))
    for view, result in zip(program.outputs, results, strict=True):
        assert result.dtype == to_torch(view.dtype)  # type: ignore[union-attr,attr-defined]


# -- the scalar operators -------------------------------------------------------------------------
def trunc_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def philox(*args: torch.Tensor) -> torch.Tensor:
    def one(seed: int, counter: int, place: int) -> int:
        words = [(n >> shift) & 0xFFFFFFFF for n in (counter, place // 4, seed) for shift in (0, 32)]
        return philox4x32(tuple(words[:4]), (words[4], words[5]))[place % 4]

    flat = zip(*(arg.flatten().tolist() for arg in args), strict=True)
    return torch.tensor([one(*each) for each in flat]).reshape(args[0].shape)


# Where torch has another name for it, or none: every other row is `torch.<name>`.
MEANING: dict[str, Callable] = {
    "floor_div": torch.floor_divide,
    "trunc_div": trunc_div,
    "max": torch.maximum,
    "min": torch.minimum,
    "fma": lambda a, b, c: a * b + c,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "cast": lambda a: a,
    "normal_cdf": torch.special.ndtr,
    "philox": philox,
    "scaleb": lambda a, b: torch.ldexp(a, b.nan_to_num(0).clamp(-5000, 5000).int()) + torch.where(b.isnan(), b, -0.0),
}
SPECIAL = (0.0, -0.0, 1.0, -1.5, 2.5, float("inf"), float("-inf"), float("nan"))


def tensors(samples: tuple[tuple, ...]) -> list[tuple[torch.Tensor, ...]]:
    """Samples that are booleans or integers stay so; numbers are float64."""
    made = []
    for sample in samples:
        wide = [torch.float64 if isinstance(x, float) else None for x in sample]
        made.append(tuple(torch.tensor(x, dtype=dtype) for x, dtype in zip(sample, wide, strict=True)))
    return made


def compare(row: Scalar, args: tuple[torch.Tensor, ...]) -> None:
    expected = MEANING.get(row.name, getattr(torch, row.name, None))(*args)  # type: ignore[misc]
    with np.errstate(all="ignore"):
        found = torch.as_tensor(np.asarray(row.reference(*(arg.numpy() for arg in args))))
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-300, equal_nan=True, msg=lambda m: f"{args}: {m}")
    if found.dtype.is_floating_point and row.name not in ("copysign", "fma"):
        zero = expected == 0
        assert torch.equal(found.signbit() & zero, expected.signbit() & zero), f"{row.name}{args}: the sign of zero"
    if row.result == BOOL:
        assert found.dtype == torch.bool


@pytest.mark.parametrize("row", SCALARS.values(), ids=lambda row: row.name)
def test_reference_on_its_samples(row: Scalar) -> None:
    assert row.samples, f"{row.name} has no samples"
    for args in tensors(row.samples):
        assert len(args) == row.arity
        compare(row, args)


@pytest.mark.parametrize(
    "row", [r for r in SCALARS.values() if "float" in r.kinds and r.arity < 3], ids=lambda r: r.name
)
def test_reference_on_special_numbers(row: Scalar) -> None:
    numbers = torch.tensor(SPECIAL, dtype=torch.float64)
    compare(row, tuple(torch.meshgrid(*[numbers] * row.arity, indexing="ij")))


@pytest.mark.parametrize("dtype", ["i64", "i32", "u8", "b1"])
@pytest.mark.parametrize("row", SCALARS.values(), ids=lambda row: row.name)
def test_reference_on_integers_and_booleans(row: Scalar, dtype: str) -> None:
    if DTYPES[dtype].kind not in row.kinds or row.name == "where":
        return
    limits = () if dtype == "b1" else (torch.iinfo(to_torch(dtype)).min, torch.iinfo(to_torch(dtype)).max)
    numbers = torch.tensor([n for n in (0, 1, 2, 7, -1, -6, *limits) if dtype not in ("u8", "b1") or n >= 0])
    args = torch.meshgrid(*[numbers.to(to_torch(dtype))] * row.arity, indexing="ij")
    if row.name in ("floor_div", "trunc_div", "remainder", "fmod"):
        # Division by zero raises in eager, and the least number by -1 overflows.
        sound = (args[1] != 0) & ~((args[1] == -1) & (args[0] < -100))
        args = tuple(arg[sound] for arg in args)
    compare(row, tuple(args))
