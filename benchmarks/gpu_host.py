"""What the host does in a step on a GPU: how long it takes to start one, and which calls of torch's that time goes to.

`python -m benchmarks.gpu_host resnet` (`--mode inference`, `--top 15`): eager, Litz with no calls captured, and Litz as
it is by default, one after the other: milliseconds a step, one behind the other; milliseconds of the host until a step
is started, the device having nothing else to do; MiB at the peak; what was captured, or why not; then the dearest
calls on the host, by the time that each takes itself. `--small` is for trying this out where there is no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_models import MODELS, make, step_of, synchronize
from benchmarks.table import render

WARM, ROUNDS = 24, 15
CONTENDERS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "litz, no graphs": {"mode": "max-autotune-no-cudagraphs", "never_slower": False},
    "litz": {"never_slower": False},
}


def measure(name: str, mode: str, top: int, small: bool) -> str:
    device = "cpu" if small else "cuda"
    model, inputs = make(name, mode, device, small)
    step = step_of(model, inputs, mode)
    rows, texts = [], []
    for who, options in CONTENDERS.items():
        torch._dynamo.reset()
        run: Any = model if options is None else torch.compile(model, backend="litz", options=options)
        for _ in range(2 if small else WARM):
            step(run)
        taken = _times(lambda run=run: step(run), device)
        rows.append([who, *(f"{figure:.2f}" for figure in taken)])
        texts.append(f"{who}\n{_captured(options)}{_dearest(lambda run=run: step(run), top)}")
    head = render(["", "step", "host", "peak MiB"], rows)
    return "\n\n".join([f"{name}, {mode}", head, *texts])


def _times(step: Callable[[], Any], device: str) -> tuple[float, float, float]:
    """Milliseconds a step and of the host, the medians; and MiB."""
    host, whole = [], []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(ROUNDS):
        synchronize(device)
        begin = time.perf_counter()
        step()
        host.append(time.perf_counter() - begin)
        for _ in range(2):
            step()
        synchronize(device)
        whole.append((time.perf_counter() - begin) / 3)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return 1e3 * statistics.median(whole), 1e3 * statistics.median(host), peak / 2**20


def _captured(options: dict[str, Any] | None) -> str:
    import litz

    report = litz.last_report() if options is not None else None
    return "" if report is None else "".join(f"  {line}\n" for line in report.graphs)


def _dearest(step: Callable[[], Any], top: int) -> str:
    """Of three steps, in milliseconds a step: profiling itself takes time, so these say what is dear, and not how."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            step()
    found = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)[:top]
    rows = [[e.key[:70], f"{e.count / 3:.0f}", f"{e.self_cpu_time_total / 3e3:.3f}"] for e in found]
    return render(["call", "times", "ms"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--mode", choices=("training", "inference"), default="training")
    parser.add_argument("--top", type=int, default=15)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    print(measure(given.model, given.mode, given.top, given.small))


if __name__ == "__main__":
    main()
