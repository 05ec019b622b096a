"""Frozen inference: Litz beside `inductor`, frozen and not, ONNX Runtime and OpenVINO, and what freezing takes.

`make bench-inference` measures the six models in float32, and BERT and Llama in bfloat16, each row in processes of its
own; then what freezing adds to the first call, and what a process holds after `freeze="discard"`. It prints tables and
the bars, and keeps the rows in `benchmarks/inference.json` (`--output F`) among those of earlier runs, so that runs can
be parts of one.

    --only models|cold|memory   a part
    --models bert,llama --types float32,bfloat16
    --rounds N --threads N      with one thread the processor's time counts, and not the clock's
    --report                    prints what is there, and measures nothing

A row has two sittings. `inductor` frozen shares compiled code with `inductor` in one process, so it has one of its own,
with Litz in both; a ratio is of times from the same sitting.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, mean, worst
from benchmarks.models import MODELS
from benchmarks.process import ROOT, THREADS, in_fresh_process, stand_in_warning, without_caches
from benchmarks.table import figure, geometric_mean, ratio, render

OUTPUT = ROOT / "benchmarks" / "inference.json"
PARTS = ("models", "cold", "memory")
# What each sitting has, by type. `litz frozen` is judged; of bfloat16, the better of `litz` and `litz frozen`.
SITTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "float32": {
        "peers": ("eager", "inductor", "onnxruntime", "openvino", "litz frozen"),
        "frozen": ("eager", "inductor frozen", "litz frozen"),
    },
    "bfloat16": {"peers": ("eager", "inductor", "litz", "litz frozen")},
}
PEERS = ("inductor", "inductor frozen", "onnxruntime", "openvino")
IN_BFLOAT16 = ("bert", "llama")
EACH, MEAN, BFLOAT16, COLD, HELD = 1.0, 1.1, 1.15, 1.3, 1.1
ROUNDS, PAUSE, COLD_ROUNDS = 25, 0.02, 3
Results = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.one:
        model, kind, sitting = options.one.split(",")
        print(json.dumps(one(model, kind, SITTINGS[kind][sitting], options.rounds, options.threads)))
        return 0
    path = Path(options.output)
    found: Results = json.loads(path.read_text()) if path.exists() else {}
    found = {part: {} for part in PARTS} | found
    if not options.report:
        measure = {"models": _measure_models, "cold": _measure_cold, "memory": _measure_memory}
        for part in [options.only] if options.only else PARTS:
            for _ in measure[part](found[part], options):
                path.write_text(json.dumps(found, indent=1) + "\n")
    print(stand_in_warning() + report(found), flush=True)
    return 0


# -- measuring --------------------------------------------------------------------------------------
def one(model: str, kind: str, contenders: tuple[str, ...], rounds: int, threads: int) -> dict[str, Any]:
    """A model in that type, those contenders in this process."""
    import torch

    from benchmarks.models import build
    from benchmarks.steps import Watch, compared

    torch.set_num_threads(threads)
    dtype = getattr(torch, kind)
    module, kwargs = build(model)
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in kwargs.items()}
    clock = time.process_time if threads == 1 else time.perf_counter
    return compared(module.to(dtype), given, Watch(rounds, clock=clock, pause=PAUSE), contenders)


def _measure_models(found: Results, options: argparse.Namespace) -> Any:
    for kind in options.types.split(","):
        for model in options.models.split(","):
            if kind == "bfloat16" and model not in IN_BFLOAT16 and not options.all_types:
                continue
            row: Results = {"run": _run()}
            for sitting in SITTINGS[kind]:
                _log(f"{model} in {kind}, {sitting}")
                told = ("--one", f"{model},{kind},{sitting}", "--rounds", str(options.rounds))
                row[sitting] = in_fresh_process(
                    "benchmarks.inference", *told, "--threads", str(options.threads),
                    environment={**without_caches(), "OMP_NUM_THREADS": str(options.threads)},
                )  # fmt: skip
            found[f"{model}, {kind}"] = row
            yield


def _measure_cold(found: Results, options: argparse.Namespace) -> Any:
    """The first call with and without freezing, in turns, the best of a few."""
    from benchmarks.cold import cold

    for model in options.models.split(","):
        row: Results = {"run": _run(), "litz": [], "litz frozen": []}
        for _ in range(COLD_ROUNDS):
            for who, once in cold([model], ("litz", "litz frozen"))[model].items():
                row[who].append(once.get("seconds"))
        _log(f"cold {model}: {row['litz']}, frozen {row['litz frozen']}")
        found[model] = row
        yield


def _measure_memory(found: Results, options: argparse.Namespace) -> Any:
    for model in options.models.split(","):
        row: Results = {"run": _run()}
        for how in ("unfrozen", "discard"):
            row[how] = in_fresh_process("benchmarks.discarded", model, how, environment=without_caches())
        _log(f"memory {model}: {row['unfrozen']}, {row['discard']}")
        found[model] = row
        yield


def _run() -> dict[str, str]:
    """When a row is measured, and with what."""
    import torch

    from litz.source import source_digest

    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    return {"when": when, "torch": torch.__version__, "litz": source_digest()[:12]}


# -- what was found ---------------------------------------------------------------------------------
def _times(row: Mapping[str, Any], sitting: str) -> dict[str, float]:
    return {
        name: found["best_ms"]
        for name, found in row.get(sitting, {}).items()
        if isinstance(found, dict) and "best_ms" in found
    }


def lead(row: Mapping[str, Any], peer: str) -> float | None:
    """How many times as fast as the peer Litz is, frozen, in the sitting that both were in."""
    for sitting in ("frozen", "peers"):
        times = _times(row, sitting)
        if peer in times:
            return ratio(times[peer], times.get("litz frozen"))
    return None


def least_lead(row: Mapping[str, Any]) -> float | None:
    """Against the best of the peers; None where Litz, or `inductor` in either way, has no figure."""
    leads = {peer: lead(row, peer) for peer in PEERS}
    if leads["inductor"] is None or leads["inductor frozen"] is None:
        return None
    return min(value for value in leads.values() if value is not None)


def lead_in_bfloat16(row: Mapping[str, Any]) -> float | None:
    times = _times(row, "peers")
    mine = [times[name] for name in ("litz", "litz frozen") if name in times]
    return ratio(times.get("inductor"), min(mine)) if mine else None


def added_by_freezing(row: Mapping[str, Any]) -> float | None:
    plain, frozen = ([s for s in row.get(who, ()) if s is not None] for who in ("litz", "litz frozen"))
    return ratio(min(frozen), min(plain)) if plain and frozen else None


def held(row: Mapping[str, Any]) -> float | None:
    """What a process holds for the weights after discarding: what it holds beyond one that froze nothing, and the
    weights that that one has."""
    unfrozen, discard = (row.get(how, {}) for how in ("unfrozen", "discard"))
    if "resident" not in unfrozen or "resident" not in discard:
        return None
    return (discard["resident"] - unfrozen["resident"] + unfrozen["weights"]) / unfrozen["weights"]


def bars(found: Mapping[str, Any]) -> list[Bar]:
    rows = found.get("models", {})
    in_float32 = {m: least_lead(rows[f"{m}, float32"]) for m in MODELS if f"{m}, float32" in rows}
    in_bfloat16 = {m: lead_in_bfloat16(rows[f"{m}, bfloat16"]) for m in IN_BFLOAT16 if f"{m}, bfloat16" in rows}
    cold = {model: added_by_freezing(row) for model, row in found.get("cold", {}).items()}
    memory = {model: held(row) for model, row in found.get("memory", {}).items()}
    return [
        worst("frozen / the best of the others, each", in_float32, f"at least {EACH}", lambda x: x >= EACH, min),
        mean("the same, geometric mean", list(in_float32.values()), at_least=MEAN),
        worst("bfloat16 / inductor, each", in_bfloat16, f"at least {BFLOAT16}", lambda x: x >= BFLOAT16, min),
        worst("first call, frozen / not", cold, f"at most {COLD}", lambda x: x <= COLD, max),
        worst("held after discard / weights", memory, f"at most {HELD}", lambda x: x <= HELD, max),
    ]


def report(found: Mapping[str, Any]) -> str:
    contenders = ("eager", "inductor", "onnxruntime", "openvino", "litz", "litz frozen", "inductor frozen")
    rows, notes = [], []
    for name, row in found.get("models", {}).items():
        peers, frozen = _times(row, "peers"), _times(row, "frozen")
        times = [peers.get(c) for c in contenders[:-1]] + [frozen.get("inductor frozen"), frozen.get("litz frozen")]
        leads = [lead(row, peer) for peer in PEERS]
        noise = ratio(peers.get("control"), peers.get("eager"))
        rows.append([name, *map(figure, times), *map(figure, leads), figure(noise and abs(noise - 1), ".1%")])
        for sitting in ("peers", "frozen"):
            notes += _notes(name, row.get(sitting, {}))
    head = ["ms, best", *contenders, "litz there", *(f"/ {peer}" for peer in PEERS), "noise"]
    best = [least_lead(row) for name, row in found.get("models", {}).items() if name.endswith("float32")]
    lines = [render(head, rows), f"against the best of them, geometric mean: {figure(geometric_mean(best))}", *notes]
    kept = [
        [model, figure(added_by_freezing(found.get("cold", {}).get(model, {}))),
         figure(held(found.get("memory", {}).get(model, {})))]
        for model in MODELS
    ]  # fmt: skip
    lines += ["", render(["", "first call, frozen / not", "held after discard / weights"], kept)]
    return "\n".join([*lines, "", "bars:", *(f"  {bar}" for bar in bars(found))])


def _notes(name: str, sitting: Mapping[str, Any]) -> list[str]:
    """What failed, and who is wrong: errors are against float64, as shares of the largest number."""
    if "failed" in sitting:
        return [f"  {name}: failed: {sitting['failed']}"]
    lines = [f"  {name}: {who} failed: {one['failed']}" for who, one in sitting.items() if "failed" in one]
    eager = sitting.get("eager", {}).get("error")
    for who, one in sitting.items():
        if eager is not None and not one.get("error", 0.0) <= max(10 * eager, 1e-5):
            lines.append(f"  {name}: {who} is off by {one['error']:.1e}, eager by {eager:.1e}")
    return lines


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.inference")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated: " + ", ".join(MODELS))
    parser.add_argument("--types", default=",".join(SITTINGS), help="comma-separated")
    parser.add_argument("--all-types", action="store_true", help="all models in bfloat16, not only those with a bar")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--output", default=str(OUTPUT))
    parser.add_argument("--one", metavar="MODEL,TYPE,SITTING", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = [model for model in options.models.split(",") if model not in MODELS]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)} (there are {', '.join(MODELS)})")
    return options


def _log(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
