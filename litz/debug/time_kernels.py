"""`time_kernels`: what each kernel and each called operator of a model costs.

In: a function to call and what to call it with. Out: a `Timing` for each step of every program that Litz compiles for
it, which prints as a table, dearest first.

The program is built as ever, but paused before every step, so that each is one call of native code; hooks on the stages
do that, and no stage knows of it. The shortest of many runs counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from litz.debug.stopwatch import Stopwatch, pause_everywhere
from litz.frontdoor import compile
from litz.loop.contraction import contraction
from litz.loop.ir import Call, Kernel, Program, Step, View
from litz.runtime.executable import Executable


@dataclass(frozen=True)
class Timing:
    """A step of program number `program` (a forward is followed by its backward) and its shortest run."""

    program: int
    step: Step
    microseconds: float

    @property
    def name(self) -> str:
        if isinstance(self.step, Call):
            return f"call {self.step.target.removeprefix('aten::')}"
        return f"{'product' if contraction(self.step) is not None else 'loops'} {self.step.name}"

    @property
    def shape(self) -> str:
        if isinstance(self.step, Kernel):
            axes = "×".join(str(a.size) for a in self.step.axes)
            reduced = "×".join(str(a.size) for a in self.step.reduced)
            return f"{axes} over {reduced}" if reduced else axes
        views = [a for a in self.step.args if isinstance(a, View)]
        rest = [str(a) for a in self.step.args if isinstance(a, tuple)]
        return " ".join([*("×".join(str(s) for s in v.sizes) for v in views), *rest])


@dataclass(frozen=True)
class Timings:
    steps: tuple[Timing, ...]

    @property
    def microseconds(self) -> float:
        return sum(t.microseconds for t in self.steps)

    def __str__(self) -> str:
        lines = [f"{len(self.steps)} steps, {self.microseconds:,.0f} µs"]
        for t in sorted(self.steps, key=lambda t: -t.microseconds):
            lines.append(f"{t.microseconds:10.1f} µs  {t.program}  {t.name}  [{t.shape}]")
        return "\n".join(lines)


def time_kernels(
    function: Callable[..., Any],
    *args: Any,
    after: Callable[[Any], Any] | None = None,
    runs: int = 20,
    clock: Callable[[], float] = time.perf_counter,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Timings:
    """The steps of `function(*args, **kwargs)`, and of `after(result)` if given: `lambda loss: loss.backward()`."""
    programs: list[Program] = []
    watched: list[Stopwatch] = []

    def watch(executable: Executable) -> None:
        watched.append(Stopwatch(executable, clock))

    hooks = {"join_small": programs.append, "plan_memory": pause_everywhere, "load": watch}
    torch._dynamo.reset()
    compiled = compile(function, after=hooks, **(options or {}))
    for _ in range(runs + 1):
        result = compiled(*args, **kwargs)
        if after is not None:
            after(result)
    return Timings(
        tuple(
            Timing(number, program.steps[at], best)
            for number, (program, stopwatch) in enumerate(zip(programs, watched))
            for at, (best, _) in stopwatch.microseconds().items()
        )
    )


__all__ = ["Timing", "Timings", "time_kernels"]
