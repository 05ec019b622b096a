"""Plans of kernels: their text, and what they compute by `codegen/interpret.py`, which needs no GPU.

That interpreter must agree with the one of the loop IR, and must not be content with a plan that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Union

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litz.codegen.interpret import run_plan
from litz.codegen.interpret_turned import run_turned
from litz.codegen.plan_cpu import plan_for_cpu
from litz.codegen.plan_gpu import GpuPlan, plan_for_gpu
from litz.codegen.rows import Pass, RowPlan
from litz.codegen.turned import plan_turned
from litz.context import Context
from litz.errors import PlanError
from litz.loop.dtype import to_torch
from litz.loop.expr import expr
from litz.loop.interpret import interpret
from litz.loop.ir import Kernel, Program
from litz.loop.parse import parse_program
from litz.options import Options
from litz.schedule.fuse import fuse
from litz.schedule.simplify import mark_outputs, merge_axes
from litz.target import Target, detect
from tests import golden
from tests.codegen import native
from tests.codegen.row_kernels import histogram, layer_norm, pointwise, reduction, running_sum, scan, scatter, softmax
from tests.strategies import arguments, programs

DRAWN = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
Planner = Callable[[Kernel], Union[RowPlan, GpuPlan]]


def with_vectors_of(bytes_: int) -> Target:
    return replace(detect(threads=2), vector_bytes=bytes_, vector_registers=16)


def for_cpu(bytes_: int) -> Planner:
    return lambda kernel: plan_for_cpu(kernel, with_vectors_of(bytes_))


PLANNERS: dict[str, Planner] = {"128 bits": for_cpu(16), "512 bits": for_cpu(64), "gpu": plan_for_gpu}
each_machine = pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS)


def planned(program: Program, inputs: list[torch.Tensor], planner: Planner, **sizes: int) -> list[object]:
    return interpret(
        program, [x.clone() for x in inputs], sizes, lambda kernel, *where: run_plan(planner(kernel), *where)
    )


def agree(
    program: Program, inputs: list[torch.Tensor], planner: Planner, tolerance: float = 1e-5, **sizes: int
) -> None:
    wanted = interpret(program, [x.clone() for x in inputs], sizes)
    for got, want in zip(planned(program, inputs, planner, **sizes), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def numbers(program: Program, **sizes: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    given = [program.buffers[name] for name in program.inputs if name is not None]
    return [torch.randn(int(b.size.at(sizes)), generator=generator).to(to_torch(b.dtype)) for b in given]


# -- text -----------------------------------------------------------------------------------------
SHOWN = {
    "layer_norm": layer_norm(800, 1024),
    "few_rows": layer_norm(8, 1024),
    "softmax_64": softmax(16, 64),
    "softmax_32000": softmax(16, 32000),
    "short_rows": softmax(1000, 7),
    "symbolic": softmax("s0", "s1"),
    "flat": pointwise(1 << 20, "bf16"),
    "flat_symbolic": pointwise("s0"),
    "column_sum": reduction("sum", 512, 64, "columns"),
    "argmax": reduction("argmax", 1600, 1000),
    "running_sum": running_sum(40, 30),
    "running_max_of_rows": scan("max", 9, 5000),
    "histogram": histogram(5000, 7),
    "scattered_rows": scatter("sum", 40, 600, 768, "bf16"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_text(name: str) -> None:
    (kernel,) = SHOWN[name].kernels
    cpu, gpu = for_cpu(32)(kernel), plan_for_gpu(kernel)
    golden.check(f"plan_{name}", f"-- for vectors of 256 bits\n{cpu}\n\n-- for a GPU\n{gpu}\n")


# -- what plans compute ---------------------------------------------------------------------------
@DRAWN
@given(programs(), st.sampled_from(list(PLANNERS)))
def test_as_drawn(program: Program, machine: str) -> None:
    agree(program, arguments(program), PLANNERS[machine])


@DRAWN
@given(programs(), st.sampled_from(list(PLANNERS)))
def test_after_fusion(program: Program, machine: str) -> None:
    """Kernels with more passes, and more in them."""
    fused = merge_axes(fuse(mark_outputs(program), Context(Options(), detect(threads=2))))
    agree(fused, arguments(program), PLANNERS[machine])


@DRAWN
@given(
    st.sampled_from(["sum", "max", "argmax", "argmin", "argpool"]),
    st.sampled_from(["rows", "columns"]),
    st.integers(1, 40),
    st.integers(1, 700),
    st.sampled_from(list(PLANNERS)),
)
def test_reductions_of_any_length(kind: str, along: str, rows: int, columns: int, machine: str) -> None:
    program = reduction(kind, rows, columns, along)
    (x,) = numbers(program)
    agree(program, [x], PLANNERS[machine])
    agree(program, [x.round()], PLANNERS[machine])  # equals
    x[torch.arange(0, x.numel(), 97)] = torch.nan
    agree(program, [x], PLANNERS[machine])


@DRAWN
@given(st.integers(1, 5), st.integers(1, 3000), st.sampled_from(["f32", "bf16"]), st.sampled_from(list(PLANNERS)))
def test_rows_of_any_length(rows: int, columns: int, dtype: str, machine: str) -> None:
    program = layer_norm(rows, columns, dtype)
    agree(program, numbers(program), PLANNERS[machine], 1e-4 if dtype == "f32" else 1e-2)
    program = softmax(rows, columns)
    agree(program, numbers(program), PLANNERS[machine])


@each_machine
@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown(name: str, planner: Planner) -> None:
    if name in ("histogram", "scattered_rows"):
        return  # whose indices are no random numbers: `test_steps_in_order`, `test_rows_are_scattered`
    program, sizes = SHOWN[name], {"s0": 33, "s1": 2500} if "symbolic" in name else {}
    if name == "flat" and planner is not plan_for_gpu:
        program = pointwise(10_001, "bf16")  # many vectors, one after the other: fewer do
    agree(program, numbers(program, **sizes), planner, 1e-2 if name in ("layer_norm", "flat") else 1e-5, **sizes)


@each_machine
@pytest.mark.parametrize("length", [1, 2, 100, 511, 513, 1024, 2000])
def test_sizes_known_only_at_run_time(length: int, planner: Planner) -> None:
    for program, sizes in ((softmax("s0", "s1"), {"s0": 3, "s1": length}), (pointwise("s0"), {"s0": length})):
        agree(program, numbers(program, **sizes), planner, **sizes)


@each_machine
def test_steps_in_order(planner: Planner) -> None:
    agree(running_sum(37, 50), numbers(running_sum(37, 50)), planner)
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-6, 6, (50,), generator=generator).abs()
    agree(histogram(50, 7), [values, torch.arange(7)], planner)
    with pytest.raises(IndexError):
        agree(histogram(50, 5), [values, torch.arange(5)], planner)


@DRAWN
@given(
    st.sampled_from(["sum", "max", "min", "logaddexp"]),
    st.sampled_from(["rows", "columns"]),
    st.integers(1, 5),
    st.integers(2, 3000),
    st.sampled_from(list(PLANNERS)),
)
def test_scans_of_any_length(kind: str, along: str, rows: int, columns: int, machine: str) -> None:
    program = scan(kind, rows, columns, along)
    agree(program, numbers(program), PLANNERS[machine], 1e-4)


@each_machine
@pytest.mark.parametrize("length", [1, 2, 300, 4096, 9000])
def test_scans_of_a_length_known_only_at_run_time(length: int, planner: Planner) -> None:
    program, sizes = scan("sum", "s0", "s1"), {"s0": 3, "s1": length}
    agree(program, numbers(program, **sizes), planner, 1e-4, **sizes)


@each_machine
@pytest.mark.parametrize("kind", ["put", "sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32"])
def test_rows_are_scattered(kind: str, dtype: str, planner: Planner) -> None:
    for rows, places, columns in ((5, 40, 7), (300, 200, 33), (40, 30, 64)):
        program = scatter(kind, rows, places, columns, dtype)
        x, _, y = numbers(program)
        places_of_rows = torch.arange(places) % rows  # several for some, and as exact in any order
        wanted = places_of_rows - rows * (torch.arange(places) % 2)
        if kind == "put":
            wanted, x = wanted[:rows], x[: min(rows, places) * columns]
            program = scatter(kind, rows, len(wanted), columns, dtype)
        loose = 1e-5 if dtype in ("f32", "i32") else 0.3
        agree(program, [x / 4 if kind == "prod" and dtype != "i32" else x, wanted, y], planner, loose)


def test_sums_are_rounded_in_the_order_of_the_plan() -> None:
    """Eight numbers, in two vectors of four lanes: lane by lane, and then in halves."""
    program, large = reduction("sum", 1, 8), float(1 << 24)
    for row, total in (([large, 0, 0, 0, 1, 1, 0, 0], large), ([large, 1, 0, 0, 0, 1, 0, 0], large + 2)):
        assert planned(program, [torch.tensor(row)], for_cpu(16)) == [torch.tensor([total])]


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("columns", [5, 100, 4096, 70_001])
def test_sums_are_those_of_machine_code(columns: int, along: str) -> None:
    """Bit for bit: all is added in the order in which generated code adds it."""
    program, here = reduction("sum", 3, columns, along), detect(threads=2)
    inputs = numbers(program)
    (got,) = planned(program, inputs, lambda kernel: plan_for_cpu(kernel, here))
    (want,) = native.run(program, inputs, here)
    assert isinstance(got, torch.Tensor) and torch.equal(got, want)


# -- plans that are wrong -------------------------------------------------------------------------
def refused(program: Program, change: Callable[[Kernel], RowPlan | GpuPlan], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        planned(program, numbers(program), change)


def gpu_rows(kernel: Kernel, **changes: object) -> GpuPlan:
    """The GPU's plan, with other rows."""
    plan = plan_for_gpu(kernel)
    return replace(plan, rows=replace(plan.rows, **changes))  # type: ignore[arg-type]


def test_what_is_never_computed() -> None:
    refused(layer_norm(600, 1024), lambda k: gpu_rows(k, copies=3), r"pass 0: i0 = 0, r0 = 768 is computed never")
    refused(layer_norm(600, 1024), lambda k: gpu_rows(k, team=16), r"r0 = 512 is computed never; of 614400 points")
    refused(pointwise(1 << 18), lambda k: gpu_rows(k, copies=1), r"before pass 0: i0 = 65536 is computed never")
    refused(reduction("sum", 2, 100), lambda k: replace(for_cpu(16)(k), team=2), r"pass 0: i0 = 0, r0 = 4 is comp")
    refused(softmax(4, 64), lambda k: replace(plan_for_gpu(k), pieces=expr(0)), r"i0 = 0, r0 = 0 is computed never")


def test_a_scan_whose_steps_are_missed_or_taken_twice() -> None:
    rows = scan("sum", 3, 5000)
    refused(rows, lambda k: replace(plan_for_gpu(k), pieces=expr(2)), r"pass 0: i0 = 0, r0 = 0 is computed 2 times")
    refused(rows, lambda k: replace(plan_for_gpu(k), block=1024), "2 teams of several warps share a block")


def test_what_is_computed_twice() -> None:
    refused(softmax(4, 64), lambda k: replace(plan_for_gpu(k), pieces=expr(2)), r"r0 = 0 is computed 2 times")


def test_what_is_not_there() -> None:
    # All pieces are taken to be whole where they divide the axis.
    refused(pointwise(1 << 18), lambda k: gpu_rows(k, copies=8), "there are 262144")


def without(plan: RowPlan, p: int, name: str) -> RowPlan:
    one = plan.passes[p]
    less = Pass(one.before, tuple(op for op in one.ops if op.name != name), one.sinks)
    return replace(plan, passes=(*plan.passes[:p], less, *plan.passes[p + 1 :]))


def test_what_a_pass_lacks() -> None:
    """In the softmax, `v0` is loaded in each pass, and `v3`, which is dear, kept for the last."""
    lacks, row = "which is neither computed there nor kept", for_cpu(16)
    refused(softmax(4, 64), lambda k: without(row(k), 1, "v0"), f"pass 1: v2 needs v0, {lacks}")
    refused(softmax(4, 64), lambda k: without(row(k), 2, "v3"), f"pass 2: v5 needs v3, {lacks}")
    refused(softmax(4, 64), lambda k: replace(row(k), kept={}), f"pass 2: v3 needs v2, {lacks}")
    refused(softmax(4, 64), lambda k: replace(row(k), kept={"v3": 0}), "pass 1: pass 0 was to keep v3, and did not")
    refused(softmax(4, 64), lambda k: replace(row(k), passes=row(k).passes[:2]), "the store to y runs in 0 passes")


def test_blocks_that_cannot_be() -> None:
    refused(softmax(600, 8192), lambda k: replace(plan_for_gpu(k), block=1024), "4 teams of several warps share a")
    refused(softmax(4, 64), lambda k: replace(plan_for_gpu(k), block=8), "does not hold teams of 16")
    refused(softmax(4, 64), lambda k: replace(plan_for_gpu(k), block=2048), "a block of 2048 threads")
    refused(softmax(4, 64), lambda k: gpu_rows(k, team=12), "12 threads in a team are no power of two")
    refused(softmax(4, 64), lambda k: gpu_rows(k, lanes=3), "3 lanes are no power of two")


def test_a_position_is_found_one_vector_at_a_time() -> None:
    refused(reduction("argmax", 4, 1000), lambda k: gpu_rows(k, copies=2), "v1 is a position")


# -- tiles ----------------------------------------------------------------------------------------
def turned(rows: int, columns: int, batch: int = 2) -> Program:
    size = batch * rows * columns
    return parse_program(f"""program(x: bf16[{size}], w: f32[{columns}]) -> (y: f32[{size}])
buffer y: f32[{size}] output
kernel turned
  for i0 < {batch} parallel, i1 < {columns} parallel, i2 < {rows} parallel:
    v0: bf16 = load x[{rows * columns}*i0 + {columns}*i2 + i1]
    v1: f32 = cast v0
    v2: f32 = load w[i1]
    v3: f32 = mul v1, v2
    store y[{rows * columns}*i0 + {rows}*i1 + i2] = v3
""")


def test_text_of_tiles() -> None:
    (kernel,) = turned(512, 256).kernels
    golden.check("plan_turned", str(plan_turned(kernel)))


@pytest.mark.parametrize(("rows", "columns"), [(512, 256), (100, 700), (333, 257), (64, 1024)])
def test_tiles(rows: int, columns: int) -> None:
    program = turned(rows, columns)
    wanted = interpret(program, numbers(program))

    def in_tiles(kernel: Kernel, *where: Any) -> None:
        plan = plan_turned(kernel)
        assert plan is not None
        run_turned(plan, *where)

    torch.testing.assert_close(interpret(program, numbers(program), {}, in_tiles), wanted)


def test_what_is_not_worth_turning() -> None:
    for program in (turned(10, 20), turned(8, 100_000), pointwise(1 << 20), layer_norm(64, 1024)):
        assert all(plan_turned(kernel) is None for kernel in program.kernels)
