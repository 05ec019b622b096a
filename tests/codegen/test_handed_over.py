"""What operators called from native code allocate is handed to the caller, where the device says so. GPUs do; here the
CPU is made to, whose C interface is the same."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any

import pytest
import torch

from litz.codegen.llvm import shim
from litz.codegen.plan import Native
from litz.frontdoor import compile
from litz.runtime.executable import Executable
from litz.target import Target

CPU = shim.DEVICES["cpu"]
HANDS_OVER = replace(
    CPU, shims={**CPU.shims, "aten::convolution_backward": "aoti_torch_cpu_convolution_backward"}, hands_over=True
)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Executable]:
    monkeypatch.setitem(shim.DEVICES, "cpu", HANDS_OVER)
    monkeypatch.setattr(Target, "convolves_with_bias", False)
    torch._dynamo.reset()
    return []


def compiled(function: Any, programs: list[Executable]) -> Any:
    return compile(function, after={"load": programs.append})


def handed(programs: list[Executable]) -> int:
    assert all(isinstance(item.run, Native) for program in programs for item in program.plan.items)
    return sum(len(item.run.hands_over) for p in programs for item in p.plan.items if isinstance(item.run, Native))


@pytest.mark.parametrize("bias", [False, True])
def test_gradients_of_convolutions(bias: bool, programs: list[Executable]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(6, 8, 3, bias=bias, groups=2), torch.nn.Tanh(), torch.nn.Conv2d(8, 6, 3, bias=bias, stride=2)
    ).bfloat16()
    x = torch.randn(2, 6, 12, 12).bfloat16()
    gradients = []
    for run in (model, compiled(model, programs)):
        model.zero_grad(set_to_none=True)
        image = x.clone().requires_grad_()
        run(image).square().sum().backward()
        gradients.append([image.grad, *(p.grad for p in model.parameters())])
    for eager, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, eager, rtol=2e-2, atol=2e-2)
    assert handed(programs) >= 3


def test_a_result_that_lies_otherwise_is_copied(programs: list[Executable]) -> None:
    w = torch.randn(4, 6, 3, 3).to(memory_format=torch.channels_last)
    f = lambda x, w: torch.nn.functional.conv_transpose2d(x, w.transpose(0, 1).contiguous())  # noqa: E731
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 6, 9, 9).to(memory_format=layout)
        with torch.no_grad():
            wanted, found = f(x, w), compiled(f, programs)(x, w)
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert handed(programs) == 2


def test_what_an_operator_of_pythons_reads(programs: list[Executable]) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(torch.nn.functional.conv_transpose2d(x, w)) + 1

    x, w = torch.randn(1, 1, 8, 8), torch.randn(1, 1, 3, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(f, programs)(x, w), f(x, w), rtol=1e-2, atol=1e-2)
    (program,) = programs
    assert [item.run.hands_over != () for item in program.plan.items if isinstance(item.run, Native)] == [True, False]


def test_nothing_is_kept(programs: list[Executable]) -> None:
    x, w = torch.randn(1, 8, 256, 256), torch.randn(8, 8, 1, 1)
    f = compiled(lambda x, w: torch.nn.functional.conv_transpose2d(x, w), programs)
    with torch.no_grad():
        f(x, w)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(200):
            f(x, w)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert handed(programs) == 1 and grown < 100 * 1024  # kB; kept, they would be 400 MB


def test_a_caller_that_takes_nothing_is_given_nothing() -> None:
    assert not CPU.hands_over and shim.DEVICES["cuda"].hands_over
