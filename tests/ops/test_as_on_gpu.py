"""Operators that give something else on a GPU than on a CPU, traced as if on one and run by the interpreter.

What eager's kernels for GPUs give is written out here: there may be none to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from litz.context import Context
from litz.loop.interpret import interpret
from litz.loop.verify import verify
from litz.ops.lower import lower
from litz.options import Options
from litz.pipeline import trace
from tests.codegen.emulate import gpu_target
from tests.codegen.gpu_programs import compile_for_gpu

aten = torch.ops.aten


def traced(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[fx.GraphModule, Context]:
    ctx = Context(Options(), gpu_target())
    with FakeTensorMode(), torch.no_grad():
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") for x in inputs]
        return trace(lambda *args: function(*args), fakes, None, ctx, False).graph, ctx


def run(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Any]:
    """The results; what is written to the inputs is written to them."""
    lowered = lower(*traced(function, inputs))
    verify(lowered.program)
    return interpret(lowered.program, [*inputs, *lowered.constants])


X, WEIGHT, BIAS = torch.randn(4, 3, 5), torch.randn(3), torch.randn(3)
MEAN, VARIANCE = torch.randn(3), torch.rand(3) + 0.5


def test_what_batch_norm_has_normalised_by() -> None:
    for call in (
        lambda x, *given: aten.native_batch_norm(x, *given, False, 0.1, 1e-5),
        lambda x, *given: aten._native_batch_norm_legit_no_training(x, *given, 0.1, 1e-5),
    ):
        out, mean, rstd = run(call, X, WEIGHT, BIAS, MEAN, VARIANCE)
        torch.testing.assert_close(out, F.batch_norm(X, MEAN, VARIANCE, WEIGHT, BIAS))
        torch.testing.assert_close(mean, MEAN)
        torch.testing.assert_close(rstd, (VARIANCE + 1e-5).rsqrt())


@pytest.mark.parametrize("tracked", [True, False])
def test_statistics_that_cudnn_updates_unsaid(tracked: bool) -> None:
    stats, wanted = [[MEAN.clone(), VARIANCE.clone()] for _ in range(2)]
    given = stats if tracked else []

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *stats: torch.Tensor) -> Any:
        mean, variance = (s * 1 for s in stats) if stats else (None, None)  # what it updates may be the program's own
        out, *_ = aten.cudnn_batch_norm(x, weight, bias, mean, variance, True, 0.3, 1e-5)
        return (out, mean + 1, variance) if stats else (out,)

    found = run(norm, X, WEIGHT, BIAS, *given)
    right = F.batch_norm(X, *(wanted if tracked else (None, None)), WEIGHT, BIAS, True, 0.3)
    torch.testing.assert_close(found[0], right)
    if tracked:
        torch.testing.assert_close(found[1:], [wanted[0] + 1, wanted[1]])


def test_statistics_of_arguments_that_cudnn_updates() -> None:
    mean, variance, *wanted = MEAN.clone(), VARIANCE.clone(), MEAN.clone(), VARIANCE.clone()
    run(lambda x, *given: aten.cudnn_batch_norm(x, *given, True, 0.3, 1e-5)[0], X, WEIGHT, BIAS, mean, variance)
    F.batch_norm(X, *wanted, WEIGHT, BIAS, True, 0.3)
    torch.testing.assert_close([mean, variance], wanted)


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (0,), (0, 4)], ids=str)
def test_the_scratch_of_log_sigmoid_is_empty(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    out, scratch = run(aten.log_sigmoid_forward, x)
    torch.testing.assert_close(out, F.logsigmoid(x))
    assert scratch.shape == (0,)


def test_what_is_unpooled_lies_in_rows() -> None:
    x = torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last)
    index = torch.zeros(1, 2, 3, 4, dtype=torch.long).to(memory_format=torch.channels_last)
    graph, _ = traced(lambda x, i: F.max_unpool2d(x, i, 2), [x, index])
    (result,) = graph.graph.output_node().args[0]
    assert result.meta["val"].is_contiguous()


def test_dropout_of_all_keeps_signs() -> None:
    x = torch.tensor([1.0, -2.0, 0.0, -0.0])
    out, mask = run(lambda x: torch.native_dropout(x, 1.0, True), x)
    assert not out.any() and torch.equal(out.signbit(), x.signbit()) and not mask.any()


def test_a_layout_is_restored_on_the_device() -> None:
    """The gradient of what was scattered has gaps, which are made anew."""

    def scattered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.as_strided_scatter(x, y, (2, 1, 1, 2), (1, 2, 4, 8), 0).sin()

    given = {"x": torch.randn(16, requires_grad=True), "y": torch.randn(2, 1, 1, 2, requires_grad=True)}
    made = compile_for_gpu(scattered, given, training=True, moved="trace")
    assert len(made.parts()) == 2
