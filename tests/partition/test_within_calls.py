"""What called operators take for themselves is measured, and counted in the peak."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import litz
from benchmarks.training_step import live_bytes
from litz.compat import highest_allocation
from litz.runtime import within_calls
from litz.runtime.arena import ARENA
from litz.runtime.within_calls import Taken


def test_what_is_allocated_at_once_is_counted() -> None:
    def function() -> None:
        for _ in range(3):
            torch.empty(1 << 20, dtype=torch.uint8)
        held = [torch.empty(1 << 20, dtype=torch.uint8) for _ in range(2)]
        del held

    assert highest_allocation(function) == 2 << 20


def test_a_convolutions_own_memory_is_part_of_the_peak() -> None:
    """Its backward takes several times the weight, in layouts of the library's own."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(256, 256, 3, padding=1)
    fast = torch.compile(convolution, backend="litz", options={"memory_budget": 1.0})
    x = torch.randn(2, 256, 7, 7, requires_grad=True)

    def run() -> None:
        convolution.zero_grad(set_to_none=True)
        x.grad = None
        fast(x).square().sum().backward()

    run()
    run()
    report = litz.last_report()
    assert report is not None and any("convolution_backward" in name for name, _ in report.calls)
    run()
    convolution.zero_grad(set_to_none=True)
    x.grad = None
    gc.collect()
    ARENA.clear()
    assert abs(live_bytes(run) / report.peak_bytes - 1) < 0.05
    assert max(taken.bytes for taken in within_calls._KNOWN.values()) > 256 * 256 * 9 * 4


@pytest.mark.parametrize("asked", [None, 1.0])
def test_nothing_is_run_unless_somebody_asks_about_memory(asked: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    monkeypatch.setattr(within_calls, "_KNOWN", {})
    monkeypatch.setattr(within_calls, "_measured", lambda call: runs.append(call.target) or Taken(0))
    torch._dynamo.reset()
    fast = torch.compile(torch.nn.Conv2d(64, 64, 3), backend="litz", options={"memory_budget": asked})
    fast(torch.randn(2, 64, 32, 32, requires_grad=True)).sum().backward()
    assert bool(runs) == (asked is not None)


def compiled(function: Any, x: torch.Tensor) -> tuple[torch.Tensor, litz.Report]:
    """The result of a first call with its backward, from one seed."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    result = torch.compile(function, backend="litz", options={"memory_budget": 1.0})(x.requires_grad_())
    result.sum().backward()
    report = litz.last_report()
    assert report is not None
    return result, report


def test_a_trial_draws_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def drops(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x * 2, 0.5)

    monkeypatch.setattr(within_calls, "_KNOWN", {})
    x = torch.randn(1 << 20)
    result, report = compiled(drops, x)
    assert within_calls._KNOWN and not any("counted nowhere" in note for note in report.notes)
    torch.manual_seed(3)
    assert torch.equal(result, drops(x))


def test_what_cannot_be_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(function: object) -> int:
        raise MemoryError("no room for trials")

    monkeypatch.setattr(within_calls, "_KNOWN", {})
    monkeypatch.setattr(within_calls, "highest_allocation", refuses)
    _, report = compiled(torch.nn.Conv2d(64, 64, 3), torch.randn(2, 64, 32, 32))
    said = [note for note in report.notes if "convolution" in note and "counted nowhere" in note]
    assert said and len(set(said)) == len(said) and "no room for trials" in said[0]
