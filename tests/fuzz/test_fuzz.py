"""The slice of the fuzzer that fits `make test`, and the fuzzer's own judgement: it must see what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.fuzz import check as checking
from tests.fuzz.check import check
from tests.fuzz.eager import admitted
from tests.fuzz.generate import numbered, programs
from tests.fuzz.program import FuzzProgram, Line
from tests.fuzz.shrink import shrink

SLICE = 60
SEED = 2026


@pytest.mark.parametrize("place", range(SLICE))
def test_agrees_with_eager(place: int) -> None:
    program = numbered(SEED, place)
    verdict = check(str(program))
    assert verdict.status in ("right", "eager"), f"{verdict.message}\n{program}"


@settings(deadline=None, max_examples=30, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_what_is_drawn_runs_in_eager(program: FuzzProgram) -> None:
    assert admitted(program)


def test_a_number_stands_for_one_program() -> None:
    assert str(numbered(3, 4)) == str(numbered(3, 4)) != str(numbered(3, 5))


PROGRAM = FuzzProgram(
    (Line("a = numbers('float32', (4,), 1)", ("a",)), Line("b = numbers('float32', (4,), 2)", ("b",))),
    (
        Line("v0 = a * b", ("v0",), ("a", "b"), rounds=True),
        Line("v1 = a[1:]", ("v1",), ("a",)),
        Line("v1.add_(1)", (), ("v1",), "v1", rounds=True),
        Line("v2 = torch.exp(b)", ("v2",), ("b",), rounds=True),
    ),
    ("v0", "v2"),
)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda result, a, b: result * 1.00001, "elements differ"),
        (lambda result, a, b: (a.zero_(), result)[1], "elements differ"),
        (lambda result, a, b: result.double(), "float64 instead of"),
        (lambda result, a, b: torch.stack([result, result], 1)[:, 0], "strides"),
    ],
)
def test_sees_what_is_wrong(second: Callable[..., torch.Tensor], message: str) -> None:
    """`second` makes a wrong second result of the right one."""

    def compile_function(program: Callable[..., list], *_: object) -> Callable[..., list]:
        def run(*given: torch.Tensor) -> list:
            first, result = program(*given)
            return [first, second(result, *given)]

        return run

    assert check(str(PROGRAM)).status == "right"
    with mock.patch.object(checking, "compile_function", compile_function):
        verdict = check(str(PROGRAM))
    assert verdict.status == "wrong" and message in verdict.message, verdict


def test_sees_memory_that_is_shared() -> None:
    def compile_function(program: Callable[..., list], *_: object) -> Callable[..., list]:
        return lambda *given: [*program(*given)[:1] * 2]

    twice = replace(PROGRAM, lines=(*PROGRAM.lines, Line("v3 = a * b", ("v3",), ("a", "b"))), outputs=("v3", "v3"))
    apart = replace(twice, lines=(*twice.lines, Line("v4 = v3.clone()", ("v4",), ("v3",))), outputs=("v3", "v4"))
    with mock.patch.object(checking, "compile_function", compile_function):
        assert check(str(twice)).status == "right"
        assert "share memory" in check(str(apart)).message


def test_shrinks_to_what_fails() -> None:
    smaller = shrink(PROGRAM, lambda program: any("add_" in line.code for line in program.lines))
    assert [line.code for line in smaller.lines] == ["a.add_(1)"]


def test_functionalisation_forgets_gaps() -> None:
    """Why such programs are not drawn: PyTorch's own functionalisation gets them wrong, without Litz."""

    def function(a: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        a[:5].contiguous().fill_(0)  # a copy, as `a` has gaps: `a` is not written
        return a + 0

    a = torch.ones(8, 10)[:, ::2]
    eager = function(torch.ones(8, 10)[:, ::2])
    found = torch.func.functionalize(function)(a)
    assert float(eager.sum()) == 80 and float(found.sum()) != 80
