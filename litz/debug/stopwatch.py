"""`Stopwatch`: how long each step of a compiled program takes, by standing between the program and its steps.

In: an executable that was built with a pause before every step. Out: the shortest run of each, and how often it ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from litz.runtime.executable import Bound, Executable
from litz.schedule.memory import Layout


def pause_everywhere(layout: Layout) -> Layout:
    """The layout with a pause before every step, so that each is one call of native code."""
    steps = range(max(layout.last_use.values(), default=0) + 2)
    return replace(layout, pauses=frozenset(steps))


class Stopwatch:
    def __init__(self, executable: Executable, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._starts = [bound.item.first for bound in executable.items]
        self._best = [float("inf")] * len(executable.items)
        self._calls = [0] * len(executable.items)
        self._on_gpu = executable.device.aligns
        executable.items = [self._watched(at, bound) for at, bound in enumerate(executable.items)]
        executable._only = None
        executable.graphs = None  # what is replayed as one has no steps

    def _watched(self, at: int, bound: Bound) -> Bound:
        timed = self._timed_on_gpu if self._on_gpu else self._timed
        if bound.native is not None:
            return bound._replace(native=timed(at, bound.native))
        return bound._replace(operator=timed(at, bound.operator))  # type: ignore[arg-type]

    def _timed(self, at: int, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> None:
            start = self._clock()
            call(*args)
            self._took(at, self._clock() - start)

        return timed

    def _timed_on_gpu(self, at: int, call: Callable[..., Any]) -> Callable[..., Any]:
        """By the device's own clock; each step waits for the one before, so the host's part is not among it."""

        def timed(*args: Any) -> None:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call(*args)
            end.record()
            end.synchronize()
            self._took(at, begin.elapsed_time(end) / 1e3)

        return timed

    def _took(self, at: int, seconds: float) -> None:
        self._best[at] = min(self._best[at], seconds)
        self._calls[at] += 1

    def microseconds(self) -> dict[int, tuple[float, int]]:
        """Step of the program -> its shortest run, and how often it ran. Those that never did are left out."""
        found = zip(self._starts, self._best, self._calls, strict=True)
        return {start: (best * 1e6, calls) for start, best, calls in found if calls}


__all__ = ["Stopwatch", "pause_everywhere"]
