"""Scalar operators as a GPU computes them, run on the CPU thread by thread, against their references.

What has no library there is held to more places, against numbers of many digits: those of `mpmath`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

from litz.codegen.llvm import gpu
from litz.codegen.llvm.build import object_of
from litz.codegen.llvm.gpu_math import OWN
from litz.codegen.llvm.writer import Module
from litz.loop.dtype import from_torch, to_torch
from litz.loop.scalar import BOOL, SCALARS, Scalar
from tests.codegen import emulate
from tests.codegen.native import over_each
from tests.codegen.test_scalars import ROWS, SPECIAL, SPECIAL_ROWS, TYPES, arguments, judge

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def on_gpu(name: str, *inputs: torch.Tensor) -> torch.Tensor:
    dtype = from_torch(inputs[-1].dtype) or ""
    program = over_each(inputs, name, "b1" if SCALARS[name].result == BOOL else dtype)
    (kernel,) = program.kernels
    memory = emulate.memory_of(program, inputs, {})
    emulate.run_kernel(kernel, program.buffers, memory, {})
    return memory["y"].clone()


# -- every row --------------------------------------------------------------------------------------
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_samples_and_random_numbers(row: Scalar) -> None:
    for kind in row.kinds:
        for dtype in TYPES[kind]:
            inputs = arguments(row, dtype, 100)
            judge(row, inputs, on_gpu(row.name, *inputs))


@pytest.mark.parametrize("row", SPECIAL_ROWS, ids=lambda row: row.name)
@BOTH
def test_special_values(row: Scalar, dtype: torch.dtype) -> None:
    values = torch.tensor(SPECIAL if dtype == torch.float32 else (*SPECIAL, 1e300, -1e300, 5e-320), dtype=dtype)
    inputs = [values] if row.arity == 1 else [x.contiguous() for x in torch.cartesian_prod(values, values).unbind(1)]
    inputs = [inputs[0] > 0, *inputs] if row.name == "where" else inputs
    found = on_gpu(row.name, *inputs)
    if row.name in ("rsqrt", "sigmoid", "exp2"):  # the hardware's denormal numbers are as good as zeros
        kept = values.abs().ge(torch.finfo(dtype).tiny) | values.eq(0)
        inputs, found = [x[kept] for x in inputs], found[kept]
    judge(row, inputs, found)


@pytest.mark.parametrize("name", ["pow", "atan2", "hypot", "nextafter"])
@BOTH
def test_two_arguments_as_torch(name: str, dtype: torch.dtype) -> None:
    values = torch.tensor([*SPECIAL, 2.0, 3.0, -3.0, 1e5 + 0.5], dtype=dtype)
    left, right = (x.contiguous() for x in torch.cartesian_prod(values, values).unbind(1))
    wanted = getattr(torch, name)(left, right)
    least = 2 * torch.finfo(dtype).smallest_normal if name == "pow" else 0.0  # where CPUs may be less exact
    torch.testing.assert_close(on_gpu(name, left, right), wanted, rtol=1e-6, atol=least, equal_nan=True)


@BOTH
def test_the_sign_of_nothing(dtype: torch.dtype) -> None:
    zeros = torch.tensor([0.0, -0.0], dtype=dtype)
    for name in ("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "expm1", "log1p", "erf"):
        assert on_gpu(name, zeros).signbit().tolist() == [False, True], name


# -- how exact ----------------------------------------------------------------------------------------
def log_gamma(x: Any) -> Any:
    return mpmath.loggamma(x) if x > 0 else mpmath.log(abs(mpmath.gamma(x)))


# Numbers from here to there, and the units in the last place that each function is held to.
HELD: dict[str, tuple[Callable[..., Any], tuple[float, float], float]] = {
    "exp": (mpmath.exp, (-700, 709), 2),
    "exp2": (lambda x: mpmath.mpf(2) ** x, (-1021, 1023), 2),
    "expm1": (mpmath.expm1, (-40, 700), 1.5),
    "log": (mpmath.log, (0, 1e300), 1),
    "log2": (lambda x: mpmath.log(x) / mpmath.log(2), (0, 1e300), 1),
    "log10": (mpmath.log10, (0, 1e300), 1),
    "log1p": (mpmath.log1p, (-1, 1e300), 1),
    "sin": (mpmath.sin, (-1e300, 1e300), 1.5),
    "cos": (mpmath.cos, (-1e300, 1e300), 1.5),
    "tan": (mpmath.tan, (-1e300, 1e300), 2.5),
    "asin": (mpmath.asin, (-1, 1), 2),
    "acos": (mpmath.acos, (-1, 1), 1.5),
    "atan": (mpmath.atan, (-1e300, 1e300), 1.5),
    "sinh": (mpmath.sinh, (-700, 700), 2),
    "cosh": (mpmath.cosh, (-700, 700), 1.5),
    "tanh": (mpmath.tanh, (-30, 30), 2),
    "asinh": (mpmath.asinh, (-1e300, 1e300), 2),
    "acosh": (mpmath.acosh, (1, 1e300), 2),
    "atanh": (mpmath.atanh, (-1, 1), 2),
    "erf": (mpmath.erf, (-7, 7), 2),
    "erfc": (mpmath.erfc, (-7, 26), 4),
    "lgamma": (log_gamma, (1e-300, 1e280), 4),
}


def units_off(function: Callable[..., Any], inputs: list[torch.Tensor], found: torch.Tensor) -> tuple[float, list]:
    """How far off it is at worst, in units of the last place, and where."""
    bits, least = (24, -149) if found.dtype == torch.float32 else (53, -1074)
    most, worst = torch.finfo(found.dtype).max, (0.0, [0.0])
    with mpmath.workprec(1400):  # a large angle takes as many
        for got, *at in zip(found.tolist(), *(x.tolist() for x in inputs), strict=True):
            exact = function(*map(mpmath.mpf, at))
            if abs(exact) > most:
                assert math.isinf(got) or abs(got) == most, f"{at}: {got}"
                continue
            unit = max(int(mpmath.floor(mpmath.log(abs(exact), 2))) - bits + 1, least) if exact else least
            worst = max(worst, (float(abs(mpmath.mpf(got) - exact) / mpmath.mpf(2) ** unit), at))
    return worst


def spread(low: float, high: float, dtype: torch.dtype, count: int = 250) -> torch.Tensor:
    """Numbers between two, evenly and evenly in their exponents, and near one."""
    generator = torch.Generator().manual_seed(0)
    most = torch.finfo(dtype).max / 4
    low, high = max(low, -most), min(high, most)
    share, around = (torch.rand(count, generator=generator, dtype=torch.float64) for _ in range(2))
    sizes = [torch.exp2(share * 2 * reach - reach) for reach in (3, 20, math.log2(max(abs(low), high, 2)))]
    near_one = 1 + (around - 0.5) * torch.exp2(-20 * share)
    numbers = torch.cat([low + (high - low) * around, *sizes, near_one])
    numbers = torch.cat([numbers, -numbers]).to(dtype)
    return numbers[(numbers > low) & (numbers < high)]


@pytest.mark.parametrize("name", HELD)
@BOTH
def test_how_exact(name: str, dtype: torch.dtype) -> None:
    function, (low, high), most = HELD[name]
    x = spread(low, high, dtype)
    off, at = units_off(function, [x], on_gpu(name, x))
    assert off <= most, f"{name}({at}) is {off:.2f} units off"


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@BOTH
def test_angles_near_quarters_of_a_turn(name: str, dtype: torch.dtype) -> None:
    function, _, most = HELD[name]
    x = (torch.arange(1, 200_000, 997, dtype=torch.float64) * (math.pi / 2)).to(dtype)
    x = torch.cat([x, -x, x * 2**20])
    off, at = units_off(function, [x], on_gpu(name, x))
    assert off <= most, f"{name}({at}) is {off:.2f} units off"


@BOTH
def test_powers(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    base, exponent = (torch.randn(500, generator=generator, dtype=torch.float64) for _ in range(2))
    reach = 87 if dtype == torch.float32 else 700
    pairs = [
        (torch.exp(5 * base), exponent.clamp(-1, 1) * reach / (5 * base).abs().clamp(min=1e-3)),
        (1 + 1e-4 * base, 1e5 * exponent),
        (-torch.exp(base), (20 * exponent).round()),
    ]
    for pair in pairs:
        x, y = (part.to(dtype) for part in pair)
        off, at = units_off(mpmath.power, [x, y], on_gpu("pow", x, y))
        assert off <= 2, f"pow({at}) is {off:.2f} units off"


@pytest.mark.parametrize("name", ["atan2", "hypot"])
@BOTH
def test_two_numbers(name: str, dtype: torch.dtype) -> None:
    x = spread(-1e300, 1e300, dtype, 100)
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]
    off, at = units_off(getattr(mpmath, name), [x, y], on_gpu(name, x, y))
    assert off <= 2, f"{name}({at}) is {off:.2f} units off"


@BOTH
def test_log_gamma_of_negative_numbers(dtype: torch.dtype) -> None:
    """Where it is near zero, the difference of two large numbers, its error counts beside one."""
    x = -torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(30).to(dtype)
    found = on_gpu("lgamma", x)
    exact = torch.tensor([float(log_gamma(mpmath.mpf(v))) for v in x.tolist()], dtype=torch.float64)
    off = (found.double() - exact).abs() / exact.abs().clamp(min=1.0) / torch.finfo(dtype).eps
    assert off.max() <= 6
    whole = torch.tensor([-1.0, -2.0, -1e6, 0.0, -0.0], dtype=dtype)
    assert on_gpu("lgamma", whole).eq(math.inf).all()


# -- what the code looks like ---------------------------------------------------------------------------
@pytest.mark.parametrize("name, dtype", [key for key in OWN if key[0] in SCALARS], ids=str)
def test_nothing_is_called_that_no_one_has(name: str, dtype: str) -> None:
    program = over_each([torch.zeros(1 << 18, dtype=to_torch(dtype))] * SCALARS[name].arity, name, dtype)
    module = Module(gpu.DIALECT)
    gpu.render(program.kernels[0], program.buffers, module, "kernel")
    ptx = object_of(f"{gpu.TRIPLE}\n{module.text()}", emulate.gpu_target()).decode()
    assert ".extern" not in ptx and ".local" not in ptx


def test_every_function_is_there() -> None:
    spelled = {name: row.llvm.get("float", "") for name, row in SCALARS.items()}
    wanted = {name for name, spelling in spelled.items() if spelling.startswith("sleef")} | {"asinh", "acosh"}
    wanted_of_doubles = wanted | {"exp", "log", "tanh", "erf"}
    assert {name for name, dtype in OWN if dtype == "f32"} >= wanted
    assert {name for name, dtype in OWN if dtype == "f64"} >= wanted_of_doubles
