"""Graphs made smaller, judged in this process; and what is told of a run while it goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from litz.debug.given import copied
from litz.debug.reduce import sharing_inputs
from litz.debug.reproduce import CALL, FIRST, reproduce
from litz.debug.reproduction import Reproduction
from litz.errors import CompileError
from litz.ops.registry import LOWERINGS
from tests.debug.test_ts_compile import captured


def of(function: Callable[..., Any], folder: Path, *inputs: torch.Tensor) -> Reproduction:
    return Reproduction.of(*captured(function, *inputs), folder)


def test_inputs_that_are_alike_are_one_and_what_may_be_left_out_is_none(tmp_path: Path) -> None:
    def norm(a: Any, b: Any, w: Any, c: Any) -> Any:
        return torch.nn.functional.layer_norm(a * b, (4,), w, c)

    start = of(norm, tmp_path, torch.randn(3, 4), torch.randn(3, 4), torch.randn(4), torch.randn(4))
    tried: list[Reproduction] = []

    def shows(candidate: Reproduction) -> bool:  # as long as the bias is there
        tried.append(candidate)
        (call,) = (n for n in candidate.graph.nodes if "layer_norm" in str(n.target))
        return call.args[3] is not None

    best = sharing_inputs(start, shows)
    assert len(start.given) == 4 and len(best.given) == 2 and len(tried) <= 4
    product, call = (n for n in best.graph.nodes if n.op.startswith("call"))
    assert product.args[0] is product.args[1]
    assert call.args[2] is call.args[3]  # weight and bias


def test_an_input_that_is_all_a_call_takes_stays(tmp_path: Path) -> None:
    start = of(lambda a, b: (a.sin(), b.cos()), tmp_path, torch.randn(3), torch.randn(4))
    assert sharing_inputs(start, lambda candidate: True) == start


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(3, 4).t(), torch.randn(3, 1).expand(3, 4), torch.randn(3).requires_grad_(), torch.tensor(2)],
    ids=["transposed", "expanded", "differentiable", "whole"],
)
def test_copies_lie_as_what_they_are_of(tensor: torch.Tensor) -> None:
    copy = copied(tensor)
    assert torch.equal(copy, tensor) and copy.stride() == tensor.stride() and copy.requires_grad == tensor.requires_grad
    assert copy.data_ptr() != tensor.data_ptr()


class Written(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * torch.exp(x).sin() + x.sum()


def test_what_is_applied_is_told_as_it_happens_and_logged_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    symptom = reproduce(Written(), lambda: [torch.randn(8, 8)], applied=told.append)
    assert symptom.kind == "none", symptom  # also of what is written to its input, in each run
    assert symptom.spent and set(symptom.spent) <= set(told)
    logger = logging.getLogger("litz.context")
    assert not logger.handlers and logger.propagate
    assert not [record for record in caplog.records if record.name == logger.name]


def test_it_is_known_of_a_compile_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: Any) -> Any:
        raise CompileError("no")

    monkeypatch.setitem(LOWERINGS, torch.ops.aten.exp.default, refuses)
    told: list[str] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x.contiguous().view(4, 2).view(8) * 1)

    class Fails(torch.nn.Module):
        forward = staticmethod(function)

    symptom = reproduce(Fails(), lambda: [torch.randn(8)], applied=told.append)
    assert (symptom.kind, symptom.stage) == ("exception", "lower")
    assert told and all(" at " in what for what in told)


def test_a_call_that_works_far_longer_than_eager_s_is_slow_without_a_second_one() -> None:
    stages: list[str] = []

    @torch.library.custom_op("litz_tests::works", mutates_args=())
    def works(x: torch.Tensor) -> torch.Tensor:
        deadline = time.process_time() + 1.5 * FIRST
        while stages and stages[-1] == CALL and time.process_time() < deadline:
            pass
        return x + 1

    works.register_fake(torch.empty_like)

    class Works(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.litz_tests.works(x.exp().sin()).cos()

    Works()(torch.randn(64, 64))  # a first call has much to prepare
    symptom = reproduce(Works(), lambda: [torch.randn(64, 64)], slower_than=3.0, entering=stages.append)
    assert symptom.kind == "slow" and symptom.told.startswith("a call worked for more than 1.")
    assert stages[-1] == CALL


def test_a_backward_that_is_left_because_of_a_defect_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: Any) -> Any:
        raise KeyError("no")

    monkeypatch.setitem(LOWERINGS, torch.ops.aten.tanh_backward.default, refuses)

    class Learns(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x * 2).sum()

    symptom = reproduce(Learns(), lambda: [torch.randn(8, requires_grad=True)])
    assert (symptom.kind, symptom.what, symptom.stage) == ("exception", "LoweringError", "lower"), symptom
