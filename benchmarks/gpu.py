"""Steps on one GPU: Litz, eager and `inductor` in turns, in bfloat16 with random weights.

`python -m benchmarks.gpu` measures models in inference and training, each row in a process of its own: the first call
with all caches off, the step, the peak of memory and the error against float64; then single kernels against the copy
bandwidth. It prints a table and the bars, and keeps the rows in `benchmarks/gpu.json` (`--output F`) among those of
earlier runs, so that runs can be parts of one: each row says when it was measured, and with what.

    --models bert,vit --modes training --only models|kernels   a part
    --seconds 520          begins no row that would not end in time; what was never measured, or longest ago, goes first
    --without-inductor     leaves the longest part out, and with it most bars; such rows are not kept
    --report               prints what is there, and measures nothing
    --profile bert:training [--contenders litz,eager,inductor] [--top 25]
                           the dearest kernels of a step, and the loops behind those that Litz generated
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT, in_fresh_process, stand_in_warning, without_caches
from benchmarks.table import figure, geometric_mean, render

OUTPUT = ROOT / "benchmarks" / "gpu.json"
OPERATORS = ROOT / "build" / "opinfo-cuda.json"  # what `make test-gpu-ops` left
KERNELS = "kernels"
# Seconds that a row takes, where no earlier run has said: what inductor compiles is most of it.
_TAKES = {"inference": 60.0, "training": 110.0, "one": 60.0, KERNELS: 150.0}
_TAKES_WITHOUT = {"inference": 25.0, "training": 40.0, "one": 25.0, KERNELS: 40.0}

Results = dict[str, Any]


def main() -> None:
    options = _options()
    if options.worker is not None:
        print(json.dumps(_work(options.worker, not options.without_inductor)))
        return
    if options.profile is not None:
        from benchmarks.gpu_profile import profile

        print(profile(*options.profile.split(":"), who=options.contenders.split(","), top=options.top))
        return
    found: Results = json.loads(options.output.read_text()) if options.output.exists() else {}
    found = {"models": {}, "kernels": {}} | found
    if not options.report:
        _measure(found, options)
    print(stand_in_warning() + report(found), flush=True)


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="")
    parser.add_argument("--modes", default="")
    parser.add_argument("--only", choices=("models", KERNELS))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--without-inductor", action="store_true")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--profile", metavar="MODEL:MODE")
    parser.add_argument("--contenders", default="litz")
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


# -- measuring --------------------------------------------------------------------------------------
def _work(row: str, inductor: bool) -> Results:
    """What one process measures."""
    from benchmarks.gpu_kernels import measure_kernels
    from benchmarks.gpu_models import contenders, measure_model

    if row == KERNELS:
        return {"rows": measure_kernels(["eager", "litz", *(["inductor"] if inductor else [])]), "run": _run()}
    name, mode = row.split(", ")
    return measure_model(name, mode, contenders(name, mode, inductor)) | {"run": _run()}


def _run() -> dict[str, str]:
    """When a row is measured, and with what."""
    import torch

    from litz.source import source_digest

    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "litz": source_digest()[:12],
    }


def wanted(options: Any) -> list[str]:
    """The rows that are asked for, in the order of the bars."""
    from benchmarks.gpu_models import rows

    models, modes = (set(filter(None, text.split(","))) for text in (options.models, options.modes))
    found = [
        row for row in rows()
        if (not models or row.split(", ")[0] in models) and (not modes or row.split(", ")[1] in modes)
    ]  # fmt: skip
    only = options.only or ("models" if models or modes else None)
    return [KERNELS] if only == KERNELS else found if only == "models" else [KERNELS, *found]


def in_turn(rows: Sequence[str], found: Mapping[str, Any]) -> list[str]:
    """First what was never measured, or failed; then what was measured longest ago."""

    def age(row: str) -> str:
        before = found["run"] if row == KERNELS and "run" in found else found["models"].get(row, {}).get("run", {})
        return str(before.get("when", ""))

    return sorted(rows, key=age)


def _measure(found: Results, options: Any) -> None:
    begun = time.monotonic()
    left = []
    for row in in_turn(wanted(options), found):
        estimate = seconds_of(row, found, not options.without_inductor)
        if time.monotonic() - begun + estimate > options.seconds:
            left.append(row)
            continue
        start = time.monotonic()
        flags = ["--without-inductor"] if options.without_inductor else []
        made = in_fresh_process("benchmarks.gpu", "--worker", row, *flags, environment=without_caches())
        merge(found, row, made, time.monotonic() - start)
        print(f"{row}: {json.dumps(made)}", flush=True)
        if not options.without_inductor:
            options.output.write_text(json.dumps(found, indent=1) + "\n")
    if left:
        print(f"left for another run: {'; '.join(left)}\n")


def seconds_of(row: str, found: Mapping[str, Any], inductor: bool) -> float:
    """What a row will take: what it took, and a little more."""
    taken = found.get("took", {}).get(row)
    kind = row.split(", ")[-1]
    return 1.1 * taken if taken is not None and inductor else (_TAKES if inductor else _TAKES_WITHOUT)[kind]


def merge(found: Results, row: str, made: Results, took: float) -> None:
    """Puts the row among the others. One that failed does not take the place of one that is there."""
    if row != KERNELS:
        before = found["models"].get(row, {})
        found["models"][row] = before | made if "failed" in made and "litz" in before else made
    elif "failed" in made:
        found["kernels_failed"] = made["failed"]
    else:
        found |= {"kernels": made["rows"], "run": made["run"]}
        found.pop("kernels_failed", None)
    if "failed" not in made:
        found.setdefault("took", {})[row] = round(took, 1)


# -- the table --------------------------------------------------------------------------------------
def report(found: Results) -> str:
    from benchmarks import gpu_bars as judge
    from benchmarks.gpu_models import NO_MASK

    models, lines = found["models"], []
    for key, row in models.items():
        failed = row.get("failed") or row.get("litz", {}).get("failed")
        best = [row.get(c, {}).get("best") for c in ("eager", "inductor", NO_MASK, "litz")]
        better = judge.of_the_better(models, key)
        others = (judge.cold(models, key), judge.peak(models, key), judge.error(models, key))
        measured = str(row.get("run", {}).get("when", "earlier"))
        lines.append([key, *map(figure, (*best, better, *others)), failed[:40] if failed else measured])
    head = ["ms a step", "eager", "inductor", "no mask", "litz", "of the better", "cold", "peak", "error", "measured"]
    text = render(head, lines) if lines else ""
    speeds = [judge.of_the_better(models, key) for key in models if not key.endswith("one")]
    known = [speed for speed in speeds if speed is not None]
    if known:
        text += f"\ngeometric mean of the better, of those measured: {figure(geometric_mean(known))}\n"
    rows = [
        [name, *(figure(row.get(c)) for c in ("copy", "eager", "inductor", "litz")),
         figure(judge.of_the_copy(found["kernels"], name))]
        for name, row in found["kernels"].items()
    ]  # fmt: skip
    if rows:
        text += "\n" + render(["microseconds", "copy", "eager", "inductor", "litz", "of the copy"], rows) + "\n"
    if "kernels_failed" in found:
        text += f"\nkernels: {found['kernels_failed']}\n"
    verdicts = judge.bars(found, _operators())
    return text + "\n".join(["", "bars:", *(f"  {bar}" for bar in verdicts)])


def _operators() -> Mapping[str, Any] | None:
    return json.loads(OPERATORS.read_text())["summary"] if OPERATORS.exists() else None


if __name__ == "__main__":
    main()
