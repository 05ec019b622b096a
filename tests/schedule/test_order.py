"""Steps that let go of memory come first: the peak is lower, and every dependence stays."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from litz.context import Context
from litz.loop.expr import constant
from litz.loop.ir import Buffer, Kernel, Program
from litz.options import Options
from litz.schedule.memory import plan_for_training
from litz.schedule.order import order
from litz.schedule.peak import peak
from litz.schedule.place import NO_WORKSPACE
from litz.target import detect
from tests.schedule.test_separate import assert_dependences_kept, kernel

LARGE = 1 << 20  # elements


def program_of(steps: Sequence[Kernel], small: frozenset[str] = frozenset()) -> Program:
    names = list(dict.fromkeys(b for step in steps for b in (*step.reads, *step.writes)))
    kinds = {b: "input" if b.startswith("in") else "output" if b.startswith("out") else "temp" for b in names}
    buffers = {b: Buffer(b, "f32", constant(1 if b in small else LARGE), kinds[b]) for b in names}
    return Program(buffers, tuple(b for b in names if kinds[b] == "input"), (), tuple(steps))


def ordered(program: Program, dropped: frozenset[str] = frozenset(), fuel: int | None = None) -> Program:
    found = order(program, Context(Options(fuel=fuel), detect(2)), dropped)
    assert_dependences_kept(program.steps, found.steps)  # type: ignore[arg-type]
    return found


def peak_of(program: Program, dropped: frozenset[str] = frozenset()) -> int:
    return peak(program, plan_for_training(program), NO_WORKSPACE, dropped).peak


def backward(layers: int) -> tuple[Program, frozenset[str]]:
    """As autograd has it: of each layer the input's gradient, then the weight's, which is small, from what was kept."""
    steps = []
    for at in range(layers):
        steps.append(kernel(f"input{at}", ["in_flow" if at == 0 else f"flow{at - 1}", "in_w"], f"flow{at}"))
        steps.append(kernel(f"weight{at}", [f"in_kept{at}", "in_flow" if at == 0 else f"flow{at - 1}"], f"out{at}", 1))
    small = frozenset(f"out{at}" for at in range(layers)) | {"in_w"}
    return program_of(steps, small), frozenset(f"in_kept{at}" for at in range(layers))


def test_what_was_kept_goes_before_more_is_made() -> None:
    program, kept = backward(4)
    found = ordered(program, kept)
    names = [step.name for step in found.steps]
    assert all(names.index(f"weight{at}") < names.index(f"input{at}") for at in range(4))
    assert peak_of(found, kept) < peak_of(program, kept)


def test_what_is_read_late_is_made_late() -> None:
    """As what is computed again at the start of a backward, though its readers come behind others."""
    again = [kernel(f"again{at}", ["in_small"], f"made{at}") for at in range(3)]
    flow = [kernel(f"flow{at}", ["in_x" if at == 0 else f"out{at - 1}", f"made{at}"], f"out{at}", 1) for at in range(3)]
    program = program_of([*again, *flow], frozenset(("in_small", "out0", "out1", "out2")))
    found = ordered(program)
    names = [step.name for step in found.steps]
    assert names.index("again2") > names.index("flow1") and names.index("again1") > names.index("flow0")
    assert peak_of(found) < 1.01 * LARGE * 4 < peak_of(program)  # one of the three at a time


def test_without_fuel_the_order_is_the_one_there_was() -> None:
    program, kept = backward(4)
    assert ordered(program, kept, fuel=0) is program


def test_a_program_that_gains_nothing_is_left_alone() -> None:
    program, _ = backward(4)
    kept_by_others = ordered(program)
    assert kept_by_others is program or peak_of(kept_by_others) < peak_of(program)
    chain = program_of([kernel(f"k{i}", ["in0" if i == 0 else f"t{i - 1}"], f"t{i}") for i in range(6)])
    assert ordered(chain) is chain


def test_what_the_caller_sees_happens_in_turn() -> None:
    """A write to an argument does not move before another."""
    steps = [
        kernel("first", ["t0"], "in_a"),
        kernel("second", ["t1", "t2"], "in_b"),
    ]
    made = [kernel(f"make{i}", ["in_x"], f"t{i}") for i in range(3)]
    found = ordered(program_of([*made, *steps]))
    names = [step.name for step in found.steps]
    assert names.index("first") < names.index("second")


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(seed: int) -> None:
    draw = random.Random(seed)
    made, steps = ["in0", "in1"], []
    for at in range(40):
        reads = [draw.choice(made[-8:]), draw.choice(made)]
        steps.append(kernel(f"k{at}", reads, f"{'out' if draw.random() < 0.1 else 't'}{at}"))
        made.append(steps[-1].writes[0])
    program = program_of(steps, frozenset(n for n in made if draw.random() < 0.5))
    found = ordered(program)
    assert sorted(s.name for s in found.steps) == sorted(s.name for s in steps)
    assert found is program or peak_of(found) <= peak_of(program)
