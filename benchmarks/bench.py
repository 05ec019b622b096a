"""The benchmarks: cold compile, step time, errors, kernels, memory and call overhead, with the bars.

`make bench`, or `python -m benchmarks.bench [--models bert,vit] [--only cold|steps|overhead]`. Prints the
table and writes `benchmarks/results.json`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import bars as judge
from benchmarks.cold import cold
from benchmarks.models import MODELS
from benchmarks.process import THREADS, in_fresh_process, litz_backend, stand_in_warning
from benchmarks.steps import steps_in_fresh_process
from benchmarks.table import figure, geometric_mean, ratio, render

RESULTS = Path(__file__).resolve().parent / "results.json"
PARTS = ("cold", "steps", "overhead")


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    models = options.models.split(",")
    parts = [options.only] if options.only else list(PARTS)
    path = Path(options.output)
    # What a run leaves out keeps the figures of the run before.
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() and not options.fresh else {}
    results["machine"] = _machine()
    if "cold" in parts:
        results.setdefault("cold", {}).update(cold(models, log=_log))
    if "steps" in parts:
        for model in models:
            _log(f"steps {model}")
            results.setdefault("steps", {})[model] = steps_in_fresh_process(model, options.rounds)
    if "overhead" in parts:
        _log("overhead")
        results["overhead"] = in_fresh_process("benchmarks.overhead")
    verdicts = judge.bars(results)
    results["bars"] = [vars(bar) for bar in verdicts]
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(stand_in_warning() + report(results, models))
    print("\n".join(["", "bars:", *(f"  {bar}" for bar in verdicts)]))
    print(f"\nwritten to {options.output}")
    return 0


def report(results: Mapping[str, Any], models: list[str]) -> str:
    """The results as text tables, with what failed below them."""
    sections = []
    if "cold" in results:
        sections.append(
            "cold first call, seconds (floor: Dynamo with no compiler behind it)\n" + _cold(results, models)
        )
    if "steps" in results:
        sections.append("step, milliseconds, best of interleaved rounds\n" + _steps(results, models))
        sections.append("numbers, launches a step, memory\n" + _inside(results, models))
    if busy := [model for model in models if (judge.noise(results, model) or 0) > judge.NOISE]:
        sections.append(
            f"NOISY: eager differs from itself by more than {judge.NOISE:.0%} on {', '.join(busy)}; "
            "measure these again on a quiet machine"
        )
    if "overhead" in results:
        sections.append(
            "fifteen pointwise operators on 64 floats, microseconds a call\n" + _overhead(results["overhead"])
        )
    failures = list(_failures(results))
    if failures:
        sections.append("failed:\n" + "\n".join(f"  {line}" for line in failures))
    return "\n\n".join(sections)


def _cold(results: Mapping[str, Any], models: list[str]) -> str:
    rows = []
    for model in models:
        floor, inductor, ours = (judge.seconds(results, model, backend) for backend in ("eager", "inductor", "litz"))
        cells = [model, *(figure(value) for value in (floor, inductor, ours))]
        rows.append([*cells, figure(ratio(ours, inductor), ".3f"), figure(ratio(ours, floor))])
    means = [
        geometric_mean([judge.cold_ratio(results, model) for model in models]),
        geometric_mean([ratio(judge.seconds(results, m, "litz"), judge.seconds(results, m, "eager")) for m in models]),
    ]
    rows.append(["geometric mean", "", "", "", figure(means[0], ".3f"), figure(means[1])])
    return render(["model", "floor", "inductor", "litz", "litz/inductor", "litz/floor"], rows)


def _steps(results: Mapping[str, Any], models: list[str]) -> str:
    rows = []
    for model in models:
        times = [judge.step(results, model, contender) for contender in ("eager", "inductor", "litz")]
        medians = [judge.step(results, model, contender, "median_ms") for contender in ("eager", "inductor", "litz")]
        rows.append(
            [
                model,
                *(figure(value) for value in times),
                figure(ratio(times[1], times[2]), ".3f"),
                figure(ratio(times[0], times[2]), ".3f"),
                *(figure(value) for value in medians),
                figure(judge.noise(results, model), ".1%"),
            ]
        )
    against = [
        geometric_mean([judge.speedup(results, model, other) for model in models]) for other in ("inductor", "eager")
    ]
    rows.append(["geometric mean", "", "", "", *(figure(value, ".3f") for value in against), "", "", "", ""])
    header = ["model", "eager", "inductor", "litz", "inductor/litz", "eager/litz"]
    return render([*header, "median: eager", "inductor", "litz", "noise"], rows)


def _inside(results: Mapping[str, Any], models: list[str]) -> str:
    rows = []
    for model in models:
        errors = [judge.step(results, model, contender, "error") for contender in ("eager", "inductor", "litz")]
        launches = [_launches(results, model, contender) for contender in ("inductor", "litz")]
        arena, peak = judge.step(results, model, "litz", "arena_bytes"), results["steps"][model].get("peak_bytes")
        rows.append(
            [
                model,
                *(figure(value, ".1e") for value in errors),
                *launches,
                *(figure(None if value is None else value / 2**20) for value in (arena, peak)),
            ]
        )
    header = ["model", "error: eager", "inductor", "litz", "launches: inductor", "litz", "arena MiB", "eager peak MiB"]
    return render(header, rows)


def _launches(results: Mapping[str, Any], model: str, contender: str) -> str:
    kernels, calls = (judge.step(results, model, contender, what) for what in ("kernels", "calls"))
    return "-" if kernels is None else f"{kernels}+{calls}"


def _overhead(figures: Mapping[str, Any]) -> str:
    names = ("eager", "nothing", "inductor", "litz")
    times = [figures.get(name, {}).get("microseconds") for name in names]
    return render([*names, "litz/inductor"], [[*(figure(value) for value in times), figure(ratio(times[3], times[2]))]])


def _failures(results: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every `failed` or `not_compiled` entry, with the path that leads to it."""
    for name, value in results.items():
        if name in ("failed", "not_compiled"):
            yield f"{' '.join(path)}: {value}"
        elif isinstance(value, Mapping):
            yield from _failures(value, (*path, name))


def _machine() -> dict[str, Any]:
    import torch

    from litz.target import detect

    return {
        "target": str(detect(THREADS)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": THREADS,
        "litz_backend": litz_backend(),
    }


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.bench", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated: " + ", ".join(MODELS))
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of interleaved steps (at least 7)")
    parser.add_argument("--fresh", action="store_true", help="forget the figures of earlier runs")
    parser.add_argument("--output", default=str(RESULTS))
    options = parser.parse_args(arguments)
    unknown = [model for model in options.models.split(",") if model not in MODELS]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)} (there are {', '.join(MODELS)})")
    if options.rounds < 7:
        parser.error("--rounds must be at least 7")
    return options


def _log(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
