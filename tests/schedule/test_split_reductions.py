"""Reductions in parts: what the loop interpreter makes of them is what it makes of the whole, whatever is cut where."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litz.codegen.interpret import run_plan
from litz.codegen.plan_gpu import plan_for_gpu
from litz.context import Context
from litz.loop.interpret import interpret
from litz.loop.ir import Kernel, Program, Reduce
from litz.loop.parse import parse_program
from litz.loop.text import print_program
from litz.loop.verify import verify
from litz.options import Options
from litz.schedule.fuse import fuse
from litz.schedule.simplify import mark_outputs, merge_axes
from litz.schedule.split_reductions import cut_of, split_reductions
from litz.target import GpuTarget, detect
from tests import golden
from tests.codegen.row_kernels import histogram, layer_norm, reduction, running_sum, softmax
from tests.codegen.test_plans import numbers
from tests.strategies import arguments, programs

DRAWN = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class CutsAll(GpuTarget):
    """A GPU that has everything cut into as many parts as it is asked for, worth it or not."""

    wanted: int = 3

    def parts(self, reductions: int, length: int, abreast: int | None) -> int:
        return min(self.wanted, length)


GPU = GpuTarget(detect(threads=1), "sm_90", "+ptx80", 132)


def cutting(wanted: int) -> CutsAll:
    return CutsAll(GPU.host, GPU.cpu, GPU.features, GPU.processors, wanted=wanted)


def split(program: Program, target: GpuTarget = GPU, fuel: int | None = None) -> Program:
    found = split_reductions(program, Context(Options(fuel=fuel), target))
    verify(found)
    return found


def agree(program: Program, inputs: list[torch.Tensor], target: GpuTarget, **sizes: int) -> Program:
    """By the interpreter of loops, and by that of plans for a GPU."""
    found = split(program, target)
    wanted = interpret(program, [x.clone() for x in inputs], sizes)
    planned = lambda kernel, *where: run_plan(plan_for_gpu(kernel), *where)  # noqa: E731
    for how in ((), (planned,)):
        for got, want in zip(interpret(found, [x.clone() for x in inputs], sizes, *how), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)
    return found


# -- what is the same -----------------------------------------------------------------------------
@DRAWN
@given(programs(), st.integers(2, 5))
def test_as_drawn(program: Program, wanted: int) -> None:
    agree(program, arguments(program), cutting(wanted))


@DRAWN
@given(programs(), st.integers(2, 5))
def test_after_fusion(program: Program, wanted: int) -> None:
    """Kernels with more passes, and more in them."""
    fused = merge_axes(fuse(mark_outputs(program), Context(Options(), detect(threads=2))))
    agree(fused, arguments(program), cutting(wanted))


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("length", [40, 41, 64])  # one of which no number of parts divides
def test_each_kind(kind: str, along: str, length: int) -> None:
    for wanted in (8, 9, 13):
        program = reduction(kind, 6, length, along)
        assert len(agree(program, numbers(program), cutting(wanted)).steps) == 2


@pytest.mark.parametrize("columns", [60, 61])
def test_several_passes_and_what_is_stored_at_each_step(columns: int) -> None:
    for program, steps in ((softmax(3, columns), 5), (layer_norm(3, columns, "f32"), 5)):
        assert len(agree(program, numbers(program), cutting(10)).steps) == steps


def test_what_is_known_early_is_stored_on_the_way() -> None:
    """Unless a step might not exist: a store has no mask."""
    for rows, steps in ((64, 2), (61, 3)):
        program = parse_program(f"""program(x: f32[{4 * rows}]) -> (y: f32[4], z: f32[{4 * rows}])
buffer y: f32[4] output
buffer z: f32[{4 * rows}] output
kernel doubled
  for i0 < 4 parallel, r0 < {rows} reduce:
    v0: f32 = load x[4*r0 + i0]
    v1: f32 = add v0, v0
    v2: f32 = reduce sum v1
    store z[4*r0 + i0] = v1
    store y[i0] = v2
""")
        assert len(agree(program, numbers(program), cutting(8)).steps) == steps


@pytest.mark.parametrize("n", [1, 15, 16, 17, 96, 97])
def test_sizes_known_only_at_run_time(n: int) -> None:
    """Cut for a likely size, and right at any."""
    program = parse_program("""sizes s0 ~ 96
program(x: f32[5*s0], m: b1[s0]) -> (y: f32[5], z: f32[5])
buffer y: f32[5] output
buffer z: f32[5] output
kernel columns
  for i0 < 5 parallel, r0 < s0 reduce:
    v0: b1 = load m[r0]
    v1: f32 = load x[5*r0 + i0] if v0
    v2: f32 = const 1.0
    v3: f32 = add v1, v2
    v4: f32 = reduce sum v3
    v5: f32 = reduce max v3
    store y[i0] = v4
    store z[i0] = v5
""")
    x, mask = torch.randn(5 * n), torch.rand(n) < 0.5
    found = agree(program, [x, mask], cutting(6), s0=n)
    assert len(found.steps) == 2
    torch.testing.assert_close(
        interpret(found, [x, mask], {"s0": n})[0],
        (torch.where(mask[:, None], x.reshape(n, 5), 0.0) + 1).sum(0),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip


def test_axes_that_are_not_one() -> None:
    """Images with a border: rows and columns of a channel are no single run of memory."""
    program = parse_program("""program(x: f32[1200]) -> (y: f32[4])
buffer y: f32[4] output
kernel channels
  for i0 < 4 parallel, r0 < 5 reduce, r1 < 6 reduce, r2 < 7 reduce:
    v0: f32 = load x[240*r0 + 40*r1 + 4*r2 + i0]
    v1: f32 = reduce sum v0
    store y[i0] = v1
""")
    for wanted in (2, 5, 11, 30, 210):
        agree(program, numbers(program), cutting(wanted))


# -- what is left as it is ------------------------------------------------------------------------
def test_positions_and_what_goes_in_order_stay_whole() -> None:
    for program in (reduction("argmax", 2, 50_000), running_sum(2, 50_000), histogram(50_000, 7)):
        assert split(program, cutting(8)) == program


def test_what_would_find_its_own_results_stays_whole() -> None:
    program = parse_program("""program(x: f32[400], total: f32[1]) -> (x: f32[400])
kernel scaled
  for r0 < 400 reduce:
    v0: f32 = load x[r0]
    v1: f32 = reduce sum v0
    v2: f32 = load total[0]
    v3: f32 = add v1, v2
    v4: f32 = mul v0, v3
    v5: f32 = mul v0, v2
    v6: f32 = add v4, v5
    store total[0] = v3
    store x[r0] = v6
""")
    assert split(program, cutting(8)) == program


def test_a_running_mean_is_kept_where_the_parts_come_together() -> None:
    program = parse_program("""program(x: f32[800], mean: f32[2]) -> (y: f32[800])
buffer y: f32[800] output
kernel centred
  for i0 < 2 parallel, r0 < 400 reduce:
    v0: f32 = load x[2*r0 + i0]
    v1: f32 = reduce sum v0
    v2: f32 = const 0.0025
    v3: f32 = mul v1, v2
    v4: f32 = load mean[i0]
    v5: f32 = const 0.5
    v6: f32 = mul v4, v5
    v7: f32 = add v6, v3
    v8: f32 = sub v0, v3
    store mean[i0] = v7
    store y[2*r0 + i0] = v8
""")
    found = agree(program, numbers(program), cutting(8))
    assert [step.writes for step in found.kernels][1][0] == "mean" and len(found.steps) == 3


def test_a_cpu_and_no_fuel_leave_all_whole() -> None:
    program = reduction("sum", 8, 100_000)
    assert split_reductions(program, Context(Options(), detect(threads=2))) == program
    assert split(program, fuel=0) == program
    assert split(program) != program


# -- how much is cut ------------------------------------------------------------------------------
def parts(program: Program) -> int | None:
    (kernel,) = program.kernels
    cut = cut_of(kernel, GPU)
    if cut is None:
        return None
    total = 1
    for run in cut.runs:
        total *= run.count.int
    return total


def test_enough_threads_have_work_and_none_too_little() -> None:
    columns = parts(reduction("sum", 3072, 16384, "columns"))
    assert columns is not None and 30_000 < columns * 3072 // 4 < 200_000  # threads
    all_of_it = parts(reduction("sum", 1, 100_000_000))
    assert all_of_it is not None and 264 <= all_of_it <= 1056  # blocks
    channels = parts(reduction("sum", 64, 802_816, "columns"))
    assert channels is not None and 16 <= 802_816 // channels <= 256  # rows that one thread adds up


def test_what_has_enough_work_is_left() -> None:
    assert parts(reduction("sum", 8192, 4096)) is None
    assert parts(reduction("sum", 4096, 64, "columns")) is None
    assert parts(reduction("sum", 1_000_000, 500, "columns")) is None
    assert parts(reduction("sum", 1, 4096)) is None


def test_text() -> None:
    """The parts lie side by side, so that a team of threads adds them up."""
    found = split(reduction("sum", 64, 8192, "columns", "f32"))
    first, second = found.kernels
    assert isinstance(first, Kernel) and [type(op) for op in second.body].count(Reduce) == 1
    plans = "\n".join(str(plan_for_gpu(kernel)) for kernel in found.kernels)
    golden.check("split_column_sum", f"{print_program(found)}\n{plans}\n")
