"""The slice of the fuzzer that fits `make test`, and the fuzzer's own judgement: it must see what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litz import pipeline
from litz.errors import CaptureError
from tests.fuzz import check as checking
from tests.fuzz.check import check
from tests.fuzz.eager import Eager, Refused, admitted
from tests.fuzz.generate import KINDS, numbered, programs
from tests.fuzz.program import FuzzProgram, Line
from tests.fuzz.referee import referee, spread
from tests.fuzz.run_program import runs
from tests.fuzz.shrink import shrink
from tests.opinfo.through_dynamo import Watched

SEED = 2026
SIZES = {"plain": 60, "symbolic": 16, "transforms": 10}
SLICE = [(kind, place) for kind, count in SIZES.items() for place in range(count)]


@pytest.mark.parametrize(("kind", "place"), SLICE)
def test_agrees_with_eager(kind: str, place: int) -> None:
    program = numbered(SEED, place, kind)
    verdict = check(str(program))
    assert verdict.status in ("right", "eager", "dynamo"), f"{verdict.message}\n{program}"


@settings(deadline=None, max_examples=30, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(KINDS).flatmap(lambda kind: programs(kind=kind)))
def test_what_is_drawn_runs_in_eager(program: FuzzProgram) -> None:
    assert runs(program) and (program.transform is not None or admitted(program))


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_stands_for_one_program(kind: str) -> None:
    assert str(numbered(3, 4, kind)) == str(numbered(3, 4, kind)) != str(numbered(3, 5, kind))


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


SIZED = FuzzProgram(
    (Line("a = numbers('float32', (n, 3), 1)", ("a",)),),
    (Line("v0 = a * k", ("v0",), ("a",), rounds=True), Line("v1 = v0.sum(0)", ("v1",), ("v0",), rounds=True)),
    ("v0", "v1"), ("n", "k"), ((2, 2), (5, 3), (7, 5)), ("k",),
)  # fmt: skip
DIFFERENTIATED = replace(SIZED, training=True)
BENT = replace(
    DIFFERENTIATED,
    lines=(
        Line("v0 = (a * k).sigmoid()", ("v0",), ("a",), rounds=True),
        Line("v1 = v0.sin()", ("v1",), ("v0",), rounds=True),
    ),
)
AROUND = [replace(BENT, around=around) for around in ("hooks", "written", "batched")]
TRANSFORMED = FuzzProgram(
    PROGRAM.inputs, PROGRAM.lines[:1], ("v0",), transform="torch.func.jacrev(lambda a: base(a, b))(a)"
)
RAISING = replace(
    SIZED,
    lines=(Line("a.add_(1)", (), ("a",), "a"), Line("v0 = a[torch.tensor([k])]", ("v0",), ("a",), raises=True)),
    outputs=("v0",), cases=((3, 2), (3, 9)),
)  # fmt: skip


@pytest.mark.parametrize("program", [SIZED, DIFFERENTIATED, *AROUND, TRANSFORMED, RAISING])
def test_what_goes_through_dynamo_is_right_in_eager(program: FuzzProgram) -> None:
    with _backend(lambda module, inputs: module.forward):
        verdict = check(str(program))
    assert verdict.status == "right", verdict


def _backend(compile_graph: Callable[..., Callable[..., object]]) -> Any:
    return mock.patch.object(Watched, "backend", lambda self, module, inputs: compile_graph(module, inputs))


def _only_at_first(module: Any, inputs: Any) -> Callable[..., object]:
    """Right for the size it was compiled at."""
    first: list[list[tuple[int, ...]]] = []

    def run(*given: Any) -> object:
        shapes = [tuple(x.shape) for x in given if isinstance(x, torch.Tensor)]
        first[:] = first or [shapes]
        found = module.forward(*given)
        return found if shapes == first[0] else tuple(r * 2 if r.dim() == 2 else r for r in found)

    return run


def _without_gradient(module: Any, inputs: Any) -> Callable[..., object]:
    return lambda *given: tuple(r.detach() for r in module.forward(*given))


def _made_again(module: Any, inputs: Any) -> Callable[..., object]:
    """All that the backward needs comes from the arguments as they are by then."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            ctx.save_for_backward(*(x for x in given if isinstance(x, torch.Tensor)))
            ctx.given = given
            return tuple(r.detach() for r in module.forward(*given))

        @staticmethod
        def backward(ctx: Any, *tangents: torch.Tensor) -> Any:
            kept = iter(ctx.saved_tensors)
            with torch.enable_grad():
                again = [next(kept).detach().requires_grad_() if isinstance(x, torch.Tensor) else x for x in ctx.given]
                leaves = [x for x in again if isinstance(x, torch.Tensor)]
                found = iter(torch.autograd.grad(module.forward(*again), leaves, tangents))
            return tuple(next(found) if isinstance(x, torch.Tensor) else None for x in again)

    return Again.apply


def _twice(module: Any, inputs: Any) -> Callable[..., object]:
    """As if what raised were run once more, from the beginning."""

    def run(*given: Any) -> object:
        try:
            return module.forward(*given)
        except Exception:
            return module.forward(*given)

    return run


def _another_error(module: Any, inputs: Any) -> Callable[..., object]:
    def run(*given: Any) -> object:
        try:
            return module.forward(*given)
        except IndexError as error:
            raise RuntimeError from error

    return run


@pytest.mark.parametrize(
    ("program", "wrong"),
    [
        (SIZED, _only_at_first),
        (DIFFERENTIATED, _without_gradient),
        (AROUND[1], _made_again),
        (TRANSFORMED, lambda module, inputs: lambda *given: tuple(r * 1.001 for r in module.forward(*given))),
        (RAISING, _twice),
        (RAISING, _another_error),
    ],
)
def test_sees_what_is_wrong_through_dynamo(program: FuzzProgram, wrong: Callable[..., Any]) -> None:
    with _backend(wrong):
        verdict = check(str(program))
    assert verdict.status == "wrong", verdict


def test_what_may_be_left_to_eager_is_listed() -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CaptureError("no trace")

    with mock.patch.object(pipeline, "trace_joint", refuse):
        for program in (PROGRAM, SIZED, DIFFERENTIATED, TRANSFORMED):
            verdict = check(str(program))
            assert verdict.status == "wrong" and "left to eager" in verdict.message, verdict


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


STORED = """
def inputs(n=5):
    return [torch.ones(n)]

def program(x):
    table = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    return [table[: x.shape[0]], (torch.arange(8.0) * 3 + 1)[2:], x + 1]
"""


@pytest.mark.parametrize("cases", ["", "CASES = [(5,), (3,)]"], ids=["plain", "symbolic"])
def test_what_is_stored_with_the_code_is_not_returned(cases: str) -> None:
    """The judge writes to what a call returned before it calls again."""
    verdict = check(f"import torch\n{cases}\n{STORED}")
    assert verdict.status == "right", verdict.message


@pytest.mark.parametrize("statement, cancels", [("a / a", True), ("a * 3", False)])
def test_what_cancels_in_a_gradient_moves_with_its_terms(statement: str, cancels: bool) -> None:
    source = f"""import torch

TRAINING = True

def inputs():
    return [numbers('float32', (50,), 3)]

def program(a):
    v0 = {statement}  # rounds
    return [v0]
"""
    far = spread(source, ())
    assert far is not None
    exact = referee(source, ()).gradients[0].abs()
    moves = far[1] / exact.clamp(min=torch.finfo(torch.float32).tiny)
    assert bool((moves > 1).any()) is cancels  # by more than it is


@pytest.mark.parametrize("others, moves", [(", a * -1", True), ("", False)])
def test_a_result_that_is_an_argument_adds_its_tangent_with_a_rounding(others: str, moves: bool) -> None:
    source = f"""import torch

TRAINING = True

def inputs():
    return [numbers('float32', (50,), 3)]

def program(a):
    return [a{others}]
"""
    far = spread(source, ())
    assert far is not None
    assert bool(far[-2].any()) is moves


def test_a_statement_for_more_dimensions_is_refused() -> None:
    state = Eager({"x": torch.ones(3)})
    with pytest.raises(Refused, match="fewer dimensions"):
        state.run(Line("v0 = x.std(1)", ("v0",), ("x",), rows=(1,)))


@pytest.mark.parametrize("statement, cancels", [("a / a", True), ("a * 3", False)])
@pytest.mark.parametrize(
    "transform",
    [
        "torch.func.grad(lambda v: base(v).sum())(a),",
        "torch.func.jvp(torch.func.grad(lambda v: base(v).sin().sum()), (a,), (torch.cos(a),))",
        "torch.func.vmap(torch.func.hessian(lambda v: base(v).sin().sum()))(a),",
    ],
)
def test_what_cancels_inside_a_transform_moves_with_its_terms(transform: str, statement: str, cancels: bool) -> None:
    source = f"""import torch

def inputs():
    return [numbers('float32', (50,), 3)]

def base(a):
    v0 = {statement}  # rounds
    return v0

def program(a):
    return list(({transform}))
"""
    far = spread(source, ())
    assert far is not None
    results = referee(source, ()).returned
    least = results[-1].abs().clamp(min=torch.finfo(torch.float32).eps / 10)  # float64 has its own rounding
    assert bool((far[len(results) - 1] > least).any()) is cancels
