"""Where the time of a step goes on a GPU: the dearest kernels of each contender.

In: a model, a mode, and who is looked at. Out: text: for each contender the kernels of a step by the time they take in
all, how often each runs, and, of those that Litz generated, the loops and the plan behind the name.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from benchmarks.gpu_models import Contender, contenders, make, step_of, synchronize
from benchmarks.process import litz_backend
from benchmarks.table import render

_TOP = 25
_STEPS = 3
_LONGEST = 110  # characters of a name: those of libraries are whole types


class Dear(NamedTuple):
    """A kernel as the device knows it, and what it takes a step."""

    name: str
    times: float
    microseconds: float


def profile(
    name: str, mode: str, who: Sequence[str], top: int = _TOP, device: str = "cuda", small: bool = False
) -> str:
    model, inputs = make(name, mode, device, small)
    step = step_of(model, inputs, mode)
    every = {contender.name: contender for contender in contenders(name, mode, inductor=True)}
    unknown = [one for one in who if one not in every]
    if unknown:
        raise SystemExit(f"nobody is called {unknown[0]!r} there; there are {', '.join(every)}")
    return "\n\n".join(_of_one(every[one], model, step, top, device) for one in who)


def _of_one(contender: Contender, model: torch.nn.Module, step: Any, top: int, device: str) -> str:
    from litz.debug.named_kernels import NamedKernels

    names = NamedKernels()
    with contender.around():
        if contender.name == "litz" and litz_backend() == "litz":
            run = torch.compile(model, backend="litz", options={"after": names.hooks})
        else:
            run = contender.compiled(model)
        for _ in range(3):
            step(run)
        wall, found = _kernels_of(lambda: step(run), device)
    total = sum(dear.microseconds for dear in found)
    lines = [
        f"{contender.name}: {wall:.0f} µs a step, of which the device works {total:.0f}, on "
        f"{sum(dear.times for dear in found):.0f} kernels and copies"
    ]
    shown = sorted(found, key=lambda dear: -dear.microseconds)[:top]
    table = [
        [_short(dear.name), f"{dear.times:.1f}", f"{dear.microseconds:.1f}", f"{dear.microseconds / dear.times:.1f}",
         f"{100 * dear.microseconds / max(total, 1e-9):.1f}"]
        for dear in shown
    ]  # fmt: skip
    lines.append(render(["kernel", "times", "µs in all", "µs each", "%"], table))
    known = [dear for dear in shown if dear.name in names]
    lines += [f"{dear.name}: {names.line(dear.name)}" for dear in known]
    lines += [f"-- {dear.name}\n{names.text(dear.name, _target(device))}" for dear in known]
    return "\n".join(lines)


def _kernels_of(run: Any, device: str) -> tuple[float, list[Dear]]:
    """The microseconds of a step, as the host sees it without being watched, and its kernels."""
    activity = torch.profiler.ProfilerActivity
    synchronize(device)
    start = time.perf_counter()
    for _ in range(_STEPS):
        run()
    synchronize(device)
    wall = (time.perf_counter() - start) / _STEPS * 1e6
    with torch.profiler.profile(activities=[activity.CUDA if device == "cuda" else activity.CPU]) as profiled:
        for _ in range(_STEPS):
            run()
        synchronize(device)
    found = []
    for event in profiled.key_averages():
        taken = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        if taken > 0:
            found.append(Dear(event.key, event.count / _STEPS, taken / _STEPS))
    return wall, found


def _target(device: str) -> Any:
    from litz.target import detect, detect_gpu

    return detect_gpu(torch.cuda.current_device()) if device == "cuda" else detect()


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


__all__ = ["profile"]
