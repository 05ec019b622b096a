"""Whole programs as machine code: drawn ones against the interpreter, before and after scheduling."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litz.context import Context
from litz.loop.interpret import interpret
from litz.loop.ir import Program
from litz.loop.parse import parse_program
from litz.options import Options
from litz.schedule.fuse import fuse
from litz.schedule.simplify import mark_outputs, merge_axes
from litz.target import Target, detect
from tests.codegen.native import run
from tests.strategies import EXACT, arguments, programs

DRAWN = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
INEXACT = (*EXACT, "exp", "tanh", "sigmoid", "erf", "div", "sqrt", "floor_div", "remainder")


def narrower(bytes_: int) -> Target:
    """This machine with narrower vectors: other tails, and more of them."""
    return replace(detect(threads=2), vector_bytes=bytes_)


def agree(program: Program, target: Target | None = None, tolerance: float = 1e-5) -> None:
    inputs = arguments(program)
    wanted = interpret(program, [x.clone() for x in inputs])
    found = run(program, inputs, target)
    for got, want in zip(found, wanted, strict=True):
        assert isinstance(want, torch.Tensor)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


@DRAWN
@given(programs())
def test_as_drawn(program: Program) -> None:
    agree(program)


@DRAWN
@given(programs(INEXACT))
def test_functions_that_round(program: Program) -> None:
    agree(program, tolerance=1e-3)


@pytest.mark.parametrize("operator", ["exp", "tanh", "sigmoid", "erf"])
def test_what_is_no_number_even_as_a_constant(operator: str) -> None:
    """LLVM computes with constants, and what it makes of an integer that is no number is not what the machine does."""
    agree(
        parse_program(f"""program(x: f32[20]) -> (y: f32[20])
buffer y: f32[20] output
kernel k
  for i0 < 20 parallel:
    v0: f32 = const 0.0
    v1: f32 = div v0, v0
    v2: f32 = {operator} v1
    store y[i0] = v2
""")
    )


@DRAWN
@given(programs(), st.sampled_from([16, 32]))
def test_narrower_vectors(program: Program, bytes_: int) -> None:
    agree(program, narrower(bytes_))


@DRAWN
@given(programs())
def test_after_scheduling(program: Program) -> None:
    inputs = arguments(program)
    wanted = interpret(program, [x.clone() for x in inputs])
    scheduled = merge_axes(fuse(mark_outputs(program), Context(Options(), detect(threads=2))))
    for got in (interpret(scheduled, [x.clone() for x in inputs]), run(scheduled, inputs)):
        for one, want in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, want, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads: int) -> None:
    """Shares of the work that do not come out even."""
    from tests.codegen.native import over_each

    x = torch.randn(100_003)
    (found,) = run(over_each([x], "sigmoid", "f32"), [x], detect(threads=threads))
    torch.testing.assert_close(found, torch.sigmoid(x))
