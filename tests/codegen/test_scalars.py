"""Every row of the table of scalar operators, as machine code, against its reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from litz.loop.dtype import DTYPES, from_torch, to_torch
from litz.loop.interpret import interpret
from litz.loop.scalar import BOOL, SCALARS, Scalar
from tests.codegen.native import over_each, run, ulps

LENGTHS = (1, 15, 16, 17, 100)
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38, 1.0, -1.0, 0.5, -2.5, 88.7, -103.9)
# SLEEF promises a unit or so; polynomials here are held to less in `test_polynomials`.
FLOAT_ULPS = 4
# In float64 the reference is no wider than the result: it rounds a product once more, and near a zero of lgamma
# its own error shows (178 units were measured, beside 1.014; in float32 it is less than one).
LOOSE = {"lgamma": 256, "fma": 16}
EXACT = ("add", "sub", "mul", "div", "sqrt", "neg", "max", "min", "nextafter")
TYPES = {"float": ("f32", "f64"), "int": ("i64", "i32", "i16", "i8"), "uint": ("u8",), "bool": ("b1",)}
ROWS = [row for row in SCALARS.values() if row.name != "cast"]


def numbers(dtype: str, length: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == "b1":
        return torch.randint(0, 2, (length,), generator=generator).bool()
    if DTYPES[dtype].kind == "float":
        return (torch.randn(length, generator=generator, dtype=torch.float64) * 3).to(to_torch(dtype))
    low, high = (0, 255) if dtype == "u8" else (-100, 100)
    return torch.randint(low, high, (length,), generator=generator).to(to_torch(dtype))


def arguments(row: Scalar, dtype: str, length: int) -> list[torch.Tensor]:
    types = ["b1"] * (row.name == "where") + [dtype] * (row.arity - (row.name == "where"))
    made = [numbers(t, length, seed) for seed, t in enumerate(types)]
    fitting = [s for s in row.samples if all(_fits(v, t) for v, t in zip(s, types, strict=True))]
    for k, sample in enumerate(fitting[:length]):
        for column, value in zip(made, sample, strict=True):
            column[k] = value
    return made


def _fits(value: object, dtype: str) -> bool:
    kind = DTYPES[dtype].kind
    if kind == "float":
        return not isinstance(value, bool)
    if kind == "bool":
        return isinstance(value, bool)
    limits = torch.iinfo(to_torch(dtype))
    return isinstance(value, int) and not isinstance(value, bool) and limits.min <= value <= limits.max


def compare(row: Scalar, inputs: list[torch.Tensor]) -> None:
    dtype = from_torch(inputs[-1].dtype)
    assert dtype is not None
    result = "b1" if row.result == BOOL else dtype
    program = over_each(inputs, row.name, result)
    (found,) = run(program, inputs)
    judge(row, inputs, found)


def judge(row: Scalar, inputs: list[torch.Tensor], found: torch.Tensor) -> None:
    """Whether `found` is what the row's reference makes of the inputs."""
    result = from_torch(found.dtype) or ""
    if DTYPES[result].kind != "float" or row.name in EXACT:
        (expected,) = interpret(over_each(inputs, row.name, result), inputs)
        assert isinstance(expected, torch.Tensor)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        return
    with np.errstate(all="ignore"):
        wide = [x.double().numpy() if x.is_floating_point() else x.numpy() for x in inputs]
        exact = torch.as_tensor(row.reference(*wide))
    off = ulps(found, exact)
    if row.name == "sigmoid":  # 1 / (1 + exp(-x)): the exponential overflows where the result would be denormal
        off = torch.where((exact < torch.finfo(found.dtype).tiny) & (found == 0), 0.0, off)
    if row.name == "normal_cdf":  # a share of the whole: its error counts beside one
        off = torch.where(exact.isnan(), off, (found.double() - exact).abs() / torch.finfo(found.dtype).eps)
    worst = int(off.nan_to_num(math.inf).argmax())
    at = [x[worst].item() for x in inputs]
    assert off[worst] <= LOOSE.get(row.name, FLOAT_ULPS), f"{row.name}{at} = {found[worst]}, not {exact[worst]}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_samples_and_random_numbers(row: Scalar) -> None:
    for kind in row.kinds:
        for dtype in TYPES[kind]:
            for length in LENGTHS:
                compare(row, arguments(row, dtype, length))


# Divisions are held to torch's answers below; fma takes three arguments.
NO_SPECIAL = {"fma", "remainder", "fmod", "floor_div"}


SPECIAL_ROWS = [row for row in ROWS if "float" in row.kinds and row.name not in NO_SPECIAL]


@pytest.mark.parametrize("row", SPECIAL_ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_special_values(row: Scalar, dtype: str) -> None:
    values = torch.tensor(SPECIAL if dtype == "f32" else (*SPECIAL, 1e300, -1e300), dtype=to_torch(dtype))
    if row.arity == 1:
        compare(row, [values])
        return
    left, right = torch.cartesian_prod(values, values).unbind(1)
    pair = [left.contiguous(), right.contiguous()]
    compare(row, [pair[0] > 0, *pair] if row.name == "where" else pair)


@pytest.mark.parametrize("name", ["pow", "atan2", "remainder", "fmod", "floor_div", "hypot"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_two_arguments_as_torch(name: str, dtype: torch.dtype) -> None:
    """The reference is NumPy's; what a user sees must be torch's."""
    eager = {
        "pow": torch.pow, "atan2": torch.atan2, "remainder": torch.remainder, "fmod": torch.fmod,
        "floor_div": torch.floor_divide, "hypot": torch.hypot,
    }[name]  # fmt: skip
    values = torch.tensor([v for v in SPECIAL if abs(v) != 1e-42 and abs(v) != 3e38], dtype=dtype)
    left, right = (x.contiguous() for x in torch.cartesian_prod(values, values).unbind(1))
    (found,) = run(over_each([left, right], name, from_torch(dtype) or ""), [left, right])
    torch.testing.assert_close(found, eager(left, right), rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_remainders_of_any_numbers(dtype: torch.dtype) -> None:
    """Exact whatever the quotient, which may have thousands of bits: numbers of random bits, and what is denormal."""
    generator, count = torch.Generator().manual_seed(0), 5003
    bits, least = (torch.int32, 1e-40) if dtype is torch.float32 else (torch.int64, 1e-310)

    def anything() -> torch.Tensor:
        limits = torch.iinfo(bits)
        return torch.randint(limits.min, limits.max, (count,), generator=generator, dtype=bits).view(dtype)

    small = torch.randn(count, generator=generator, dtype=dtype) * least
    for pair in ((anything(), anything()), (anything(), small), (small, small.flip(0)), (anything(), small * 0)):
        with np.errstate(all="ignore"):
            expected = torch.from_numpy(np.fmod(*(x.numpy() for x in pair)))
        (found,) = run(over_each(pair, "fmod", from_torch(dtype) or ""), pair)
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
        assert torch.equal(found.isnan(), expected.isnan())
        number = ~expected.isnan()
        assert torch.equal(found[number].signbit(), expected[number].signbit())


@pytest.mark.parametrize("name", ["floor_div", "trunc_div", "remainder", "fmod", "shl", "shr", "abs", "neg"])
@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8", "u8"])
def test_integers_at_their_limits(name: str, dtype: str) -> None:
    row, info = SCALARS[name], torch.iinfo(to_torch(dtype))
    edges = [info.min, info.min + 1, -1 if info.min else 1, 0, 1, 2, 7, info.max - 1, info.max]
    edge = torch.tensor(edges, dtype=to_torch(dtype))
    if row.arity == 1:
        compare(row, [edge])
        return
    left, right = (x.contiguous() for x in torch.cartesian_prod(edge, edge).unbind(1))
    whole = (left == info.min) & (right == -1)  # NumPy has no answer for it; here it only must not end the process
    keep = (right != 0) & ~whole
    run(over_each([left, right], name, dtype), [left, right])
    compare(row, [left[keep].contiguous(), right[keep].contiguous()])


RANGES = {
    "exp": (-103.0, 89.0), "log": (1e-38, 1e38), "tanh": (-10.0, 10.0), "erf": (-5.0, 5.0), "sigmoid": (-87.0, 87.0),
}  # fmt: skip


def dense(low: float, high: float) -> torch.Tensor:
    """Numbers over the whole range, evenly spaced and evenly in their exponents."""
    even = torch.linspace(low, high, 1 << 17, dtype=torch.float64)
    most = max(abs(low), abs(high))
    spread = torch.logspace(-30, math.log10(most), 1 << 16, dtype=torch.float64)
    signed = spread if low >= 0 else torch.cat([spread, -spread])
    return torch.cat([even, signed[(signed >= low) & (signed <= high)]]).float()


@pytest.mark.parametrize("name", RANGES)
def test_polynomials(name: str, record_property) -> None:
    """Written out in the kernel, and so held to the last places over their whole range."""
    x = dense(*RANGES[name])
    (found,) = run(over_each([x], name, "f32"), [x])
    exact = getattr(torch, name)(x.double())
    off = ulps(found, exact)
    normal = exact.abs() >= torch.finfo(torch.float32).tiny
    worst = int(torch.where(normal, off, 0.0).argmax())
    record_property("ulps", float(off[worst]))
    print(f"{name}: {float(off[worst]):.2f} ulp at {float(x[worst])!r}")
    assert off[worst] <= 4, f"{name}({x[worst]!r}) = {found[worst]!r}, not {exact[worst]!r}"
    torch.testing.assert_close(found[~normal].double(), exact[~normal], rtol=0, atol=3e-45)
