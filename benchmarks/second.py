"""Seconds of the first call in a second process, which finds what the first has left in the caches.

`python -m benchmarks.second` measures six models, inference and training, each contender in fresh processes that take
turns: Dynamo with no compiler behind it, Litz, `inductor`. Building the model and importing torch and transformers are
not counted; everything the backend loads and does is. `--without-inductor` leaves the longest part out;
`--models bert,vit` the others.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.models import MODELS
from benchmarks.process import in_fresh_process
from benchmarks.table import figure, geometric_mean, ratio, render

ROUNDS = 5
TIMES_DYNAMO, MORE_SECONDS = 1.25, 0.05
TIMES_INDUCTOR = 0.75
_FIRST_CALL = {"inference": ("benchmarks.cold",), "training": ("benchmarks.training_step", "cold")}


def measure(model: str, kind: str, contenders: list[str], rounds: int = ROUNDS) -> dict[str, Any]:
    """The least of the seconds of each contender; of Litz, also of the processes that found nothing."""
    folder = Path(tempfile.mkdtemp(prefix="litz-second-"))

    def caches(litz: str) -> dict[str, str]:
        return {
            "LITZ_CACHE": "1", "LITZ_CACHE_DIR": str(folder / litz),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0",
        }  # fmt: skip

    kept = caches("litz")
    try:
        first = [{contender: _seconds(kind, model, contender, kept) for contender in contenders}["litz"]]
        found: dict[str, list[float]] = {contender: [] for contender in contenders}
        for number in range(rounds):
            first.append(_seconds(kind, model, "litz", caches(f"litz-{number}")))
            for contender in contenders:
                found[contender].append(_seconds(kind, model, contender, kept))
        return {contender: min(seconds) for contender, seconds in found.items()} | {"first": min(first)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _seconds(kind: str, model: str, contender: str, environment: dict[str, str]) -> float:
    module, *arguments = _FIRST_CALL[kind]
    result = in_fresh_process(module, *arguments, model, contender, environment=environment)
    if "failed" in result:
        raise SystemExit(f"{model}, {kind}, {contender}: {result['failed']}")
    return float(result["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--kinds", default="inference,training")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--without-inductor", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    contenders = ["eager", "litz"] + ([] if options.without_inductor else ["inductor"])
    results: dict[str, dict[str, Any]] = {}
    for kind in options.kinds.split(","):
        for model in options.models.split(","):
            results[f"{model}, {kind}"] = measure(model, kind, contenders, options.rounds)
            print(f"{model}, {kind}: {json.dumps(results[f'{model}, {kind}'])}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    print()
    print(table(results))
    print(*bars(results), sep="\n")


def table(results: dict[str, dict[str, Any]]) -> str:
    header = ("", "Dynamo alone", "Litz, first", "Litz", "inductor", "Litz / Dynamo", "Litz / inductor")
    rows = [
        (
            name,
            *(figure(row.get(what), ".3f") for what in ("eager", "first", "litz", "inductor")),
            figure(ratio(row["litz"], row["eager"])),
            figure(ratio(row["litz"], row.get("inductor"))),
        )
        for name, row in results.items()
    ]
    return render(header, rows)


def bars(results: dict[str, dict[str, Any]]) -> list[str]:
    late = [name for name, row in results.items() if row["litz"] > TIMES_DYNAMO * row["eager"] + MORE_SECONDS]
    against = {name: ratio(row["litz"], row["inductor"]) for name, row in results.items() if "inductor" in row}
    slow = [name for name, value in against.items() if value is None or value > TIMES_INDUCTOR]
    first = geometric_mean([ratio(row["first"], row["eager"]) for name, row in results.items() if "inference" in name])
    return [
        f"at most {TIMES_DYNAMO} of Dynamo alone and {MORE_SECONDS * 1e3:.0f} ms: {_verdict(late)}",
        f"at most {TIMES_INDUCTOR} of inductor: {_verdict(slow) if against else 'not measured'}",
        f"first process, inference, times Dynamo alone: {figure(first)}",
    ]


def _verdict(missed: list[str]) -> str:
    return f"MISSED by {'; '.join(missed)}" if missed else "met"


if __name__ == "__main__":
    main()
