"""A bound on the peak in bytes: foretold, kept to, and refused where it cannot be."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from functools import partial

import pytest
import torch

import litz
from benchmarks.training_step import live_bytes
from litz.errors import OptionError
from litz.graph.partition.within_peak import Peak, within_peak
from litz.runtime.arena import ARENA
from tests.partition.test_regions import Layers


class Deep(torch.nn.Module):
    """What is kept for the backward is most of the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Layers("plain", count=6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def step(budget: object) -> tuple[int, int, litz.Report, list[torch.Tensor]]:
    """Predicted and measured bytes, without arguments."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Deep()
    x = torch.randn(16384, 16)
    fast = torch.compile(model, backend="litz", options={"memory_budget": budget})

    def run() -> None:
        model.zero_grad(set_to_none=True)
        fast(x).backward()

    run()
    run()
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    gc.collect()
    ARENA.clear()
    return report.peak_bytes, live_bytes(run), report, gradients


ARGUMENTS = 16384 * 16 * 4 + 6 * (2 * 16 * 64 + 64 + 16) * 4


def test_the_peak_is_foretold_and_a_bound_is_kept_to() -> None:
    peak, measured, _, want = step(None)
    assert abs(measured / peak - 1) < 0.05
    previous = peak + 1
    for share in (0.8, 0.65):
        bound = int((peak + ARGUMENTS) * share)
        predicted, measured, report, gradients = step(bound)
        assert abs(measured / predicted - 1) < 0.05
        assert predicted + ARGUMENTS <= bound and predicted < previous
        torch.testing.assert_close(gradients, want, rtol=1e-4, atol=1e-5)
        assert any(f"memory_budget of {bound:,} bytes" in note for note in report.notes)
        previous = predicted


def test_what_cannot_be_is_refused_with_the_least_that_can() -> None:
    with pytest.raises(Exception, match=r"a step takes [\d,]+ at least") as caught:
        step("1 MiB")
    assert "the peak is set by" in str(caught.value)


def test_more_than_the_machine_has_is_refused() -> None:
    with pytest.raises(Exception, match="more than the"):
        step("4000 TiB")


def test_a_share_of_the_machine() -> None:
    report = step("90%")[2]
    assert report.again_seconds == 0.0


PEAKS = [90, 80, 85, 60, 61, 40, 30, 35, 33, 20, 18, 17, 19, 16, 12, 30, 50, 80]
FORESEEN = [100, 93, 88, 70, 66, 50, 41, 39, 35, 29, 22, 20, 19, 18, 15, 14, 13, 12]


def fitted(most: int, peaks: list[int], foreseen: list[int]) -> tuple[int, int]:
    result, fitting = within_peak(
        most, len(peaks), foreseen.__getitem__, lambda n: Peak(peaks[n]), lambda n: (n, Peak(peaks[n]))
    )
    assert fitting.peak.bytes <= most and result == fitting.level
    return fitting.level, fitting.peak.bytes


def test_a_larger_bound_never_costs_more_time() -> None:
    """Whatever the peaks are, and whatever was foreseen: the levels are one order."""
    draw = random.Random(0)
    for _ in range(200):
        peaks = [draw.randint(10, 90) for _ in range(12)]
        foreseen = sorted((draw.randint(10, 90) for _ in range(12)), reverse=True)
        levels = [fitted(most, peaks, foreseen)[0] for most in range(min(peaks[-1:]), 100)]
        assert levels == sorted(levels, reverse=True)


def test_the_first_level_that_fits_is_found() -> None:
    """Where less is taken at each level, however far from what was foreseen."""
    draw = random.Random(1)
    for _ in range(200):
        peaks = sorted((draw.randint(10, 90) for _ in range(12)), reverse=True)
        foreseen = sorted((draw.randint(10, 90) for _ in range(12)), reverse=True)
        for most in range(peaks[-1], 100):
            level, peak = fitted(most, peaks, foreseen)
            assert peak == max(p for p in peaks if p <= most)
            assert level == 0 or peaks[level - 1] > most


def test_what_fits_at_no_level_is_refused() -> None:
    with pytest.raises(OptionError, match="12 at least"):
        fitted(11, PEAKS[:15], FORESEEN[:15])


def as_compiled(peaks: list[int], level: int) -> tuple[int, Peak]:
    return level, Peak(peaks[level])


class Clock:
    """Time that is over when so much was asked."""

    def __init__(self, asks: int):
        self.left = asks

    def foretold(self, peaks: list[int]) -> Callable[[int], Peak]:
        def ask(level: int) -> Peak:
            self.left -= 1
            return Peak(peaks[level])

        return ask

    def is_over(self) -> bool:
        return self.left <= 0


def test_out_of_time_the_best_that_was_found_is_taken() -> None:
    draw = random.Random(2)
    early = 0
    for _ in range(200):
        peaks = sorted((draw.randint(10, 90) for _ in range(40)), reverse=True)
        foreseen = sorted((draw.randint(10, 90) for _ in range(40)), reverse=True)
        most, clock = draw.randint(peaks[-1], 89), Clock(draw.randint(0, 12))
        asks = clock.left
        best = next(n for n in range(40) if peaks[n] <= most)
        level, fitting = within_peak(
            most, 40, foreseen.__getitem__, clock.foretold(peaks), partial(as_compiled, peaks), clock.is_over
        )
        assert peaks[level] <= most and level == fitting.level
        assert clock.left >= min(-3, asks - 3), "the search goes on"
        assert level == best or fitting.ended
        early += level != best
    assert early > 20


def test_out_of_time_an_error_says_so() -> None:
    with pytest.raises(OptionError, match="12 at least") as caught:
        within_peak(9, 40, lambda n: 100 - n, lambda n: Peak(90 - 2 * n), lambda n: (n, Peak(90 - 2 * n)), lambda: True)
    assert "budget_seconds" in str(caught.value)


def test_what_only_code_generation_knows_is_counted() -> None:
    """A level that was foretold to fit, and does not, is passed over."""
    peaks = [60, 54, 48, 42, 36]
    result, fitting = within_peak(
        50, len(peaks), peaks.__getitem__, lambda n: Peak(peaks[n]), lambda n: (n, Peak(peaks[n] + 10))
    )
    assert fitting.peak.bytes <= 50 and result == 4
