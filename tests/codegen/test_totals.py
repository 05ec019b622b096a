"""Rows taken in turn, their columns summed on the way: the stage that has it so, plans, and code for a GPU run on the
CPU; against the interpreter of the loop IR, and functions against eager."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from litz.codegen.interpret import run_plan
from litz.codegen.llvm import gpu
from litz.codegen.llvm.build import object_of
from litz.codegen.llvm.gpu_kernels import GpuKernels
from litz.codegen.llvm.host import HostWriter
from litz.codegen.llvm.shim import STREAM_SLOT, Device
from litz.codegen.llvm.writer import Module
from litz.codegen.plan_gpu import plan_for_gpu
from litz.context import Context
from litz.errors import VerifyError
from litz.loop.dtype import to_torch
from litz.loop.interpret import interpret
from litz.loop.ir import Apply, Program
from litz.loop.parse import parse_program
from litz.loop.text import print_program
from litz.loop.totals import totals_of
from litz.loop.verify import verify
from litz.options import Options
from litz.schedule.accumulate import accumulate
from litz.target import GpuTarget, Target, detect
from tests.codegen import emulate

aten = torch.ops.aten


def norm_backward(
    rows: str, columns: int, parts: int, dtype: str = "bf16", sums: int = 2, sizes: str = "", number: str = "i0",
) -> Program:  # fmt: skip
    """Of `rows`, the axes, whose flat number is `number`; `sums` of the columns."""
    size = f"{columns}*s0" if sizes else str(columns * int(eval(rows_of(rows))))
    every = "s0" if sizes else rows_of(rows)
    totals = [("weight", "v9"), ("bias", "v3"), ("third", "v5")][:sums]
    each = "\n".join(f"buffer {name}: f32[{parts * columns}] output" for name, _ in totals)
    results = ", ".join(f"{name}: f32[{parts}, {columns}]" for name, _ in totals)
    stores = "\n".join(f"    update total {name}[{columns}*(({number})%{parts}) + r0] = {v}" for name, v in totals)
    return parse_program(f"""{sizes}program(g: {dtype}[{size}], x: {dtype}[{size}], w: {dtype}[{columns}],
    rstd: f32[{every}]) -> (dx: {dtype}[{size}], {results})
buffer dx: {dtype}[{size}] output
{each}
kernel norm_backward
  for {rows} parallel, r0 < {columns} reduce:
    v0: {dtype} = load x[{columns}*({number}) + r0]
    v1: f32 = cast v0
    v2: {dtype} = load g[{columns}*({number}) + r0]
    v3: f32 = cast v2
    v4: f32 = load rstd[{number}]
    v5: f32 = mul v1, v4
    v6: {dtype} = load w[r0]
    v7: f32 = cast v6
    v8: f32 = mul v3, v7
    v9: f32 = mul v3, v5
    v10: f32 = mul v8, v5
    v11: f32 = reduce sum v10
    v12: f32 = const {columns}.0
    v13: f32 = div v11, v12
    v14: f32 = mul v5, v13
    v15: f32 = sub v8, v14
    v16: f32 = mul v15, v4
    v17: {dtype} = cast v16
    store dx[{columns}*({number}) + r0] = v17
{stores}
""")


def rows_of(axes: str) -> str:
    return "*".join(axis.split("<")[1].strip().removesuffix(" parallel") for axis in axes.split(","))


CASES = {
    "a warp each": norm_backward("i0 < 37", 768, 3),
    "a warp each, one sum": norm_backward("i0 < 37", 1024, 3, sums=1),
    "a few lanes": norm_backward("i0 < 9", 264, 2),
    "several warps": norm_backward("i0 < 11", 4096, 3),
    "several warps, three sums": norm_backward("i0 < 7", 2048, 2, sums=3),
    "all of a block": norm_backward("i0 < 5", 32000, 2, sums=1),
    "walked": norm_backward("i0 < 5", 20000, 2, "f32", sums=1),
    "float32": norm_backward("i0 < 7", 1024, 2, "f32"),
    "odd": norm_backward("i0 < 7", 1001, 2),
    "two axes": norm_backward("i0 < 5 parallel, i1 < 7", 768, 4, number="7*i0 + i1"),
    "fewer rows than blocks": norm_backward("i0 < s0", 768, 16, sizes="sizes s0 ~ 64\n"),
}
each_case = pytest.mark.parametrize("name", CASES)
MEANT = {"fewer rows than blocks": {"s0": 5}}


def numbers(program: Program, sizes: dict[str, int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    given = [program.buffers[name] for name in program.inputs if name is not None]
    return [torch.randn(int(b.size.at(sizes)), generator=generator).to(to_torch(b.dtype)) for b in given]


@each_case
def test_the_text_is_read_back(name: str) -> None:
    verify(CASES[name])
    assert parse_program(print_program(CASES[name])) == CASES[name]


@each_case
def test_plans(name: str) -> None:
    program, sizes = CASES[name], MEANT.get(name, {})
    inputs = numbers(program, sizes)
    wanted = interpret(program, [x.clone() for x in inputs], sizes)
    found = interpret(
        program, [x.clone() for x in inputs], sizes, lambda kernel, *where: run_plan(plan_for_gpu(kernel), *where)
    )
    for got, want in zip(found, wanted, strict=True):
        assert isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor)
        emulate.agree(got, want, 1e-5, 1e-4, name)


@each_case
def test_code(name: str) -> None:
    program, sizes = CASES[name], MEANT.get(name, {})
    assert emulate.run(program, numbers(program, sizes), sizes, atol=1e-4).kernels == 1


@each_case
def test_ptx(name: str) -> None:
    program = CASES[name]
    module = Module(gpu.DIALECT)
    gpu.render(program.kernels[0], dict(program.buffers), module, "kernel", ("s0",) if name in MEANT else ())
    ptx = object_of(f"{gpu.TRIPLE}\n{module.text()}", emulate.gpu_target()).decode()
    assert ".local" not in ptx  # what is not shared is in registers
    assert sum(map(int, re.findall(r"\.shared .* \w+\[(\d+)\]", ptx))) <= 48 << 10
    assert ptx.count(".minnctapersm") == 1


# -- the stage --------------------------------------------------------------------------------------
FEW = replace(emulate.gpu_target(), processors=2)  # so that few rows are many


def learned(dtype: torch.dtype, *shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*size, generator=generator).to(dtype) for size in (shape, shape, shape[-1:])]


def layer_norm_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    wide = x.float()
    mean, rstd = wide.mean(-1, keepdim=True), torch.rsqrt(wide.var(-1, correction=0, keepdim=True) + 1e-5)
    return aten.native_layer_norm_backward(g, x, [x.shape[-1]], mean.to(x.dtype), rstd.to(x.dtype), w, w, [True] * 3)


def rms_norm_backward_by_hand(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The sums of columns come first, and take with them what both compute."""
    wide, far = x.float(), g.float()
    normal = wide * 0.5
    to_weight = (far * normal).flatten(0, -2).sum(0).to(x.dtype)
    slope = far * w.float()
    along = (slope * normal).mean(-1, keepdim=True)
    return to_weight, ((slope - normal * along) * 0.5).to(x.dtype)


def with_an_activation(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What lies between the norm and its gradient is dear, rounded, and wanted by all sums."""
    g = aten.gelu_backward(g * (x > -1), x)
    return layer_norm_backward(g, x, w)


def of_a_weight_before_the_norm(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The sum waits for what the row adds up, and the row itself stores nothing."""
    to_rows = rms_norm_backward_by_hand(g, x, w)[1]
    return ((to_rows.float() * x.float()).sum(0).to(x.dtype),)


FUNCTIONS = {
    "layer norm": (layer_norm_backward, learned(torch.bfloat16, 24, 768)),
    "layer norm of float32": (layer_norm_backward, learned(torch.float32, 24, 512)),
    "batch and sequence": (layer_norm_backward, learned(torch.bfloat16, 3, 11, 1024)),
    "by hand": (rms_norm_backward_by_hand, learned(torch.bfloat16, 24, 2048)),
    "a weight before the norm": (of_a_weight_before_the_norm, learned(torch.bfloat16, 24, 2048)),
    "an activation between": (with_an_activation, learned(torch.bfloat16, 24, 4096)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_norms(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    program, given = emulate.program_of(function, inputs, FEW)
    (rows,) = [kernel for kernel in program.kernels if totals_of(kernel)]
    whole = {*rows.axes, *rows.reduced}
    loads = [op.buffer for op in rows.loads if op.index.axes() == whole]
    assert sorted(loads) == sorted(name for name in program.inputs[:2] if name is not None)  # each once
    stored = [op for op in rows.stores if op.index.axes() >= whole]
    assert len(stored) == len(totals_of(rows)) + (function is not of_a_weight_before_the_norm)
    # Of a function known to ten bits, what lies between may round apart, and then what is made of it; float64 judges.
    rtol = 2.0**-6 if function is with_an_activation else 1e-5
    found, wanted = emulate.run(program, given, rtol=rtol, atol=1e-2).results, function(*inputs)
    exact = function(*(x.double() for x in inputs))
    for got, eager, right in zip(found, wanted, exact, strict=True):
        errors = [float((x.double() - right).abs().max()) for x in (got, eager)]
        assert errors[0] <= 2 * errors[1] + 1e-6 * float(right.abs().max())


def test_what_is_dear_is_computed_once() -> None:
    program, _ = emulate.program_of(*FUNCTIONS["an activation between"], FEW)
    (rows,) = [kernel for kernel in program.kernels if totals_of(kernel)]
    plan = plan_for_gpu(rows)
    dear = {op.name for op in rows.body if isinstance(op, Apply) and op.op in ("exp", "normal_cdf")}
    runs = [op.name for one in plan.rows.passes for op in one.ops if op.name in dear]
    assert dear and sorted(runs) == sorted(dear) and plan.rows.kept


TWO = """{sizes}program(g: bf16[{size}], x: bf16[{size}]) -> (y: bf16[{size}], s: f32[1024])
buffer y: bf16[{size}] output
buffer s: f32[1024] output
kernel columns
  for i0 < 1024 parallel, r0 < {rows} reduce:
    v0: bf16 = load g[{at}]
    v1: f32 = cast v0
    v2: f32 = reduce {kind} v1
    store s[i0] = v2
kernel rows
  for i0 < {rows} parallel, r0 < 1024 reduce:
    v0: bf16 = load g[1024*i0 + r0]
    v1: f32 = cast v0
    v2: f32 = reduce sum v1
    v3: f32 = add v1, v2
{more}    v4: bf16 = cast v3
    store y[1024*i0 + r0] = v4
"""


def two_kernels(rows: int | str = 64, kind: str = "sum", at: str = "1024*r0 + i0", more: str = "") -> Program:
    sizes, size = ("", 1024 * rows) if isinstance(rows, int) else ("sizes n ~ 64\n", "1024*n")
    return parse_program(TWO.format(sizes=sizes, size=size, rows=rows, kind=kind, at=at, more=more))


def joined(program: Program, target: GpuTarget = FEW) -> Program:
    found = accumulate(program, Context(Options(), target))
    verify(found)
    return found


@pytest.mark.parametrize("rows", [64, "n"])
def test_rows_and_columns_are_walked_together(rows: int | str) -> None:
    program = joined(two_kernels(rows))
    first, second = program.kernels
    assert len(first.loads) == 1 and len(totals_of(first)) == 1 and second.writes == ("s",)
    for count in (64,) if rows == 64 else (64, 7, 0):
        sizes = {} if rows == 64 else {"n": count}
        emulate.run(program, numbers(program, sizes), sizes, atol=1e-4)


@pytest.mark.parametrize(
    ("program", "target"),
    [
        (two_kernels(), detect(threads=1)),
        (two_kernels(), emulate.gpu_target()),  # too few rows for so many processors
        (two_kernels(), replace(FEW, shared_bytes=4096)),
        (two_kernels(kind="max"), FEW),
        (two_kernels(at="i0 + 1024*(63 - r0)"), FEW),  # rows from the last one on
        (two_kernels(more="    v5: f32 = load s[r0]\n    v3b: f32 = add v3, v5\n"), FEW),
    ],
    ids=["a CPU", "few rows", "no room", "no sums", "another order", "rows that wait for the sums"],
)  # fmt: skip
def test_what_stays_two(program: Program, target: Target | GpuTarget) -> None:
    assert accumulate(program, Context(Options(), target)) == program


def test_fuel() -> None:
    assert accumulate(two_kernels(), Context(Options(fuel=0), FEW)) == two_kernels()


def test_a_total_says_which_rows_share_it() -> None:
    text = print_program(CASES["a warp each"])
    for wrong in ("768*i0 + r0", "768*(i0%3)", "768*(i0%3) + 2*(i0%3) + r0"):
        with pytest.raises(VerifyError, match=r"a total at|out of bounds"):
            verify(parse_program(text.replace("weight[768*(i0%3) + r0]", f"weight[{wrong}]")))


# -- the host ---------------------------------------------------------------------------------------
def test_memory_beyond_what_a_block_may_take_is_asked_for() -> None:
    program = CASES["all of a block"]
    (kernel,) = program.kernels
    grid = gpu.render(kernel, dict(program.buffers), Module(gpu.DIALECT), "kernel")
    assert grid.shared == (4 + 2) * 32768 and grid.blocks.int == 2
    host = Module()
    slots = {name: at for at, name in enumerate((*program.buffers, STREAM_SLOT))}
    writer = HostWriter(host, "run0", slots, (), Device(1, {}))
    GpuKernels(program, emulate.gpu_target(), (), lambda text: None).start(writer, [kernel])
    text = "\n".join(writer.w.lines)
    assert re.search(rf"call i32 @cuFuncSetAttribute\(ptr %\w+, i32 8, i32 {grid.shared}\)", text)
    assert re.search(rf"call i32 @cuLaunchKernel\(.*, i32 512, i32 1, i32 1, i32 {grid.shared}, ptr", text)


def test_the_plan_as_text() -> None:
    assert str(plan_for_gpu(CASES["a warp each"].kernels[0])).splitlines()[:3] == [
        "grid 3 of 256 threads",
        "rows in turn, the next one ahead, 2 totals in shared memory",
        "rows(i0: 37) along r0, 8 x 3 by 32, packed: v0, v2, v6",
    ]
