"""Code for a GPU, run on the CPU thread by thread: drawn programs and written-out ones against the interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn import functional as F

from litz.codegen.plan_gpu import plan_for_gpu
from litz.codegen.turned import plan_turned
from litz.context import Context
from litz.loop.dtype import to_torch
from litz.loop.ir import Kernel, Program
from litz.loop.parse import parse_program
from litz.options import Options
from litz.schedule.fuse import fuse
from litz.schedule.simplify import mark_outputs, merge_axes
from tests.codegen import emulate
from tests.codegen.emulate import WrongOnGpu, program_of, run, run_function
from tests.codegen.test_programs import INEXACT
from tests.strategies import arguments, programs

DRAWN = settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
LENGTHS = (1, 2, 3, 31, 32, 33, 255, 257)
# Each a plan of its own: a thread, part of a warp, a warp, several, all of a block; in registers and walked.
COLUMNS = (7, 33, 64, 100, 1000, 4096, 20000, 32000, 40000, 100_000)


# -- drawn ----------------------------------------------------------------------------------------
@DRAWN
@given(programs())
def test_as_drawn(program: Program) -> None:
    assert run(program, arguments(program)).kernels == len(program.steps)


@DRAWN
@given(programs((*INEXACT, "rsqrt", "reciprocal", "normal_cdf", "log")))
def test_functions_that_round(program: Program) -> None:
    run(program, arguments(program), rtol=1e-3, atol=1e-3)


@DRAWN
@given(programs())
def test_after_scheduling(program: Program) -> None:
    ctx = Context(Options(), emulate.gpu_target())
    run(merge_axes(fuse(mark_outputs(program), ctx)), arguments(program))


# -- rows -----------------------------------------------------------------------------------------
def softmax(rows: int | str, columns: int | str, dtype: str, sizes: str = "", apart: int | None = None) -> Program:
    """`apart`: from one row to the next, where they do not touch."""
    step = columns if apart is None else apart
    size = f"{rows}*{columns}" if sizes else str(int(rows) * int(step))
    return parse_program(f"""{sizes}program(x: {dtype}[{size}]) -> (y: {dtype}[{size}])
buffer y: {dtype}[{size}] output
kernel k
  for i0 < {rows} parallel, r0 < {columns} reduce:
    v0: {dtype} = load x[{step}*i0 + r0]
    v1: f32 = cast v0
    v2: f32 = reduce max v1
    v3: f32 = sub v1, v2
    v4: f32 = exp v3
    v5: f32 = reduce sum v4
    v6: f32 = div v4, v5
    v7: {dtype} = cast v6
    store y[{step}*i0 + r0] = v7
""")


# Few rows have a thread for each vector; of many, one thread has several. Three that are thought to be many are enough.
MANY = ("n", "sizes n ~ 8192\n")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("columns", COLUMNS)
def test_softmax(columns: int, dtype: str) -> None:
    x = torch.randn(3 * columns).to(to_torch(dtype))
    assert run(softmax(3, columns, dtype), [x], rtol=1e-5, atol=1e-9).kernels == 1
    rows, sizes = MANY
    assert run(softmax(rows, columns, dtype, sizes), [x], {"n": 3}, rtol=1e-5, atol=1e-9).kernels == 1


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logarithms_of_sums_that_are_hardly_more_than_one(dtype: torch.dtype, scaled: bool) -> None:
    """One number of each row is far above the others: its share is 1 but for a little, and the logarithm is that."""
    x = torch.linspace(3, 90, 40)[:, None] - torch.tensor([0.0, 9.0, 12.0, math.inf, 17.5])
    x[::2, 1:] = -math.inf  # here it is all there is
    x = x.to(dtype)

    def given(x: torch.Tensor) -> torch.Tensor:
        return x.float() * 1.1 if scaled else x

    program, inputs = program_of(lambda x: given(x).log_softmax(-1).to(dtype), [x])
    (found,) = run(program, inputs, atol=1e-6).results
    found, wanted = found[:, 0].double(), given(x).double().log_softmax(-1)[:, 0]
    assert (found[::2] == 0).all()
    unit = torch.finfo(dtype).eps * wanted.abs() + 2.0**-23  # and one of the sum
    assert ((found - wanted).abs() <= unit)[1::2].all()


def test_columns_of_every_plan() -> None:
    """What the sizes above are there for."""
    few, many = (
        [plan_for_gpu(kernel).rows for columns in COLUMNS for kernel in softmax(rows, columns, "f32", sizes).kernels]
        for rows, sizes in ((3, ""), MANY)
    )
    assert {plan.team for plan in few} >= {8, 16, 32, 64, 256, 1024}
    assert {plan.team for plan in many} >= {8, 16, 32, 128, 512, 1024}
    for found in (few, many):
        assert {plan.lanes for plan in found} == {1, 4}
        assert {plan.packed is None for plan in found} == {True, False}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("columns", "apart"), [(257, 264), (1001, 1008), (50257, 50264)])
def test_rows_whose_last_vector_is_cut(columns: int, apart: int, dtype: str) -> None:
    """Rows that lie at multiples of a vector's width, and end between them."""
    x, program = torch.randn(2 * apart).to(to_torch(dtype)), softmax(2, columns, dtype, apart=apart)
    (kernel,) = program.steps
    assert isinstance(kernel, Kernel) and plan_for_gpu(kernel).rows.lanes > 1
    run(program, [x], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_columns_whose_steps_are_shared(dtype: torch.dtype) -> None:
    for rows, columns in ((40, 3), (100, 37), (257, 64), (1000, 100), (64, 1000)):
        x = (torch.randn(rows, columns) * 0.1).to(dtype)
        run_function(lambda x: (x.sum(0), x.amax(0), (x - x.mean(0)).abs().sum(0) / x.std(0)), x)
        run_function(lambda x: (x.argmax(0), (x > 0.3).any(0), (x > -0.3).all(0)), x)


def test_columns_over_several_axes() -> None:
    run_function(lambda x: (x.sum((0, 2)), x.amax((0, 1))), torch.randn(6, 50, 20, 16))


TURNED: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = {
    "whole tiles": (lambda x: x.t().contiguous(), (256, 512)),
    "tiles at the end": (lambda x: x.t().contiguous(), (300, 500)),
    "odd sizes": (lambda x: x.t().contiguous() * 2, (257, 333)),
    "a batch": (lambda x: x.transpose(1, 2).contiguous(), (3, 192, 130)),
    "two of them": (lambda x: x[:, :256].t() + x[:, 256:].t() * x[:, :256], (256, 512)),
    "with a mask": (lambda x: F.pad(x.t(), (0, 7, 3, 0)).contiguous(), (250, 512)),
    "channels": (lambda x: x.contiguous(memory_format=torch.channels_last), (2, 96, 20, 20)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("name", TURNED)
def test_what_is_read_across_the_rows_it_writes(name: str, dtype: torch.dtype) -> None:
    function, shape = TURNED[name]
    program, _ = emulate.program_of(function, [torch.zeros(shape, dtype=dtype)])
    assert any(plan_turned(step) is not None for step in program.kernels)
    run_function(function, (torch.randn(shape) * 9).to(dtype))


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_rows_that_leave_teams_and_blocks_unfilled(rows: int) -> None:
    for length in LENGTHS:
        x = torch.randn(rows, length)
        run(softmax(rows, length, "f32"), [x.flatten()])
        run_function(lambda x: (x.sum(1), x.sum(0)), x)


def test_layer_norm() -> None:
    x, weight, bias = (torch.randn(*shape).bfloat16() for shape in ((3, 4096), (4096,), (4096,)))
    assert run_function(lambda x, w, b: F.layer_norm(x, (4096,), w, b), x, weight, bias, atol=1e-2).kernels == 1


def test_one_row_of_many_and_all_of_a_tensor() -> None:
    run_function(lambda x: (x.sum(), x.amax(), x.var(0)), torch.rand(129, 515), rtol=1e-4)
    run_function(lambda x: (x.sum((0, 2)), x.amax((1, 2)), x.mean(1)), torch.randn(5, 18, 24), rtol=1e-4)


# -- reductions in parts --------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("rows", [4096, 4099])
def test_long_columns_and_long_rows(rows: int, dtype: str) -> None:
    x = torch.randn(rows, 24).to(to_torch(dtype))
    assert run_function(lambda x: x.sum(0), x, atol=1e-3).kernels == 2
    assert run_function(lambda x: (x.float() - 1).amax(0), x).kernels == 2
    assert run_function(lambda x: x.float().square().mean(), x.repeat(3, 1), rtol=1e-4).kernels == 2
    long = torch.randn(2, 10 * rows).to(to_torch(dtype))
    assert run_function(lambda x: x.float().softmax(-1), long, rtol=1e-4, atol=1e-9).kernels == 5


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_batch_norm_of_large_images(layout: torch.memory_format) -> None:
    """Statistics in one pass, put together from parts; then what is done to each element, all in one kernel."""
    x = (3 * torch.randn(8, 6, 48, 48) + 40).contiguous(memory_format=layout)
    w, b, mean, variance = (torch.rand(6) for _ in range(4))

    def norm(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w, b, mean, variance = args
        y = torch.ops.aten._native_batch_norm_legit_functional(x, w, b, mean, variance, True, 0.1, 1e-5)
        return (F.relu(y[0]), *y[1:])

    assert run_function(norm, x, w, b, mean, variance, rtol=1e-4, atol=1e-4).kernels == 3


# -- reductions -----------------------------------------------------------------------------------
POSITIONS: list[Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = [
    lambda x: (x.argmax(1), x.amax(1)),
    lambda x: (x.argmin(1), x.amin(1)),
    lambda x: (x.argmax(0), x.argmin(0), x.argmax()),
]


@pytest.mark.parametrize("function", POSITIONS, ids=["greatest", "least", "of columns"])
@pytest.mark.parametrize("length", [3, 257, 1000, 20_001])
def test_positions(length: int, function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> None:
    x = torch.randn(4, length)
    x[0] = torch.randint(0, 3, (length,)).float()  # ties, of which the first wins
    x[1, length // 2] = x[1, length - 1] = torch.nan
    x[2] = torch.nan
    x[3] = torch.inf
    run_function(function, x)


@pytest.mark.parametrize("length", [3, 1000, 5000])
def test_reductions_of_other_types(length: int) -> None:
    x = torch.randint(-9, 9, (3, length))
    run_function(lambda x: ((x > 7).any(1), (x > -9).all(1), (x > 8).any(0), x.sum(1), x.amax(1), x.argmin(1)), x)
    run_function(lambda x: (x.sum(1), x.amax(1), x.prod(0)), x.to(torch.int32))
    run_function(lambda x: (x.amax(1), x.amin(1)), x.to(torch.int8))
    run_function(lambda x: (x.amax(1), x.amin(0)), x.abs().to(torch.uint8))
    run_function(lambda x: (x.sum(1), x.amax(1), x.sum(0)), torch.randn(3, length).double(), rtol=1e-12, atol=1e-12)
    run_function(lambda x: (x.sum(1), x.amax(1)), torch.randn(3, length).half(), atol=1e-2)


# -- elements -------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"])
def test_pointwise(dtype: str) -> None:
    for shape in ((5, 64), (3, 7), (1,)):
        x = torch.randint(0, 50, shape).to(to_torch(dtype))
        run_function(lambda x: (x * 2 + 1, x > 20, (x > 20) | (x == 3), torch.where(x > 9, x, -x)), x)
        run_function(lambda x: (x.float().sqrt() + x, x.to(torch.int64) + 1, ~x.bool(), (-x).bfloat16() / 3), x)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("count", [1 << 18, (1 << 18) + 8, (1 << 18) + 4099])
def test_flat(count: int, dtype: str) -> None:
    """Blocks that go through memory, the last of them not full."""
    run_function(lambda x: (x * 2 + 1, x > 0), torch.randn(count).to(to_torch(dtype)))


def test_accesses_that_do_not_lie_side_by_side() -> None:
    x, table = torch.randn(36, 40), torch.randn(50, 24)
    at = torch.randint(-50, 50, (7, 5))
    run_function(lambda x: (x.t() * 2, x.t().contiguous() + x.reshape(40, 36), x.flip(1) + x.roll(3, 1)), x)
    run_function(lambda x: (F.pad(x, (3, 5, 2, 1)) + 1, F.pad(x, (4, 4)) * 2, F.pad(x, (-3, 2), value=7.0)), x)
    run_function(lambda x: (x[:, ::3] + 1, x[1:, 3:] * 2, torch.cat([x, x[:, :5]], 1), x.unfold(1, 4, 3).sum(-1)), x)
    run_function(lambda t, i: (t[i] * 2, t[:, i[0] % 24] + 1, F.embedding(i.abs() % 50, t).sum(1)), table, at)
    run_function(lambda x: (x.tril(-1), x.triu(2), x.softmax(0), x[:, None, ::2].expand(-1, 3, -1) + 1), x)


def test_functions_of_one_number() -> None:
    x = torch.cat([torch.linspace(-100, 100, 801), torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-40])])
    run_function(lambda x: (x.exp(), x.sigmoid(), x.tanh(), x.erf(), F.silu(x), x.rsqrt()), x)
    run_function(F.gelu, x[~x.isinf()])  # of infinity eager makes one thing or another, by where it lies


def test_an_index_out_of_range_is_a_fault() -> None:
    def at(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return table[index]

    table, index = torch.randn(10, 8), torch.tensor([3, 10, 0])
    program, given = emulate.program_of(at, [table, index])
    kernel = next(step for step in program.steps if isinstance(step, Kernel))
    memory = emulate.memory_of(program, given, {})
    with pytest.raises(WrongOnGpu, match="is at fault"):
        emulate.run_kernel(kernel, program.buffers, memory, {})


def test_results_in_the_place_of_what_they_are_made_from() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = torch.cumsum(x, 0)  # a step of its own: what comes before must be in memory
            x = x - x.mean(-1, keepdim=True)
            x = torch.sort(x.softmax(-1) * 3, -1).values
        return x

    for size in (3, 50, 200):
        ran = run_function(chain, torch.randn(30, size))
        assert ran.kernels and ran.others


def test_parts_of_models() -> None:
    def turned(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return q * cos + torch.cat([-q[..., 32:], q[..., :32]], -1) * sin

    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w

    image = torch.randn(4, 8, 9, 9)
    run_function(turned, *(torch.randn(*s).bfloat16() for s in ((2, 4, 10, 64), (10, 64), (10, 64))), atol=2e-2)
    # Eager rounds after each of three multiplications, the kernel once: four halves of a unit apart at most.
    run_function(scaled, torch.randn(7, 1024).bfloat16(), torch.randn(1024).bfloat16(), rtol=2.0**-6)
    run_function(F.cross_entropy, torch.randn(33, 1000), torch.randint(0, 1000, (33,)))
    run_function(lambda x: F.group_norm(x, 4), image, atol=1e-4)
    run_function(lambda x: F.batch_norm(x, None, None, training=True), image, atol=1e-4)
    run_function(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), image)


# -- sizes known only at run time -----------------------------------------------------------------
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_any_number_of_rows(rows: int) -> None:
    for columns in (3, 32, 260):
        run(softmax("n", columns, "bf16", "sizes n\n"), [torch.randn(rows * columns).bfloat16()], {"n": rows})


@pytest.mark.parametrize("columns", [1, 2, 33, 511, 4096, 9001])
def test_any_number_of_columns(columns: int) -> None:
    run(softmax(3, "n", "f32", "sizes n\n"), [torch.randn(3 * columns)], {"n": columns})
    run(softmax("m", "n", "f32", "sizes m, n\n"), [torch.randn(5 * columns)], {"m": 5, "n": columns})


@pytest.mark.parametrize("count", [1, 100, 2048, 300_001])
def test_any_number_of_elements(count: int) -> None:
    program = parse_program("""sizes n ~ 1000000
program(x: f32[n], y: f32[8*n]) -> (z: f32[n], w: f32[n, 8])
buffer z: f32[n] output
buffer w: f32[8*n] output
kernel flat
  for i0 < n parallel:
    v0: f32 = load x[i0]
    v1: f32 = mul v0, v0
    store z[i0] = v1
kernel rows
  for i0 < n parallel, i1 < 8 parallel:
    v0: f32 = load x[i0]
    v1: f32 = load y[8*i0 + i1]
    v2: f32 = add v0, v1
    store w[8*i0 + i1] = v2
""")
    if count > 100_000:  # once around is enough for the second
        program = Program(program.buffers, program.inputs, program.outputs[:1], program.steps[:1])
    assert run(program, [torch.randn(count), torch.randn(8 * count)], {"n": count}).kernels == len(program.steps)
