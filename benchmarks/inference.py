"""Inference in bfloat16, and in float32 beside it: Litz, frozen and not, against eager and inductor.

`make bench-inference`, or `python -m benchmarks.inference [--models bert,llama] [--types bfloat16,float32]`. Each model
in a process of its own, contenders taking turns. Prints the table, and whether the bar of bfloat16 is met. With
`--threads 1` the processor's time counts, and not the clock's: what other processes do then hardly shows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch

from benchmarks.models import MODELS, build
from benchmarks.process import THREADS, in_fresh_process, stand_in_warning
from benchmarks.steps import Watch, compared
from benchmarks.table import figure, ratio, render

BAR = 1.15  # times as fast as inductor
BARRED = ("bert", "llama")
CONTENDERS = ("eager", "inductor", "litz", "litz frozen")
ROUNDS = 25


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.one:
        print(json.dumps(one(options.one, options.types, options.rounds, options.threads)))
        return 0
    results: dict[tuple[str, str], dict[str, Any]] = {}
    for kind in options.types.split(","):
        for model in options.models.split(","):
            print(f"… {model} in {kind}", file=sys.stderr, flush=True)
            told = ("--one", model, "--types", kind, "--rounds", str(options.rounds), "--threads", str(options.threads))
            results[model, kind] = in_fresh_process(
                "benchmarks.inference", *told, environment={"OMP_NUM_THREADS": str(options.threads)}
            )
    print(stand_in_warning() + report(results))
    return 0


def one(model: str, kind: str, rounds: int, threads: int) -> dict[str, Any]:
    """A model in that type, every contender in this process."""
    torch.set_num_threads(threads)
    dtype = getattr(torch, kind)
    module, kwargs = build(model)
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in kwargs.items()}
    clock = time.process_time if threads == 1 else time.perf_counter
    return compared(module.to(dtype), given, Watch(rounds, clock=clock), CONTENDERS)


def report(results: dict[tuple[str, str], dict[str, Any]]) -> str:
    rows, verdicts = [], []
    for (model, kind), found in results.items():
        times = {name: found.get(name, {}).get("best_ms") for name in (*CONTENDERS, "control")}
        errors = [found.get(name, {}).get("error") for name in CONTENDERS]
        gains = [ratio(times["inductor"], times[name]) for name in ("litz", "litz frozen")]
        noise = ratio(times["control"], times["eager"])
        rows.append(
            [
                f"{model} {kind}",
                *(figure(times[name]) for name in CONTENDERS),
                *(figure(gain) for gain in gains),
                *(figure(error, ".1e") for error in errors),
                figure(None if noise is None else abs(noise - 1), ".1%"),
            ]
        )
        if kind == "bfloat16" and model in BARRED:
            best = max((gain for gain in gains if gain is not None), default=None)
            met = "met" if best is not None and best >= BAR else "MISSED"
            verdicts.append(f"  {met}: {model} in bfloat16, {figure(best)} times inductor's speed (at least {BAR})")
        verdicts += [f"  failed: {model} {kind} {c}: {f['failed']}" for c, f in found.items() if "failed" in (f or {})]
    gains_head = ["inductor/litz", "inductor/frozen"]
    header = ["ms, best", *CONTENDERS, *gains_head, *(f"error: {name}" for name in CONTENDERS), "noise"]
    return "\n".join([render(header, rows), "", *verdicts])


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.inference")
    parser.add_argument("--models", default=",".join(BARRED), help="comma-separated: " + ", ".join(MODELS))
    parser.add_argument("--types", default="bfloat16,float32", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--one", help="one model, in this process")
    options = parser.parse_args(arguments)
    unknown = [model for model in options.models.split(",") if model not in MODELS]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)} (there are {', '.join(MODELS)})")
    return options


if __name__ == "__main__":
    sys.exit(main())
