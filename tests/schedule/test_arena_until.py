"""The arena is returned before large memory is due that it need not wait for: foretold so, and done so."""

from __future__ import annotations

import gc

import torch

import litz
from benchmarks.training_step import live_bytes
from litz.loop.expr import constant
from litz.loop.ir import Buffer, Program
from litz.report import step_peak
from litz.runtime.arena import ARENA
from litz.schedule.memory import plan_for_training
from litz.schedule.peak import arena_until, peak
from litz.schedule.place import NO_WORKSPACE, Workspace
from tests.schedule.test_separate import kernel

SMALL, LARGE = 1 << 16, 1 << 20  # elements
WORKSPACE = Workspace(1 << 20, (0,))


def program_of(last_reads: str, small: int = SMALL) -> Program:
    """Small temporaries, then a large result."""
    steps = [
        kernel("first", ["in0"], "t0", small),
        kernel("second", ["t0"], "out0", small),
        kernel("last", [last_reads], "out1", LARGE),
    ]
    sizes = {"in0": LARGE, "t0": small, "out0": small, "out1": LARGE}
    kinds = {"in0": "input", "t0": "temp", "out0": "output", "out1": "output"}
    return Program({n: Buffer(n, "f32", constant(sizes[n]), kinds[n]) for n in sizes}, ("in0",), (), tuple(steps))


def test_before_large_memory_is_due() -> None:
    program = program_of("in0")
    layout = plan_for_training(program)
    assert arena_until(program, layout, WORKSPACE) == 2
    memory = peak(program, layout, WORKSPACE, until=2)
    arena = WORKSPACE.bytes + 4 * SMALL
    assert memory.arena == arena and memory.busy == arena + 4 * SMALL and memory.late == 4 * (SMALL + LARGE)
    assert memory.peak == memory.late < peak(program, layout, WORKSPACE).peak
    assert step_peak(memory, [memory]) == memory.left + memory.late


def test_not_where_it_is_in_use_or_too_little() -> None:
    program = program_of("in0")
    layout = plan_for_training(program)
    assert arena_until(program, layout, WORKSPACE._replace(steps=(2,))) is None
    little = program_of("in0", 1 << 10)
    assert arena_until(little, plan_for_training(little), NO_WORKSPACE) is None
    late = program_of("t0")
    assert arena_until(late, plan_for_training(late), WORKSPACE) is None


def test_a_step_whose_last_gradient_is_the_largest() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    table, weight = torch.nn.Embedding(5_000, 256), torch.nn.Linear(256, 256)
    model = torch.nn.Sequential(table, weight, torch.nn.GELU())
    places = torch.randint(0, 5_000, (2048,))
    fast = torch.compile(lambda x: model(x).square().sum(), backend="litz", options={"matmul": "generate"})

    def run() -> None:
        model.zero_grad(set_to_none=True)
        fast(places).backward()

    run()
    run()
    want = [p.grad.clone() for p in model.parameters()]
    report = litz.last_report()
    assert report is not None
    (backward,) = (built.memory for built in report.built if built.part == "backward")
    gradients = sum(p.numel() for p in model.parameters()) * 4
    assert 0 < backward.late < backward.arena + gradients
    model.zero_grad(set_to_none=True)
    gc.collect()
    ARENA.clear()
    assert abs(live_bytes(run) / report.peak_bytes - 1) < 0.01
    for _ in range(3):  # whose arenas lie elsewhere
        kept = torch.empty(1 << 20)
        run()
        torch.testing.assert_close([p.grad for p in model.parameters()], want, rtol=0, atol=0)
        del kept
