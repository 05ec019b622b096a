"""Single numbers on the CPU beside tensors of a GPU: arguments of kernels, read by the host as it starts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.errors import CaptureError
from litz.loop.dtype import to_torch
from litz.loop.ir import Program
from litz.loop.parse import parse_program
from litz.loop.text import print_program
from tests.codegen.emulate import run
from tests.codegen.gpu_programs import ForGpu, compile_for_gpu

TYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


def compiled(function: Callable[..., Any], given: dict[str, Any], **how: Any) -> tuple[ForGpu, list[Program]]:
    """For a GPU, with single numbers left on the CPU; and its programs, forward and backward."""
    programs: list[Program] = []
    made = compile_for_gpu(
        function, given, moved="trace", numbers=True, after={"join_small": programs.append}, verify=True, **how
    )
    made.parts()
    return made, programs


def numbers(program: Program) -> list[str]:
    return [name for name in program.inputs if name is not None and program.buffers[name].kind == "number"]


def arguments(program: Program, *given: torch.Tensor) -> list[torch.Tensor]:
    """In the order of the program's inputs; each is known by its type and size."""
    known = {(t.dtype, t.numel()): t.detach() for t in given}
    buffers = [program.buffers[str(name)] for name in program.inputs]
    return [known[to_torch(buffer.dtype), buffer.size.int] for buffer in buffers]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_number_of_any_type_is_an_argument(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * s + 1, torch.where(x > s, x, s), x.masked_fill(x < 0, s)

    given = {"x": torch.randn(40, 33), "s": torch.tensor(3.7).to(dtype)}
    _, (program,) = compiled(function, given)
    assert len(numbers(program)) == 1 and len(program.kernels) == 1 and not program.calls
    ran = run(program, arguments(program, *given.values()))
    assert ran.kernels == 1
    for found, wanted in zip(ran.results, function(**given), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_whole_number_that_no_float_holds() -> None:
    given = {"x": torch.arange(100), "n": torch.tensor(2**62 + 1)}
    made, (program,) = compiled(lambda x, n: x + n, given)
    assert torch.equal(run(program, [*given.values()]).results[0], given["x"] + (2**62 + 1))
    (source,) = made.forward.plan.numbers
    assert source.read([*given.values()], {}) == 2**62 + 1


def test_what_is_made_of_numbers_is_made_on_the_device() -> None:
    def function(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x * (s * 2 + torch.tensor(0.5)).exp() + torch.full((), 3.0) + s.to(torch.float32)

    given = {"x": torch.randn(64, 32), "s": torch.tensor(0.25, dtype=torch.float64)}
    made, (program,) = compiled(function, given)
    ran = run(program, arguments(program, *given.values(), *made.forward.constants))
    torch.testing.assert_close(ran.results[0], function(**given))


def test_training_keeps_the_number_itself() -> None:
    def function(x: torch.Tensor, s: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return (x * s).sin().sum(-1) / n

    given = {"x": torch.randn(64, 32, requires_grad=True), "s": torch.tensor(1.5), "n": torch.tensor(7)}
    _, (forward, backward) = compiled(function, given, training=True)
    assert len(numbers(forward)) == 2 and len(numbers(backward)) == 2
    out = function(**given)
    tangent = torch.randn(64)
    out.backward(tangent)
    result, *saved = run(forward, arguments(forward, *given.values())).results
    torch.testing.assert_close(result, out.detach())
    assert [t.dim() for t in saved] == [2]  # no number was made of the two
    (found,) = run(backward, arguments(backward, given["s"], given["n"], *saved, tangent)).results
    torch.testing.assert_close(found, given["x"].grad)


@pytest.mark.parametrize("training", [False, True])
def test_a_float_that_varies(training: bool) -> None:
    """As Dynamo passes it: in a tensor of the CPU, out of which the graph takes it."""

    def function(x: torch.Tensor, t: float) -> torch.Tensor:
        return torch.softmax(x.sin() / t, -1) * (t + x.shape[0])

    given = {"x": torch.randn(5, 40, requires_grad=training), "t": 0.3}
    _, programs = compiled(function, given, training=training, dynamic=True)
    for program in programs:
        assert len(numbers(program)) == 1
        assert parse_program(print_program(program)) == program
    if not training:
        (out,) = run(programs[0], [5, 40, given["x"], torch.tensor(0.7, dtype=torch.float64)]).results  # type: ignore[list-item]
        torch.testing.assert_close(out, function(given["x"], 0.7))


def test_numbers_are_passed_as_they_lie() -> None:
    given = {"x": torch.randn(64), "s": torch.tensor(0.5, dtype=torch.bfloat16), "d": torch.tensor(0.5).double()}
    made, _ = compiled(lambda x, s, d: x * s + d, given)
    (kernel,) = made.forward.kernels
    parameters = [line.split()[1] for line in kernel.ptx.decode().splitlines() if line.strip().startswith(".param")]
    assert sorted(parameters) == [".f64", ".u16", ".u64", ".u64"]


REFUSED = {
    "written to": (lambda x, s: x * s.add_(1), "a number of the host's is written to"),
    "a result": (lambda x, s: (x * s, s * 2), "a result is a number of the host's"),
    "drawn": (lambda x, s: x * torch.rand(()), "a number is drawn on the host"),
    "beside two others": (lambda x, s: torch.addcdiv(x, x, s), "takes tensors of one device"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_does_otherwise_is_not_compiled(name: str) -> None:
    function, why = REFUSED[name]
    with pytest.raises(CaptureError, match=f"tensors are on cpu and cuda:0: .*{why}"):
        compiled(function, {"x": torch.randn(4, 8), "s": torch.tensor(0.5)})
