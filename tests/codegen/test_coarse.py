"""What is rounded to 16 bits in any case: which values, how exact they are, over every number of the types, and how
their formulas are shortened."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from litz.codegen.coarse import coarse_values
from litz.codegen.drop_roundings import drop_roundings
from litz.codegen.llvm import gpu
from litz.codegen.llvm.build import object_of
from litz.codegen.llvm.writer import Module
from litz.codegen.shorten import shorten
from litz.loop.interpret import interpret
from litz.loop.ir import Kernel, Program
from litz.loop.parse import parse_program
from litz.loop.text import print_kernel
from litz.loop.verify import verify
from tests.codegen import emulate
from tests.codegen.gpu_programs import compile_for_gpu

Function = Callable[[torch.Tensor], torch.Tensor]
BOTH = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


# -- how exact --------------------------------------------------------------------------------------
def every(dtype: torch.dtype) -> torch.Tensor:
    """All numbers of 16 bits, and what is none."""
    return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)


def on_gpu(function: Function, x: torch.Tensor) -> torch.Tensor:
    program, given = emulate.program_of(function, [x])
    (kernel,) = program.kernels
    memory = emulate.memory_of(program, given, {})
    emulate.run_kernel(kernel, program.buffers, memory, {})
    return memory[kernel.writes[0]].clone()


def units_off(function: Function, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How far off each result is, in units of its last place, and in all."""
    found, exact = on_gpu(function, x), function(x.double())
    # A result is no number, or infinite, where it should be; or where rounding it makes it so.
    assert torch.equal(found.isnan(), exact.isnan())
    assert torch.equal(found.isinf(), exact.to(x.dtype).isinf())
    info = torch.finfo(x.dtype)
    unit = torch.exp2(torch.frexp(exact.abs().clamp(min=info.tiny, max=info.max)).exponent.double() - 1) * info.eps
    off = (found.double() - exact).abs().nan_to_num(0.0, 0.0)
    return off / unit, off


def silu_backward(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.silu_backward(torch.ones_like(x), x)


def gelu_backward(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(torch.ones_like(x), x)


NEARLY_EXACT: dict[str, Function] = {
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "silu": F.silu, "silu_backward": silu_backward,
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", NEARLY_EXACT)
def test_as_good_as_rounded(name: str, dtype: torch.dtype) -> None:
    x = every(dtype)
    x = x[~(x.abs() > 80)]  # silu of what is far below zero is less than the least number
    off, _ = units_off(NEARLY_EXACT[name], x)
    assert off.max() <= 0.51


def test_gelu_of_bfloat16() -> None:
    """Half a unit is lost by rounding. Where the result is less than a millionth it may be a hundredth more or less,
    and where it is less than 2^-24, anything as small."""
    x = every(torch.bfloat16)
    units, off = units_off(F.gelu, x)
    for low, high, most in ((0.0, math.inf, 0.6), (-4.0, 0.0, 0.7), (-5.0, -4.0, 2.5), (-5.65, -5.0, 4.5)):
        within = units[(x >= low) & (x <= high)].max()
        assert within <= most, f"{within} units between {low} and {high}"
    assert off[x < -5.65].max() < 2.0**-26


def test_gelu_of_float16() -> None:
    x = every(torch.float16)
    units, off = units_off(F.gelu, x)
    assert units[x > -5.65].max() <= 0.6 and off[x < -5.65].max() < 2.0**-24


@pytest.mark.parametrize("dtype, more", [(torch.bfloat16, 2.0**-11.5), (torch.float16, 2.0**-16)], ids=str)
def test_derivative_of_gelu(dtype: torch.dtype, more: float) -> None:
    """It is a sum of two numbers, of which little is left near -3/4: so much it may be off, beside half a unit."""
    x = every(dtype)
    units, off = units_off(gelu_backward, x[~x.isinf()])
    lost = (off / units).nan_to_num(0.0) / 2  # by rounding
    assert (off - lost).max() <= more
    assert off[x[~x.isinf()] < -5].max() < 2.0**-18


def test_a_share_times_a_constant() -> None:
    """In one kernel it is rounded once, where eager rounds twice."""
    x = every(torch.bfloat16)
    units, _ = units_off(lambda x: torch.sigmoid(x) * 3, x[~(x.abs() > 80)])
    assert units.max() <= 0.51


# -- roundings --------------------------------------------------------------------------------------
KERNEL = """program(x: bf16[64], y: bf16[64]) -> (z: {result}[64])
buffer z: {result}[64] output
kernel k
  for i0 < 64 parallel:
    v0: bf16 = load x[i0]
    v1: f32 = cast v0
    v2: bf16 = load y[i0]
    v3: f32 = cast v2
    v4: f32 = mul v1, v3
    v5: {rounded} = cast v4
    v6: f32 = cast v5
{rest}
    store z[i0] = v9
"""
RESTS = {
    "a factor": ("v7: f32 = mul v6, v3", "v9: bf16 = cast v7"),
    "a function": ("v7: f32 = tanh v6", "v9: bf16 = cast v7"),
    "far from an edge": ("v7: f32 = neg v6", "v8: f32 = exp v7", "v9: bf16 = cast v8"),
    "a sum": ("v7: f32 = add v6, v1", "v9: bf16 = cast v7"),
    "what was lost": ("v7: f32 = mul v6, v4", "v9: bf16 = cast v7"),
    "an edge": ("v7: f32 = mul v6, v6", "v8: f32 = acos v7", "v9: bf16 = cast v8"),
    "a step": ("v7: f32 = floor v6", "v9: bf16 = cast v7"),
    "compared": ("v7: b1 = lt v6, v1", "v8: f32 = where v7, v6, v1", "v9: bf16 = cast v8"),
    "compared later": (
        "v7: f32 = mul v6, v6", "v8: bf16 = cast v7", "v10: f32 = cast v8", "v11: b1 = lt v10, v1",
        "v12: f32 = where v11, v1, v3", "v9: bf16 = cast v12",
    ),
}  # fmt: skip
DROPPED = ("a factor", "a function", "far from an edge")


def kernel_of(rest: tuple[str, ...], result: str = "bf16", rounded: str = "bf16") -> Kernel:
    lines = "\n".join(f"    {line}" for line in rest)
    (kernel,) = parse_program(KERNEL.format(result=result, rounded=rounded, rest=lines)).kernels
    return kernel


def roundings(kernel: Kernel, dtype: str = "bf16") -> int:
    return sum(getattr(op, "op", "") == "cast" and getattr(op, "dtype", "") == dtype for op in kernel.body)


@pytest.mark.parametrize("name", RESTS)
def test_roundings_that_are_seen_stay(name: str) -> None:
    kernel = kernel_of(RESTS[name])
    left = drop_roundings(kernel)
    assert roundings(left) == roundings(kernel) - (name in DROPPED)


def test_roundings_before_float32_and_to_float16_stay() -> None:
    for kernel in (kernel_of(("v9: f32 = mul v6, v3",), "f32"), kernel_of(RESTS["a factor"], rounded="f16")):
        assert drop_roundings(kernel) == kernel


def test_rounded_before_it_is_a_float32() -> None:
    """What is rounded once more is as near to what was meant as it would be."""
    kernel = kernel_of(("v7: f32 = mul v6, v3", "v8: bf16 = cast v7", "v9: f32 = cast v8"), "f32")
    assert roundings(drop_roundings(kernel)) == 1


def test_no_further_off() -> None:
    """Against float64, many operators in one kernel are nearer than eager is, which rounds after each."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 512, generator=generator).bfloat16() for _ in range(2))

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(F.gelu(x * y) * y) * x

    program, given = emulate.program_of(function, [x, y])
    (found,) = emulate.run(program, given).results
    exact = function(x.double(), y.double())
    ours, eagers = ((result.double() - exact).abs() for result in (found, function(x, y)))
    assert ours.max() < eagers.max() and ours.mean() < 0.8 * eagers.mean()


# -- shorter formulas -------------------------------------------------------------------------------
def shortened(text: str) -> tuple[Program, Program]:
    program = parse_program(text)
    (kernel,) = program.kernels
    shorter = Program(**{**vars(program), "steps": (shorten(kernel),)})
    verify(shorter)
    return program, shorter


def body_of(program: Program) -> list[str]:
    (kernel,) = program.kernels
    return [line.strip() for line in print_kernel(kernel, program.buffers).splitlines() if line.startswith("    ")]


ROW = """program(x: bf16[512]) -> (z: bf16[512])
buffer z: bf16[512] output
kernel k
  for i0 < 8 parallel, r0 < 64 reduce:
    v0: bf16 = load x[64*i0 + r0]
    v1: f32 = cast v0
{rest}
    store z[64*i0 + r0] = v9
"""
POWER = (
    "v2: f32 = mul v1, v1", "v3: f32 = const -0.5", "v4: f32 = mul v2, v3", "v5: f32 = exp v4",
    "v6: f32 = const 0.25", "v7: f32 = mul v5, v6", "v9: bf16 = cast v7",
)  # fmt: skip
SHIFTED = (
    "v2: f32 = reduce {kind} v1", "v3: f32 = const 0.015625", "v4: f32 = mul v2, v3", "v5: f32 = sub v1, v4",
    "v6: f32 = mul v5, v3", "v9: bf16 = cast v6",
)  # fmt: skip
SHARE = (
    "v2: f32 = sigmoid v1", "v3: f32 = mul v1, v2", "v4: f32 = const 0.5", "v5: b1 = lt v1, v4",
    "v6: f32 = const 1.25", "v7: f32 = const 0.0", "v8: f32 = where v5, v6, v7", "v10: f32 = mul v3, v8",
    "v9: bf16 = cast v10",
)  # fmt: skip


def row(*lines: str) -> str:
    return ROW.format(rest="\n".join(f"    {line}" for line in lines))


FORMULAS = {"power": POWER, "shifted": tuple(line.format(kind="sum") for line in SHIFTED), "share": SHARE}


@pytest.mark.parametrize("name", FORMULAS)
def test_shorter_formulas_mean_the_same(name: str) -> None:
    program, shorter = shortened(row(*FORMULAS[name]))
    assert body_of(shorter) != body_of(program)
    x = torch.randn(512, generator=torch.Generator().manual_seed(0)).bfloat16()
    (wanted,), (found,) = interpret(program, [x]), interpret(shorter, [x])
    assert isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, wanted, rtol=2.0**-7, atol=1e-6)
    assert torch.equal(emulate.run(shorter, [x]).results[0], emulate.run(program, [x]).results[0])


def test_a_constant_is_part_of_the_exponent() -> None:
    _, shorter = shortened(row(*POWER))
    assert body_of(shorter)[3:-2] == [
        "v3: f32 = const -0.5", "v6: f32 = const 0.25", "v7_scale: f32 = const -0.7213475204444817",
        "v7_shift: f32 = const -2.0", "v7_exponent: f32 = fma v2, v7_scale, v7_shift", "v7: f32 = exp2 v7_exponent",
    ]  # fmt: skip


def test_what_was_not_summed_is_subtracted_first() -> None:
    """The difference from a maximum is nothing at all where that is, and nothing may be left of it."""
    lines = [line.format(kind="max") for line in SHIFTED]
    lines[2] = "v4: f32 = neg v2"
    program, shorter = shortened(row(*lines))
    assert body_of(shorter) == body_of(program)


def test_float32_is_left_alone() -> None:
    text = row(*POWER[:-1], "v9: f32 = neg v7").replace("z: bf16", "z: f32")
    program, shorter = shortened(text)
    assert shorter == program


def test_bits_that_are_seen() -> None:
    for result, bits in (("bf16", 8), ("f16", 11)):
        kernel = kernel_of(("v7: f32 = mul v6, v3", f"v9: {result} = cast v7"), result)
        found = coarse_values(kernel)
        assert found["v7"].bits == bits and found["v4"].bits == 8
    assert "v7" not in coarse_values(kernel_of(("v7: f32 = mul v6, v3", "v9: f32 = neg v7"), "f32"))


# -- how much it takes ------------------------------------------------------------------------------
def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.native_dropout(F.gelu(F.layer_norm(x, (4096,), w, w)), 0.1, True)[0]


def test_instructions_of_a_number() -> None:
    """These kernels are bound by how many instructions a number takes, not by what they read."""
    x, w = torch.empty(8192, 4096, dtype=torch.bfloat16), torch.empty(4096, dtype=torch.bfloat16)
    forward, backward = compile_for_gpu(norm, {"x": x.requires_grad_(), "w": w}, training=True).parts()
    for part, numbers, most in ((forward, 32, 43), (backward, 16, 57)):
        ptx = part.kernels[0].ptx.decode()
        lines = [line for line in ptx.splitlines() if line.startswith("\t") and line.rstrip().endswith(";")]
        instructions = [line for line in lines if not line.startswith(("\t.", "\tmov.", "\tld.param", "\tcvta."))]
        assert len(instructions) <= most * numbers, f"{len(instructions) / numbers} instructions a number"


def test_two_bfloat16_of_a_word_are_unpacked_in_two_instructions() -> None:
    program, _ = emulate.program_of(lambda x: x * 2, [torch.empty(1 << 20, dtype=torch.bfloat16)])
    module = Module(gpu.DIALECT)
    gpu.render(program.kernels[0], program.buffers, module, "kernel")
    ptx = object_of(f"{gpu.TRIPLE}\n{module.text()}", emulate.gpu_target()).decode()
    assert ptx.count("shl.b32") - ptx.count("and.b32") <= 2 and "prmt" not in ptx and "cvt.u32.u16" not in ptx
