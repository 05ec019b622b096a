"""Small kernels that have nothing to do with one another are one, and nothing else changes place with what it needs."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings

from litz.context import Context
from litz.loop.interpret import interpret
from litz.loop.ir import Program
from litz.loop.parse import parse_program
from litz.loop.verify import verify
from litz.options import Options
from litz.schedule.join_small import join_small
from litz.schedule.simplify import mark_outputs
from litz.target import GpuTarget, detect
from tests.strategies import arguments, programs

GPU = GpuTarget(detect(threads=1), "sm_90", "+ptx80", 132)
DRAWN = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def joined(program: Program, fuel: int | None = None) -> Program:
    found = join_small(program, Context(Options(fuel=fuel), GPU))
    verify(found)
    return found


@DRAWN
@given(programs())
def test_as_drawn(program: Program) -> None:
    inputs = arguments(program)
    wanted = interpret(program, [x.clone() for x in inputs], {})
    for got, want in zip(interpret(joined(mark_outputs(program)), inputs, {}), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def kernel(name: str, size: int, reads: str, writes: str) -> str:
    return f"""kernel {name}
  for i0 < {size} parallel:
    v0: f32 = load {reads}[i0]
    v1: f32 = add v0, v0
    store {writes}[i0] = v1
"""


def program(*kernels: str) -> Program:
    inputs = ", ".join(f"x{i}: f32[8]" for i in range(6))
    temporaries = "\n".join(f"buffer t{i}: f32[8] temp" for i in range(4))
    large = "buffer large: f32[8000] temp\nbuffer larger: f32[8000] temp"
    return parse_program(f"""program({inputs}) -> (y: f32[8])
buffer y: f32[8] output
{temporaries}
{large}
{"".join(kernels)}""")


def names(found: Program) -> list[str]:
    return [step.name for step in found.steps]


def agree(made: Program) -> Program:
    found = joined(made)
    inputs = [torch.randn(8) for _ in range(6)]
    before, after = ([x.clone() for x in inputs] for _ in range(2))
    wanted, got = interpret(made, before, {}), interpret(found, after, {})
    for a, b in zip([*wanted, *before], [*got, *after], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    return found


def test_those_of_one_size_are_one_and_wait_for_the_last() -> None:
    found = agree(program(
        kernel("a", 8, "x0", "t0"), kernel("b", 4, "x1", "t1"), kernel("c", 8, "x2", "t2"), kernel("d", 8, "x3", "y"),
    ))  # fmt: skip
    assert names(found) == ["a_and_2", "b"]


def test_what_needs_another_comes_after_it() -> None:
    reads_and_writes = (("x0", "t0"), ("t0", "t1"), ("x1", "t2"), ("t2", "y"))
    chain = [kernel(name, 8, *names) for name, names in zip("abcd", reads_and_writes, strict=True)]
    assert names(agree(program(*chain))) == ["a", "b_and_1", "d"]


def test_what_is_overwritten_is_read_before() -> None:
    """The second writes what the first reads; the third what the second writes."""
    found = agree(program(
        kernel("a", 8, "x0", "y"), kernel("b", 8, "x1", "x0"), kernel("c", 8, "x2", "x0"), kernel("d", 8, "x0", "x3"),
    ))  # fmt: skip
    assert names(found) == ["a", "b", "c", "d"]


def test_a_large_kernel_is_in_nobodys_way_and_waits_for_none() -> None:
    large = """kernel large
  for i0 < 8000 parallel:
    v0: f32 = const 1.0
    store large[i0] = v0
"""
    reader = """kernel reader
  for i0 < 8000 parallel:
    v0: f32 = load t0[i0 % 8]
    store larger[i0] = v0
"""
    first, second = kernel("a", 8, "x0", "t0"), kernel("b", 8, "x1", "y")
    assert names(agree(program(first, large, second))) == ["large", "a_and_1"]
    assert names(agree(program(first, reader, second))) == ["a", "reader", "b"]


def test_what_checks_its_data_stays_where_it_is() -> None:
    checks = """kernel checks
  for i0 < 8 parallel:
    v0: f32 = load x0[i0]
    v1: i64 = cast v0
    v2: i64 = check v1 < 8
    v3: f32 = load x1[v2]
    store t0[i0] = v3
"""
    made = program(checks, kernel("a", 8, "x2", "x3"), kernel("b", 8, "x4", "y"))
    assert names(joined(made)) == ["checks", "a_and_1"]


def test_a_kernel_has_room_for_so_many() -> None:
    made = parse_program(
        "program({}) -> ({})\n{}\n{}".format(
            ", ".join(f"x{i}: f32[8]" for i in range(100)),
            ", ".join(f"y{i}: f32[8]" for i in range(100)),
            "\n".join(f"buffer y{i}: f32[8] output" for i in range(100)),
            "".join(kernel(f"k{i}", 8, f"x{i}", f"y{i}") for i in range(100)),
        )
    )
    found = joined(made)
    assert 2 <= len(found.steps) <= 4 and all(len(k.reads) + len(k.writes) <= 128 for k in found.kernels)


def test_a_cpu_and_no_fuel_leave_all_apart() -> None:
    made = program(kernel("a", 8, "x0", "t0"), kernel("b", 8, "x1", "y"))
    assert join_small(made, Context(Options(), detect(threads=2))) == made
    assert joined(made, fuel=0) == made


def test_a_place_that_is_computed_keeps_its_value() -> None:
    gathers = """kernel gathers
  for i0 < 8 parallel:
    v0: i64 = index -i0 + 7
    v1: f32 = load x0[v0]
    store t0[i0] = v1
"""
    assert names(agree(program(gathers, kernel("a", 8, "x1", "y")))) == ["gathers_and_1"]
