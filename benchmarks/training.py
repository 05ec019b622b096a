"""The benchmarks of training, with the bars: cold first step, step time, gradients, peak memory, tracing, a loss curve.

`make bench-training`, or `python -m benchmarks.training [--models bert,vit] [--only PART]`.
Prints the tables and the bars and writes `benchmarks/training.json`; parts and models that a run leaves out keep
the figures of the run before, so that a busy machine can be measured model by model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar
from benchmarks.models import MODELS
from benchmarks.process import in_fresh_process, stand_in_warning, without_caches
from benchmarks.table import figure, geometric_mean, ratio, render

RESULTS = Path(__file__).resolve().parent / "training.json"
PARTS = ("cold", "steps", "dropout", "peak", "trace", "curve")
CONTENDERS = ("eager", "inductor", "litz")
COLD_EACH, COLD_MEAN, STEP_MEAN, TRACE, ERROR = 1 / 4, 1 / 5, 1.05, 0.7, 2.0
ROUNDING = 1e-6  # of a loss: a few units in the last place
Results = Mapping[str, Any]


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    path = Path(options.output)
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() and not options.fresh else {}
    for part in [options.only] if options.only else PARTS:
        if part in ("trace", "curve"):
            _log(part)
            results[part] = in_fresh_process(f"benchmarks.training_{part}")
            continue
        for model in options.models.split(","):
            _log(f"{part} {model}")
            results.setdefault(part, {})[model] = _measure(part, model, options.rounds)
    verdicts = bars(results)
    results["bars"] = [vars(bar) for bar in verdicts]
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(stand_in_warning() + report(results))
    print("\n".join(["", "bars:", *(f"  {bar}" for bar in verdicts)]))
    return 0


def _measure(part: str, model: str, rounds: int) -> dict[str, Any]:
    if part == "steps":
        return in_fresh_process("benchmarks.training_step", "steps", model, str(rounds))
    if part == "dropout":
        return in_fresh_process("benchmarks.training_step", "dropout", model)
    found = {}
    for contender in CONTENDERS:
        environment = without_caches() if part == "cold" else {}
        found[contender] = in_fresh_process("benchmarks.training_step", part, model, contender, environment=environment)
        if part == "cold":
            shutil.rmtree(environment["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)
        _log(f"  {contender}: {found[contender]}")
    return found


# -- tables --------------------------------------------------------------------------------------------
def _of(results: Results, part: str, model: str, contender: str, what: str) -> Any:
    return results.get(part, {}).get(model, {}).get(contender, {}).get(what)


def _quotients(results: Results, part: str, what: str, over: str, under: str) -> dict[str, float | None]:
    return {
        model: ratio(_of(results, part, model, over, what), _of(results, part, model, under, what))
        for model in results.get(part, {})
    }


def report(results: Results) -> str:
    sections = [
        _table(results, "cold", "seconds", "cold first step, seconds", 1, ("litz", "inductor")),
        _table(results, "steps", "best_ms", "step, ms, best of interleaved rounds", 1, ("inductor", "litz")),
        _table(results, "peak", "bytes", "bytes live at the peak, MiB", 2**20, ("litz", "inductor")),
        _gradients(results),
        _dropout(results),
    ]
    if "ratio" in results.get("trace", {}):
        trace = results["trace"]
        sections.append(
            f"joint graph of a {trace['layers']}-layer GPT-2, {trace['nodes']} nodes: Litz {min(trace['litz']):.2f} s, "
            f"PyTorch {min(trace['pytorch']):.2f} s"
        )
    if "curves" in results.get("curve", {}):
        sections.append(_curve(results["curve"]))
    return "\n\n".join(section for section in sections if section)


def _table(results: Results, part: str, what: str, title: str, unit: float, quotient_of: tuple[str, str]) -> str:
    if part not in results:
        return ""
    quotients = _quotients(results, part, what, *quotient_of)
    rows = []
    for model, quotient in quotients.items():
        values = [_of(results, part, model, contender, what) for contender in CONTENDERS]
        against = ratio(values[0], values[2])
        cells = [figure(None if v is None else v / unit) for v in values]
        rows.append([model, *cells, figure(quotient, ".3f"), figure(against, ".3f")])
    rows.append(["geometric mean", "", "", "", figure(geometric_mean(list(quotients.values())), ".3f"), ""])
    return f"{title}\n" + render(["model", *CONTENDERS, "/".join(quotient_of), "eager/litz"], rows)


def _gradients(results: Results) -> str:
    if "steps" not in results:
        return ""
    rows = []
    judged = ("control", "inductor", "litz")
    for model in results["steps"]:
        cells = [_of(results, "steps", model, c, what) for what in ("quotient", "element") for c in judged]
        losses = [_of(results, "steps", model, c, "loss_error") for c in CONTENDERS]
        worst = str(_of(results, "steps", model, "litz", "worst") or "failed")
        rows.append([model, *(figure(v) for v in cells), *(figure(v, ".1e") for v in losses), worst])
    header = ["model", *judged, *("element: control", *judged[1:]), "loss error: eager", "inductor", "litz"]
    title = "worst gradient: error against float64 / eager's (control: eager, inputs a last place apart)"
    return f"{title}\n" + render([*header, "Litz's worst gradient"], rows)


def _dropout(results: Results) -> str:
    if "dropout" not in results:
        return ""
    rows = []
    for model, found in results["dropout"].items():
        apart = found.get("apart")
        first = [figure(found[c][0], ".7f") if c in found else "failed" for c in ("eager", "litz")]
        rows.append([model, *first, "nothing is dropped" if apart is None else figure(apart, ".1e")])
    return "loss with dropout 0.1, one seed\n" + render(["model", "eager", "litz", "apart, for its size"], rows)


def _curve(found: Results) -> str:
    names = list(found["curves"])
    steps = [s for s in (1, 10, 25, 50, 100, 150, 200) if s <= found["steps"]]
    rows = [[str(s), *(f"{found['curves'][name][s - 1]:.5f}" for name in names)] for s in steps]
    return "loss of a small GPT with AdamW\n" + render(["step", *names], rows)


# -- bars ----------------------------------------------------------------------------------------------
def bars(results: Results) -> list[Bar]:
    found: list[Bar] = []
    if "cold" in results:
        cold = _quotients(results, "cold", "seconds", "litz", "inductor")
        found.append(_worst("cold first step / inductor's, each model", cold, COLD_EACH))
        mean = "cold first step / inductor's, geometric mean"
        found.append(_mean(mean, cold, lambda v: v <= COLD_MEAN, f"at most {COLD_MEAN}"))
    if "steps" in results:
        against = _quotients(results, "steps", "best_ms", "inductor", "litz")
        mean = "step: times as fast as inductor, geometric mean"
        found.append(_mean(mean, against, lambda v: v >= STEP_MEAN, f"at least {STEP_MEAN}"))
        eager = _quotients(results, "steps", "best_ms", "litz", "eager")
        found.append(_worst("step: litz / eager, each model", eager, 1.0))
        errors = {m: _of(results, "steps", m, "litz", "quotient") for m in results["steps"]}
        found.append(_worst("worst gradient's error / eager's, each model", errors, ERROR))
    if "dropout" in results:
        apart = {m: f.get("apart") for m, f in results["dropout"].items() if "litz" not in f or f["apart"] is not None}
        found.append(_worst("loss with dropout: apart from eager's, each model that drops", apart, ROUNDING, ".1e"))
    if "peak" in results:
        peaks = _quotients(results, "peak", "bytes", "litz", "inductor")
        found.append(_worst("bytes live at the peak / inductor's, each model", peaks, 1.0))
    if "trace" in results:
        value = results["trace"].get("ratio")
        met = None if value is None else value <= TRACE
        found.append(Bar("joint trace / PyTorch's", f"at most {TRACE}", figure(value, ".3f"), met))
    if "curve" in results:
        found.append(_curve_bar(results["curve"]))
    return found


def _curve_bar(found: Results) -> Bar:
    apart = found.get("apart_from_float64")
    if apart is None:
        return Bar("loss curve", "within noise of eager's", str(found.get("failed")), None)
    text = f"from float64: eager at most {apart['eager']:.1e}, litz {apart['litz']:.1e}"
    return Bar("loss curve over 200 steps", "within noise of eager's", text, apart["litz"] <= 3 * apart["eager"] + 1e-4)


def _worst(name: str, values: Mapping[str, float | None], limit: float, form: str = ".3f") -> Bar:
    known = {m: v for m, v in values.items() if v is not None}
    if not known:
        return Bar(name, f"at most {limit}", "no figures", None)
    bad = [m for m, v in known.items() if not v <= limit] + [m for m, v in values.items() if v is None]
    worst = max(known, key=lambda m: known[m])
    text = f"worst {known[worst]:{form}} ({worst})" + (f"; missed by {', '.join(bad)}" if bad else "")
    return Bar(name, f"at most {limit}", text, not bad)


def _mean(name: str, values: Mapping[str, float | None], good: Callable[[float], bool], wanted: str) -> Bar:
    mean = geometric_mean(list(values.values()))
    return Bar(
        name, wanted, "a model has no figure" if mean is None else f"{mean:.3f}", mean is not None and good(mean)
    )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.training")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--fresh", action="store_true", help="forget the figures of earlier runs")
    parser.add_argument("--output", default=str(RESULTS))
    options = parser.parse_args(arguments)
    unknown = [m for m in options.models.split(",") if m not in MODELS]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)} (there are {', '.join(MODELS)})")
    return options


def _log(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
