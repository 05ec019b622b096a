"""The pipeline itself: its stages, its fuel, its report."""

from __future__ import annotations

import ast
import inspect

import pytest
import torch
from torch.nn import functional as F

import litz
from litz import pipeline, stages
from litz.context import Context
from litz.options import Options
from litz.stages import STAGES
from litz.target import detect
from tests.codegen.compiled import compiled


@torch.library.custom_op("litz_tests::twist", mutates_args=())
def twist(x: torch.Tensor) -> torch.Tensor:
    """What no table of lowerings will ever hold."""
    return torch.roll(x, 1, -1).contiguous()


@twist.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def work(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = F.layer_norm(x, (x.shape[-1],))
    x = F.gelu(F.linear(x, w, b)) + 1
    return twist(x.softmax(-1) * 2) * 3


INPUTS = (torch.randn(9, 20), torch.randn(30, 20), torch.randn(30))


def test_stages_are_unique_and_all_run_in_order() -> None:
    assert len(set(STAGES)) == len(STAGES)
    _, report = compiled(work, INPUTS)
    ran = [stage for stage, _ in report.timings]
    assert ran == [stage for stage in STAGES if stage in ran]
    assert {"trace", "lower", "fuse", "plan_memory", "render", "build"} <= set(ran)


def test_every_stage_goes_through_the_runner() -> None:
    """The names written in the pipeline are those of the list."""
    source = inspect.getsource(pipeline) + inspect.getsource(stages)  # the last stage is run where code is loaded
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [call.args[0] for call in calls if getattr(call.func, "id", None) == "run"]
    assert {name.value for name in named if isinstance(name, ast.Constant)} == set(STAGES)


def test_a_stage_that_is_not_listed_is_refused() -> None:
    with pytest.raises(AssertionError, match="not listed"):
        pipeline.run("polish", Context(Options(), detect(threads=1)), lambda: None)


def test_without_fuel_nothing_is_fused() -> None:
    made, report = compiled(work, INPUTS, fuel=0)
    assert report.fuel_left == 0 and report.last_spent is None
    lowered = report.snapshot("lower").count("\nkernel ")
    assert report.kernels == report.snapshot("fuse").count("\nkernel ") == lowered
    torch.testing.assert_close(made(*INPUTS)[0], work(*INPUTS))
    _, full = compiled(work, INPUTS)
    assert full.kernels < report.kernels


def test_each_unit_of_fuel_is_one_step_and_every_step_is_right() -> None:
    """What bisection needs: one more unit is one more optimisation, and the ones before it are the same."""
    spent: list[str] = []
    kernels = []
    for fuel in range(100):
        ctx = Context(Options(fuel=fuel, verify=True), detect(threads=2))
        with torch.no_grad():
            made = pipeline.compile_function(work, INPUTS, None, ctx)
        assert ctx.spent[: len(spent)] == spent
        torch.testing.assert_close(made(*INPUTS)[0], work(*INPUTS))
        kernels.append(ctx.report().kernels)
        if len(ctx.spent) == len(spent) and fuel:
            break
        assert len(ctx.spent) == fuel
        spent = ctx.spent
    else:
        raise AssertionError("fuel was still being spent after a hundred units")
    assert kernels == sorted(kernels, reverse=True) and kernels[-1] < kernels[0]


def test_the_report() -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(work, backend="litz", options={"snapshots": True, "matmul": "library"})(*INPUTS)
    report = litz.last_report()
    assert report.kernels >= report.kernels_built > 0
    assert dict(report.calls)["litz_tests::twist"] == 1 and dict(report.calls)["aten::addmm"] == 1
    assert report.launches == report.kernels + 2
    (fallback,) = report.fallbacks  # a library's product is no fallback
    assert fallback.operator == "litz_tests.twist.default" and fallback.source and "test_pipeline.py" in fallback.source
    assert report.arena_bytes > 0 and report.seconds > 0
    assert "kernel" in report.snapshot("fuse") and "define void" in report.snapshot("render")
    with pytest.raises(KeyError, match="fuse"):
        report.snapshot("fused")
    for piece in ("kernels:", "arena:", "litz_tests::twist × 1", "no lowering", "stages:", "trace:"):
        assert piece in str(report)


def test_equal_kernels_are_built_once() -> None:
    def layers(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = twist(x.softmax(-1) + 1)
        return x

    _, report = compiled(layers, (torch.randn(6, 40),))
    assert report.kernels == 4 and report.kernels_built == 1


def test_an_operator_nobody_lowers_is_called() -> None:
    made, report = compiled(lambda x: twist(x * 2) + 1, (torch.randn(5, 5),))
    x = torch.randn(5, 5)
    torch.testing.assert_close(made(x)[0], twist(x * 2) + 1)
    assert [(f.operator, f.why) for f in report.fallbacks] == [("litz_tests.twist.default", "no lowering")]
