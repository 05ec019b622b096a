"""What called operators take for themselves is measured, and counted in the peak."""

from __future__ import annotations

import gc

import pytest
import torch

import litz
from benchmarks.training_step import live_bytes
from litz.compat import highest_allocation
from litz.runtime import within_calls
from litz.runtime.arena import ARENA


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
    assert max(within_calls._KNOWN.values()) > 256 * 256 * 9 * 4


@pytest.mark.parametrize("asked", [None, 1.0])
def test_nothing_is_run_unless_somebody_asks_about_memory(asked: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    monkeypatch.setattr(within_calls, "_KNOWN", {})
    monkeypatch.setattr(within_calls, "_measured", lambda call: runs.append(call.target) or 0)
    torch._dynamo.reset()
    fast = torch.compile(torch.nn.Conv2d(64, 64, 3), backend="litz", options={"memory_budget": asked})
    fast(torch.randn(2, 64, 32, 32, requires_grad=True)).sum().backward()
    assert bool(runs) == (asked is not None)
