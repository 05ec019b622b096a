"""More architectures of `transformers`, inference and training: time and errors of eager, Litz and, if asked, inductor.

`make bench-models`, or `python -m benchmarks.models_more [--models swin,t5] [--mode training] [--inductor] [--cpu]`.
Each model and mode is measured in a process of its own, the contenders taking turns. Prints the table and the bars and
writes `benchmarks/models.json`; what a run leaves out keeps the figures of the run before.

`--cpu` counts the processor time of one thread instead of time on the clock of two: on a machine that has other things
to do, the ratios still mean something.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.architectures import ARCHITECTURES
from benchmarks.bars import Bar
from benchmarks.process import THREADS, in_fresh_process, stand_in_warning
from benchmarks.table import figure, geometric_mean, ratio, render

RESULTS = Path(__file__).resolve().parent / "models.json"
MODES = ("inference", "training")
SLOWER = 1.03  # than eager: no model may be
ERROR = 2.0  # times eager's
SECONDS = 6.0  # of interleaved rounds
LIMIT = 240.0  # seconds for a model and mode, everything included
LIMIT_INDUCTOR = 900.0
ROUNDS = 25
# An inference error below this many units in the last place is right, whatever eager's is.
FLOOR = 4 * 2.0**-23
Results = Mapping[str, Any]


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.one:
        print(json.dumps(measure(options.one, options.mode, options.inductor, options.cpu, options.seconds)))
        return 0
    path = Path(options.output)
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() and not options.fresh else {}
    modes = [options.mode] if options.mode else MODES
    for mode in modes:
        for model in options.models.split(","):
            results.setdefault(mode, {})[model] = _in_fresh_process(model, mode, options)
            _log(_line(results, mode, model))
    verdicts = bars(results)
    results["bars"] = [vars(bar) for bar in verdicts]
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(stand_in_warning() + "\n\n".join(report(results, mode) for mode in MODES if mode in results))
    print("\n".join(["", "bars:", *(f"  {bar}" for bar in verdicts)]))
    return 0


def _in_fresh_process(model: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    flags = [*(["--inductor"] if options.inductor else []), *(["--cpu"] if options.cpu else [])]
    environment = {"OMP_NUM_THREADS": "1" if options.cpu else str(THREADS), "LITZ_CACHE": "0"}
    arguments = ("--one", model, "--mode", mode, "--seconds", str(options.seconds), *flags)
    limit = LIMIT_INDUCTOR if options.inductor else LIMIT
    return in_fresh_process("benchmarks.models_more", *arguments, environment=environment, limit=limit)


# -- one model --------------------------------------------------------------------------------------
def measure(model: str, mode: str, inductor: bool, cpu: bool, seconds: float) -> dict[str, Any]:
    import torch

    from benchmarks import steps, training_step
    from benchmarks.models import build

    torch.set_num_threads(1 if cpu else THREADS)
    watch = steps.Watch(ROUNDS, seconds, clock=time.thread_time if cpu else time.perf_counter)
    contenders = ("eager", "inductor", "litz") if inductor else ("eager", "litz")
    if mode == "training":
        found = training_step.compared(model, watch, contenders)
    else:
        found = steps.compared(*build(model), watch, contenders)
    found["litz"].update(_programs())
    return found


def _programs() -> dict[str, Any]:
    """What became of the model: pieces, launches of a run, operators called, and what was left to eager."""
    import litz

    found = litz.reports()
    called: Counter[str] = Counter()
    for report in found:
        called.update({name.removeprefix("aten::"): count for name, count in report.calls})
    left = [report.left_to_eager for report in found if report.left_to_eager is not None]
    return {
        "pieces": len(found),
        "kernels": sum(report.kernels for report in found),
        "called": dict(called),
        "fallbacks": sorted({f.operator for report in found for f in report.fallbacks}),
        "left": left if found else ["nothing was compiled"],
    }


# -- tables -----------------------------------------------------------------------------------------
def _of(results: Results, mode: str, model: str, contender: str, what: str) -> Any:
    return results.get(mode, {}).get(model, {}).get(contender, {}).get(what)


def slowness(results: Results, mode: str, model: str, other: str = "eager") -> float | None:
    """Litz's time for the other's: above one is slower."""
    return ratio(*(_of(results, mode, model, contender, "best_ms") for contender in ("litz", other)))


def error(results: Results, mode: str, model: str) -> float | None:
    """Litz's error for eager's: of the outputs, or of the worst gradient."""
    if mode == "training":
        return _of(results, mode, model, "litz", "quotient")
    mine, theirs = (_of(results, mode, model, contender, "error") for contender in ("litz", "eager"))
    return None if mine is None or theirs is None else mine / max(theirs, FLOOR)


def _control(results: Results, mode: str, model: str) -> float:
    """What eager's own error for eager's may be, when its inputs are a last place apart."""
    return max(1.0, (_of(results, mode, model, "control", "quotient") or 1.0) if mode == "training" else 1.0)


def _line(results: Results, mode: str, model: str) -> str:
    failed = results[mode][model].get("failed") or _of(results, mode, model, "litz", "failed")
    if failed:
        return f"{mode} {model}: failed: {failed}"
    against, wrong = slowness(results, mode, model), error(results, mode, model)
    return f"{mode} {model}: {figure(against, '.3f')} of eager's time, error {figure(wrong)} of eager's"


def report(results: Results, mode: str) -> str:
    rows, notes = [], []
    for model, found in results[mode].items():
        times = [_of(results, mode, model, contender, "best_ms") for contender in ("eager", "inductor", "litz")]
        noise = ratio(times[0], _of(results, mode, model, "control", "best_ms"))
        called = _of(results, mode, model, "litz", "called") or {}
        rows.append([
            model, *(figure(t) for t in times),
            figure(slowness(results, mode, model), ".3f"), figure(slowness(results, mode, model, "inductor"), ".3f"),
            figure(error(results, mode, model)), figure(noise and abs(noise - 1), ".1%"),
            *(str(_of(results, mode, model, "litz", what) or "-") for what in ("pieces", "kernels")),
            str(sum(called.values())),
        ])  # fmt: skip
        notes += _notes(results, mode, model, found)
    means = [
        geometric_mean([slowness(results, mode, m, other) for m in results[mode]]) for other in ("eager", "inductor")
    ]
    rows.append(["geometric mean", "", "", "", *(figure(mean, ".3f") for mean in means), "", "", "", "", ""])
    header = ["model", "eager", "inductor", "litz", "litz/eager", "litz/inductor", "error/eager's", "noise"]
    table = render([*header, "pieces", "kernels", "calls"], rows)
    return "\n".join([f"{mode}, milliseconds, best of interleaved rounds", table, *notes])


def _notes(results: Results, mode: str, model: str, found: Results) -> list[str]:
    """What failed, what was left to eager, and the operators that were called, below the table."""
    failed = [found.get("failed"), *(_of(results, mode, model, c, "failed") for c in ("eager", "inductor", "litz"))]
    lines = [f"  {model}: failed: {why}" for why in failed if why]
    lines += [f"  {model}: left to eager: {why}" for why in _of(results, mode, model, "litz", "left") or ()]
    wrong, size = error(results, mode, model), _of(results, mode, model, "litz", "worst_size")
    if mode == "training" and wrong is not None and wrong > ERROR and size is not None:
        worst, moved = (_of(results, mode, model, "litz", what) for what in ("worst", "worst_moved"))
        scale = f"{size:.1e} of the largest gradient's size"
        lines.append(f"  {model}: worst in {worst}, {scale}; eager with parameters moved by a last place: {moved:.2f}")
    called = _of(results, mode, model, "litz", "called") or {}
    if called:
        lines.append(f"  {model} calls: {', '.join(f'{name} × {count}' for name, count in sorted(called.items()))}")
    return lines


# -- bars -------------------------------------------------------------------------------------------
def bars(results: Results) -> list[Bar]:
    found = []
    for mode in [mode for mode in MODES if mode in results]:
        models = list(results[mode])
        times = {m: slowness(results, mode, m) for m in models}
        found.append(_each(f"{mode}: litz / eager, each model", times, lambda _: SLOWER, f"at most {SLOWER}"))
        errors = {m: error(results, mode, m) for m in models}
        allowed = {m: ERROR * _control(results, mode, m) for m in models}
        found.append(_each(f"{mode}: error / eager's, each model", errors, allowed.__getitem__, f"at most {ERROR}"))
    return found


def _each(name: str, values: Mapping[str, float | None], limit: Callable[[str], float], wanted: str) -> Bar:
    known = {m: v for m, v in values.items() if v is not None}
    bad = {m: v for m, v in known.items() if not v <= limit(m)}
    missing = [m for m in values if m not in known]
    if not known:
        return Bar(name, wanted, "no figures", None)
    worst = max(known, key=lambda m: math.inf if math.isnan(known[m]) else known[m])
    text = f"{len(known) - len(bad)} of {len(values)}; worst {known[worst]:.3f} ({worst})"
    text += f"; missed by {', '.join(f'{m} {v:.3f}' for m, v in bad.items())}" if bad else ""
    text += f"; no figure for {', '.join(missing)}" if missing else ""
    return Bar(name, wanted, text, not bad and not missing)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.models_more")
    parser.add_argument("--models", default=",".join(ARCHITECTURES))
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--inductor", action="store_true", help="compare with inductor too, which compiles slowly")
    parser.add_argument("--cpu", action="store_true", help="one thread, and its processor time")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of interleaved rounds, a model and mode")
    parser.add_argument("--fresh", action="store_true", help="forget the figures of earlier runs")
    parser.add_argument("--output", default=str(RESULTS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = [m for m in options.models.split(",") if m not in ARCHITECTURES]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)} (there are {', '.join(ARCHITECTURES)})")
    return options


def _log(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
