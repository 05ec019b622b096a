"""Independent kernels part by part: chains come together, and every dependence stays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from litz.context import Context
from litz.loop.expr import Axis, constant, expr
from litz.loop.ir import Apply, Buffer, Kernel, Load, Program, Step, Store
from litz.options import Options
from litz.schedule.separate import separate
from litz.target import detect

SIZE = 4096


def kernel(name: str, reads: Sequence[str], write: str, size: int = SIZE) -> Kernel:
    axis = Axis("i0", constant(size))
    loads = [Load(f"v{i}", "f32", b, expr(axis) if size > 1 else constant(0)) for i, b in enumerate(reads)]
    total = Apply("sum", "f32", "add", ("v0", f"v{len(reads) - 1}"))
    index = expr(axis) if size > 1 else constant(0)
    return Kernel(name, (axis,) if size > 1 else (), (), (*loads, total, Store(write, index, "sum")))


def ordered(steps: Sequence[Kernel], small: frozenset[str] = frozenset(), fuel: int | None = None) -> list[str]:
    """The names in their new order, which is checked to keep what comes before what."""
    names = {b for step in steps for b in (*step.reads, *step.writes)}
    kinds = {b: "input" if b.startswith("in") else "temp" for b in names}
    buffers = {b: Buffer(b, "f32", constant(1 if b in small else SIZE), kinds[b]) for b in names}
    program = Program(buffers, tuple(b for b in names if kinds[b] == "input"), (), tuple(steps))
    found = separate(program, program.steps, Context(Options(fuel=fuel), detect(2)))
    assert sorted(s.name for s in found) == sorted(s.name for s in steps)
    assert_dependences_kept(steps, found)
    return [step.name for step in found]


def assert_dependences_kept(before: Sequence[Kernel], after: Sequence[Step]) -> None:
    place = {step.name: position for position, step in enumerate(after)}
    for position, first in enumerate(before):
        for second in before[position + 1 :]:
            touched = {*second.reads, *second.writes}
            if touched & set(first.writes) or set(first.reads) & set(second.writes):
                assert place[first.name] < place[second.name]


def lists(count: int, length: int) -> list[Kernel]:
    """Chains as list operators leave them, operator by operator, and each chain's end written back last of all."""
    steps = [
        kernel(f"{k}.{op}", [f"in{k}" if op == 0 else f"t{k}_{op - 1}"], f"t{k}_{op}")
        for op in range(length)
        for k in range(count)
    ]
    return steps + [kernel(f"{k}.back", [f"t{k}_{length - 1}"], f"in{k}") for k in range(count)]


def test_chains_come_together() -> None:
    want = [f"{k}.{op}" for k in range(5) for op in (*range(4), "back")]
    assert ordered(lists(5, 4)) == want


def test_without_fuel_nothing_moves() -> None:
    steps = lists(5, 4)
    assert ordered(steps, fuel=0) == [step.name for step in steps]


def test_what_is_hardly_mixed_stays_as_it_is() -> None:
    steps = lists(2, 3)
    assert ordered(steps) == [step.name for step in steps]


def test_one_chain_stays_as_it_is() -> None:
    steps = [kernel("a", ["in0"], "t0"), kernel("b", ["in1"], "t1"), kernel("c", ["t0", "t1"], "t2")]
    assert ordered(steps) == ["a", "b", "c"]


def test_chains_behind_a_common_beginning() -> None:
    """Everything hangs together, as a backward with the step of an optimizer behind it; its end falls apart."""
    common = [kernel(f"common.{i}", [f"c{i - 1}" if i else "in9"], f"c{i}") for i in range(6)]
    gradients = [kernel(f"{k}.grad", [f"c{k}"], f"g{k}") for k in range(6)]
    chains = [
        kernel(f"{k}.{op}", [f"t{k}_{op - 1}" if op else f"g{k}"], f"t{k}_{op}") for op in range(3) for k in range(6)
    ]
    found = ordered([*common, *gradients, *chains])
    assert found[:6] == [f"common.{i}" for i in range(6)]
    for k in range(6):
        places = [found.index(f"{k}.{op}") for op in range(3)]
        assert places == list(range(places[0], places[0] + 3))


def test_a_few_numbers_link_nothing_and_come_first() -> None:
    apart = [kernel(f"{k}.0", [f"in{k}"], f"t{k}_0") for k in range(6)]
    rate = kernel("rate", ["in9"], "rate", size=1)
    scaled = [kernel(f"{k}.{op}", ["rate", f"t{k}_{op - 1}"], f"t{k}_{op}") for op in (1, 2) for k in range(6)]
    found = ordered([*apart, rate, *scaled], frozenset({"in9", "rate"}))
    assert found == ["rate", *(f"{k}.{op}" for k in range(6) for op in range(3))]


@pytest.mark.parametrize("order", [("use", "write"), ("write", "use")])
def test_a_small_buffer_read_and_written_by_others_keeps_its_turn(order: tuple[str, str]) -> None:
    """The number is of a large buffer's making or is still read by a kernel before it: neither may be overtaken."""
    small = frozenset({"n"})
    use, write = kernel("use", ["n", "in0"], "t0"), kernel("write", ["in8"], "n", size=1)
    chains = lists(8, 2)
    steps = [use, write] if order[0] == "use" else [write, use]
    ordered([*steps, *chains], small | {"in8"})
