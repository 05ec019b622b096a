"""Step time, error against float64, kernels and memory, for one model in one process.

`python -m benchmarks.steps bert` prints one JSON object. Contenders take turns, so that whatever else
the machine does falls on all of them alike; ratios are made of figures from the same run only.
"""

from __future__ import annotations

import copy
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.models import build, tensors
from benchmarks.peers import PREPARE
from benchmarks.process import THREADS, describe, in_fresh_process, litz_backend

ROUNDS = 15
WARMUP_CALLS = 3
CONTENDERS = ("eager", "inductor", "litz")


@dataclass(frozen=True)
class Watch:
    """How long to measure: so many rounds, or, once there are a few, until the time is up."""

    rounds: int
    seconds: float = math.inf
    least: int = 5
    clock: Callable[[], float] = time.perf_counter
    # Between contenders with threads of their own, which look for work a while longer: a rest, and a call that is not
    # counted.
    pause: float = 0.0


def steps_in_fresh_process(name: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """`steps` in a process of its own. Should Litz take that process down, the others are measured without it."""
    result = in_fresh_process("benchmarks.steps", name, str(rounds))
    if "failed" not in result:
        return result
    others = in_fresh_process("benchmarks.steps", name, str(rounds), "eager,inductor")
    return {**others, "litz": {"failed": result["failed"]}}


def steps(name: str, rounds: int = ROUNDS, only: tuple[str, ...] = CONTENDERS) -> dict[str, Any]:
    """One entry a contender, `{"best_ms", "median_ms", "error", …}` or `{"failed": why}`, and the eager peak."""
    from benchmarks.peak import peak_of_model

    torch.set_num_threads(THREADS)
    module, kwargs = build(name)
    with torch.no_grad():
        # Before any contender is compiled: it empties Dynamo's caches.
        peak = peak_of_model(module, kwargs)
    return {**compared(module, kwargs, Watch(rounds), only), "peak_bytes": peak, "rounds": rounds}


def compared(module: torch.nn.Module, kwargs: dict[str, Any], watch: Watch, only: tuple[str, ...]) -> dict[str, Any]:
    """The contenders' errors and times."""
    results: dict[str, dict[str, Any]] = {contender: {} for contender in only}
    with torch.no_grad():
        reference = [tensor.double() for tensor in tensors(_as_float64(module)(**_floats_to_double(kwargs)))]
        contenders: dict[str, Callable[..., Any]] = {}
        for contender in results:
            try:
                contenders[contender], launches = _prepare(contender, module, kwargs)
                results[contender].update(launches)
                results[contender]["error"] = error_against(tensors(contenders[contender](**kwargs)), reference)
            except Exception as error:
                contenders.pop(contender, None)
                results[contender] = {"failed": describe(error)}
        # Eager once more, under another name: how far the two differ is what this run's ratios cannot tell.
        timed = {**contenders, "control": module}
        times = interleaved({name: _caller(fn, kwargs) for name, fn in timed.items()}, watch)
    results["control"] = {}
    for contender, seconds in times.items():
        results[contender]["best_ms"] = min(seconds) * 1e3
        results[contender]["median_ms"] = statistics.median(seconds) * 1e3
    return results


def interleaved(calls: dict[str, Callable[[], Any]], watch: Watch) -> dict[str, list[float]]:
    """Seconds of each call in each round; the order rotates, so that nobody always follows the same one."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(WARMUP_CALLS):
            call()
    order = list(calls)
    begin = watch.clock()
    for done in range(watch.rounds):
        if done >= watch.least and watch.clock() - begin > watch.seconds:
            break
        for name in order:
            if watch.pause:
                time.sleep(watch.pause)
                calls[name]()
            start = watch.clock()
            calls[name]()
            times[name].append(watch.clock() - start)
        order.append(order.pop(0))
    return times


def error_against(outputs: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """The largest |y - reference| / max|reference| over all outputs."""
    if len(outputs) != len(reference):
        raise AssertionError(f"{len(outputs)} outputs where the reference has {len(reference)}")
    worst = 0.0
    for output, expected in zip(outputs, reference, strict=True):
        if output.shape != expected.shape:
            raise AssertionError(f"an output of shape {tuple(output.shape)} where {tuple(expected.shape)} is expected")
        if expected.numel() == 0:
            continue
        scale = expected.abs().max().item() or 1.0
        difference = (output.double() - expected).abs().max().item()
        # A NaN compares false with everything, and must not pass for a small error.
        if difference != difference:
            return float("nan")
        worst = max(worst, difference / scale)
    return worst


def _prepare(contender: str, module: torch.nn.Module, kwargs: dict[str, Any]) -> tuple[Callable[..., Any], dict]:
    """The compiled model after its first call, and what one run of it launches."""
    if contender == "eager":
        return module, {}
    if contender == "inductor":
        compiled = torch.compile(module, backend="inductor")
        return compiled, _inductor_launches(compiled, kwargs)
    if contender in PREPARE:
        return PREPARE[contender](module, kwargs), {}
    options = {"freeze": True} if contender == "litz frozen" else {}
    compiled = torch.compile(module, backend=litz_backend(), **({"options": options} if options else {}))
    compiled(**kwargs)
    return compiled, _litz_launches()


def _litz_launches() -> dict[str, Any]:
    import litz

    report = litz.last_report()
    if report is None:
        return {}
    if report.launches == 0:
        # Nothing was compiled: zero kernels and an empty arena would clear their bars for no merit.
        return {"not_compiled": "; ".join(report.notes) or "the report shows no kernel and no call"}
    return {
        "kernels": report.kernels,
        "calls": sum(count for _, count in report.calls),
        "launches": report.launches,
        "arena_bytes": report.arena_bytes,
        "fallbacks": sorted({fallback.operator for fallback in report.fallbacks}),
    }


def _inductor_launches(compiled: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Compiles, and counts in the generated program the kernels and operators that one run starts."""
    from torch._inductor.utils import run_and_get_code

    _, programs = run_and_get_code(compiled, **kwargs)
    kernels = calls = 0
    for program in programs:
        kernels += len(re.findall(r"^\s+(?:\w+ = )?(?:kernels\.)?cpp_\w+\(", program, re.MULTILINE))
        calls += len(re.findall(r"^\s+(?:\w+ = )?(?:extern_kernels\.|torch\.ops\.)[\w.]+\(", program, re.MULTILINE))
    return {"kernels": kernels, "calls": calls, "launches": kernels + calls}


def _caller(function: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[[], Any]:
    return lambda: function(**kwargs)


def _as_float64(module: torch.nn.Module) -> torch.nn.Module:
    return copy.deepcopy(module).double()


def _floats_to_double(kwargs: dict[str, Any]) -> dict[str, Any]:
    def widen(value: Any) -> Any:
        return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return {name: widen(value) for name, value in kwargs.items()}


if __name__ == "__main__":
    stated_rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    stated_contenders = tuple(sys.argv[3].split(",")) if len(sys.argv) > 3 else CONTENDERS
    print(json.dumps(steps(sys.argv[1], stated_rounds, stated_contenders)))
