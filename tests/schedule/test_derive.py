"""What follows from a value that is stored anyway is not stored as well: the numbers are the same ones, to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from litz.context import Context
from litz.loop.expr import Axis, expr
from litz.loop.interpret import interpret
from litz.loop.ir import Apply, Kernel, Load, Program, Store
from litz.loop.parse import parse_program
from litz.loop.text import print_program
from litz.loop.verify import verify
from litz.options import Options
from litz.schedule import derive as module
from litz.schedule.derive import _each_load_once, derive
from litz.schedule.fuse import fuse
from litz.schedule.memory import plan_for_training
from litz.schedule.peak import peak
from litz.schedule.place import NO_WORKSPACE
from litz.schedule.simplify import mark_outputs, merge_axes
from litz.target import detect
from tests import golden
from tests.strategies import arguments, programs

GATED = """\
program(x: f32[131072], w: f32[65536], v: f32[65536], g: f32[131072]) -> (d: f32[512, 256], e: f32[512, 256])
buffer gate: f32[131072] temp
buffer silu: f32[131072] temp
buffer up: f32[131072] temp
buffer d: f32[131072] output
buffer e: f32[131072] output
kernel gated
  for i0 < 512 parallel, i1 < 256 parallel, r0 < 256 reduce:
    v0: f32 = load w[256*i1 + r0]
    v1: f32 = load x[256*i0 + r0]
    v2: f32 = mul v1, v0
    v3: f32 = reduce sum v2
    store gate[256*i0 + i1] = v3
    v4: f32 = sigmoid v3
    v5: f32 = mul v3, v4
    store silu[256*i0 + i1] = v5
kernel raised
  for i0 < 512 parallel, i1 < 256 parallel, r0 < 256 reduce:
    v0: f32 = load v[256*i1 + r0]
    v1: f32 = load x[256*i0 + r0]
    v2: f32 = mul v1, v0
    v3: f32 = reduce sum v2
    v4: f32 = load silu[256*i0 + i1]
    v5: f32 = mul v3, v4
    store up[256*i0 + i1] = v5
kernel back
  for i0 < 131072 parallel:
    v0: f32 = load g[i0]
    v1: f32 = load silu[i0]
    v2: f32 = load gate[i0]
    v3: f32 = load up[i0]
    v4: f32 = mul v0, v1
    v5: f32 = mul v4, v2
    store d[i0] = v5
    v6: f32 = add v4, v3
    store e[i0] = v6
"""


def derived(program: Program, fuel: int | None = None) -> Program:
    verify(program)
    found = derive(program, Context(Options(fuel=fuel), detect(2)))
    verify(found)
    return found


def test_a_gate_and_its_function() -> None:
    program = parse_program(GATED)
    found = derived(program)
    golden.check("derive", print_program(found))
    inputs = [torch.randn(size) for size in (131072, 65536, 65536, 131072)]
    for got, want in zip(interpret(found, inputs), interpret(program, inputs), strict=True):
        assert torch.equal(got, want)
    held = [peak(one, plan_for_training(one, sums_first=True), NO_WORKSPACE).peak for one in (program, found)]
    assert held[1] == held[0] - 4 * 131072


def test_without_fuel_nothing_changes() -> None:
    program = parse_program(GATED)
    assert derived(program, fuel=0) is program


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        # It would live longer for it.
        ("    v2: f32 = load gate[i0]\n", "    v2: f32 = load g[i0]\n"),
        # What is packed for a product would be computed again for each block.
        ("load x[256*i0 + r0]\n    v2: f32 = mul v1, v0\n    v3: f32 = reduce sum v2\n    v4: f32 = load",
         "load silu[256*i0 + r0]\n    v2: f32 = mul v1, v0\n    v3: f32 = reduce sum v2\n    v4: f32 = load"),
        # Not an element for an element.
        ("    store silu[256*i0 + i1] = v5\n", "    store silu[512*i1 + i0] = v5\n"),
        # Too dear.
        ("    v4: f32 = sigmoid v3\n", "    v6: f32 = sigmoid v3\n    v4: f32 = lgamma v6\n"),
        # It leaves the program.
        ("d: f32[512, 256], e", "silu: f32[512, 256], e"),
    ],
)  # fmt: skip
def test_what_stays(line: str, instead: str) -> None:
    assert line in GATED
    program = mark_outputs(parse_program(GATED.replace(line, instead, 1)))
    assert derived(program) is program


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(programs())
def test_as_drawn(program: Program) -> None:
    ctx = Context(Options(), detect(2))
    fused = merge_axes(fuse(mark_outputs(program), ctx))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAST", 0)
        patch.setattr(module, "_DEAREST", 10_000)
        found = derived(fused)
    inputs = arguments(program)
    want = interpret(fused, [x.clone() for x in inputs])
    for got, one in zip(interpret(found, [x.clone() for x in inputs]), want, strict=True):
        torch.testing.assert_close(got, one, rtol=0, atol=0, equal_nan=True)
    assert sum(len(k.stores) for k in found.steps if isinstance(k, Kernel)) <= sum(
        len(k.stores) for k in fused.steps if isinstance(k, Kernel)
    )


def test_what_is_written_in_between_is_loaded_again() -> None:
    at = expr(Axis("i0", 4))
    body = (
        Load("v0", "f32", "a", at), Load("v1", "f32", "b", at), Store("a", at, "v1"), Load("v2", "f32", "a", at),
        Load("v3", "f32", "b", at), Apply("v4", "f32", "add", ("v2", "v3")), Store("c", at, "v4"),
    )  # fmt: skip
    kept = [op for op in _each_load_once(body) if isinstance(op, Load)]
    assert [op.name for op in kept] == ["v0", "v1", "v2"]
