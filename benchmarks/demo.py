"""What Litz does, in one table: `make demo`, or `python -m benchmarks.demo [--all]`.

Compiles a few models from `transformers` (random weights, nothing is downloaded) with eager PyTorch,
`inductor` and Litz, and shows how long the first call takes, how long a step takes, and how far each is
from the result in float64.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks.bars import NOISE, noise
from benchmarks.cold import cold
from benchmarks.models import MODELS
from benchmarks.process import THREADS, stand_in_warning
from benchmarks.steps import CONTENDERS, steps_in_fresh_process
from benchmarks.table import figure, ratio, render

SHOWN = ("bert", "gpt2", "resnet")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.demo")
    parser.add_argument("--all", action="store_true", help="all six models instead of three")
    models = tuple(MODELS) if parser.parse_args(arguments).all else SHOWN
    print(f"Compiling {', '.join(models)} on {THREADS} threads with inductor and with Litz; a minute or two a model.")
    cold_results = cold(models, log=lambda text: print(f"  … {text.split(':')[0]}", flush=True))
    rows: list[list[str]] = []
    failures: list[str] = []
    all_steps: dict[str, dict[str, Any]] = {}
    for model in models:
        print(f"  … steps of {model}", flush=True)
        steps = all_steps[model] = steps_in_fresh_process(model)
        for contender in CONTENDERS:
            rows.append(_row(model, contender, cold_results[model], steps))
            failures += _why(model, contender, cold_results[model], steps)
    header = ["model", "", "first call s", "step ms", "eager / this", "error vs float64"]
    print("\n" + stand_in_warning() + render(header, rows))
    print("\nfirst call: a fresh process, caches off; for eager it is Dynamo alone, the floor of any backend")
    if busy := [model for model in models if (noise({"steps": all_steps}, model) or 0) > NOISE]:
        print(f"NOISY: the machine was busy; eager differs from itself by over {NOISE:.0%} on {', '.join(busy)}")
    if failures:
        print("\n".join(["", "failed:", *(f"  {failure}" for failure in failures)]))
    return 0


def _row(model: str, contender: str, cold_result: dict[str, Any], steps: dict[str, Any]) -> list[str]:
    figures = steps.get(contender, {})
    times = ratio(steps.get("eager", {}).get("best_ms"), figures.get("best_ms"))
    return [
        model if contender == CONTENDERS[0] else "",
        contender,
        figure(cold_result[contender].get("seconds")),
        figure(figures.get("best_ms")),
        figure(times),
        figure(figures.get("error"), ".1e"),
    ]


def _why(model: str, contender: str, cold_result: dict[str, Any], steps: dict[str, Any]) -> list[str]:
    reasons = [cold_result[contender].get("failed"), steps.get(contender, {}).get("failed")]
    return [f"{model} {contender}: {reason}" for reason in reasons if isinstance(reason, str)]


if __name__ == "__main__":
    sys.exit(main())
