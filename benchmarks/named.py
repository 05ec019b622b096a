"""What a profiler can name of a step, and what it costs that it could.

`python -m benchmarks.named` prints, for ResNet-50, inference and training, the part of a step's time that lies in
events of `torch.profiler` which are called by what was done: Litz's kernels and calls, and torch's own operators; the
regions that Dynamo marks around all of it do not count. Then the time of a call while no profiler is on, with all of
that in the code and without, taking turns: of ResNet-50, and of twenty kernels with next to nothing to do.

`--device cuda`: there, the part of the device's time that the launches in such events account for.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any
from unittest import mock

import torch

from benchmarks.models import build
from benchmarks.process import THREADS
from benchmarks.table import render

NAMED = ("litz: ", "aten::")
_STEPS = 5
_TURNS = 40
_BUILDS = 5
Span = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(THREADS)
    print(
        render(
            ["resnet", "ms a step", "named %", "names"], [shares(mode, device) for mode in ("inference", "training")]
        )
    )
    print()
    header = ["no profiler", "µs with", "µs without", "again", "ratio", "of the same"]
    print(render(header, [cost("resnet", device), cost("small", device)]))


def shares(mode: str, device: str) -> list[str]:
    step = _resnet(mode, device)
    step()
    step()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiled:
        for _ in range(_STEPS):
            with torch.profiler.record_function("step"):
                step()
                _synchronize(device)
    events = profiled.events()
    steps = [(event.time_range.start, event.time_range.end) for event in events if event.name == "step"]
    steps = steps[:_STEPS]  # a second one of each is the device's
    named = [event for event in events if event.name.startswith(NAMED)]
    whole = sum(end - start for start, end in steps)
    share = on_device(events, named) if device == "cuda" else within(steps, named) / whole
    names = {event.name for event in named if event.name.startswith("litz: ")}
    return [mode, f"{whole / _STEPS / 1e3:.1f}", f"{100 * share:.1f}", str(len(names))]


def within(steps: Iterable[Span], named: Iterable[Any]) -> float:
    """How much of the steps lies in such events, wherever they nest."""
    spans = sorted((event.time_range.start, event.time_range.end) for event in named)
    total = 0.0
    for begin, end in steps:
        at = begin
        for start, stop in spans:
            if stop > at and start < end:
                total += min(stop, end) - max(start, at)
                at = max(at, min(stop, end))
    return total


def on_device(events: Iterable[Any], named: Iterable[Any]) -> float:
    """How much of the device's work was started in such events."""
    kernels = {id(kernel): kernel.duration for event in events for kernel in event.kernels}
    known = {id(kernel): kernel.duration for event in named for kernel in _started(event)}
    return sum(known.values()) / sum(kernels.values())


def _started(event: Any) -> Iterable[Any]:
    yield from event.kernels
    for child in event.cpu_children:
        yield from _started(child)


def cost(name: str, device: str) -> list[str]:
    """Best times of a call with and without what a profiler would need; and without once more, which says how far two
    times of the same may lie apart. Each is built several times, since where code and data come to lie matters too."""
    kinds = {"with": nullcontext, "without": _without_events, "again": _without_events}
    contenders = []
    for kind, around in [*kinds.items()] * (1 if name == "resnet" else _BUILDS):
        with around():
            contenders.append((kind, _resnet("inference", device) if name == "resnet" else _small(device)))
            contenders[-1][1]()
    best = dict.fromkeys(kinds, float("inf"))
    calls = 1 if name == "resnet" else 500
    for turn in range(_TURNS):
        for kind, step in contenders[:: 1 if turn % 2 else -1]:
            _synchronize(device)
            start = time.perf_counter()
            for _ in range(calls):
                step()
            _synchronize(device)
            best[kind] = min(best[kind], (time.perf_counter() - start) / calls)
    with_, without, again = (best[kind] * 1e6 for kind in ("with", "without", "again"))
    return [name, f"{with_:.2f}", f"{without:.2f}", f"{again:.2f}", f"{with_ / without:.3f}", f"{again / without:.3f}"]


def _without_events() -> AbstractContextManager[Any]:
    return mock.patch.multiple("litz.codegen.llvm.record.Events", begin=_nothing, end=_nothing)


def _nothing(*given: Any) -> None:
    pass


def _resnet(mode: str, device: str) -> Callable[[], Any]:
    model, inputs = build("resnet")
    model, inputs = model.to(device), {name: value.to(device) for name, value in inputs.items()}
    model.train(mode == "training")
    compiled = torch.compile(model, backend="litz")

    def step() -> None:
        with torch.set_grad_enabled(mode == "training"):
            result = compiled(**inputs).logits
            if mode == "training":
                result.sum().backward()

    return step


def _small(device: str) -> Callable[[], Any]:
    """Twenty products of little matrices, which are not fused."""

    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = (x @ w).tanh()
        return x

    x, w = (torch.randn(4, 4, device=device) for _ in range(2))
    # Of code of its own: Dynamo asks the guards of one function's programs one after the other.
    own = FunctionType(chain.__code__.replace(), globals(), "chain")
    compiled = torch.compile(own, backend="litz", options={"matmul": "generate"})

    def step() -> None:
        with torch.no_grad():
            compiled(x, w)

    return step


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
