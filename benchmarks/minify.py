"""Faults planted in Litz (`planted/faults.py`), found and made small, each in a real model: by `litz minify`, and by
torch's own minifier where that applies.

    make bench-minify                    all of it, also written to `benchmarks/minify.json`
    MINIFY="--only rule-bert,nan-llama"  some faults; figures of the others are kept
    MINIFY="--without-torch"             without torch's minifier, which takes as long again
    MINIFY="--only training"             the fault in BERT's training, bisected by fuel
    MINIFY="--report"                    the figures that are kept

What Litz makes of a fault is run once more by itself, in an empty folder: with the fault it must show it, without the
fault it must be well. Torch's minifier runs on the same fault with Litz as its backend, and for as long as Litz took
times `PATIENCE`; it looks for exceptions and for wrong numbers, and ends with the process where that ends. Times are
from the model on, what saves its graph included; processor's seconds stand beside those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar
from benchmarks.planted.faults import FAULTS, Fault
from benchmarks.process import ROOT, THREADS, ends_well, last_line, run_with_all
from benchmarks.table import figure, render

RESULTS = Path(__file__).resolve().parent / "minify.json"
LINES, NODES, SMALL = 40, 6, 9  # the most lines of each; the most nodes of at least so many of them
PATIENCE = 2.5  # times what Litz took, for torch's minifier
LONGEST = 2400.0  # seconds, for any step
ALONE = 30.0  # seconds after which what is run by itself has no end
IN_TRAINING = "rule-bert"  # the fault that is bisected in training
TO_TORCH = {
    "exception": {"TORCHDYNAMO_REPRO_LEVEL": "2", "LITZ_VERIFY": "1"},
    "accuracy": {"TORCHDYNAMO_REPRO_LEVEL": "4"},
}
Results = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join([*FAULTS, "training"]))
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args(arguments)
    ends_well()
    results: Results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in [] if options.report else options.only.split(","):
        with _folder() as folder:
            if name == "training":
                results["training"] = found = _from_here(_bisected(folder))
            else:
                found = _from_here(_measured(name, folder, not options.without_torch))
                results.setdefault("faults", {})[name] = found
        print(f"{name}: {json.dumps(found)}", file=sys.stderr, flush=True)
        results["bars"] = [vars(bar) for bar in bars(results)]
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(report(results))
    print("\n".join(["", "bars:", *(f"  {bar}" for bar in bars(results))]))
    return 0


def _measured(name: str, folder: Path, torch: bool) -> Results:
    found = {"litz": _by_litz(name, folder)}
    if torch and FAULTS[name].for_torch is not None and "seconds" in found["litz"]:
        found["torch"] = _by_torch(name, folder, PATIENCE * found["litz"]["seconds"])
    return found


def _from_here(found: Results) -> Results:
    """With paths as they are in the repository."""
    return json.loads(json.dumps(found).replace(f"{ROOT}/", ""))


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="litz-minify-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- by Litz -------------------------------------------------------------------------------------------
def _by_litz(name: str, folder: Path) -> Results:
    fault, watch = FAULTS[name], _Watch()
    saved = _step(_environment(), "save", fault.model, str(folder))
    if "failed" in saved:
        return saved
    slower = [str(fault.slower_than)] if fault.slower_than is not None else []
    found = _step(_planted(name), "minify", saved["graph"], *slower)
    spent = watch.spent()
    if "failed" in found:
        return {**found, **spent}
    text = Path(found.pop("file")).read_text()
    blamed = fault.rule is None or fault.rule in (found["culprit"] or "")
    lines = len(text.splitlines())
    return {**found, "lines": lines, "blamed": blamed, **spent, **_alone(name, fault, text), "text": text}


def _alone(name: str, fault: Fault, text: str) -> Results:
    """What the file says by itself, with the fault and without."""
    with _folder() as empty:
        (empty / "shows.py").write_text(text)
        said = [_run(empty / "shows.py", environment) for environment in (_planted(name), _environment())]
    return {"shows": fault.shown_by(said[0]), "well without": said[1] == "nothing is wrong", "alone": said}


def _run(file: Path, environment: Mapping[str, str]) -> str:
    try:
        done = run_with_all([sys.executable, file.name], file.parent, environment, ALONE)
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode < 0:
        return f"the process ended by {signal.Signals(-done.returncode).name}"
    return last_line(done.stdout) or last_line(done.stderr)


def _bisected(folder: Path) -> Results:
    fault, watch = FAULTS[IN_TRAINING], _Watch()
    saved = _step(_environment(), "save", fault.model, str(folder), "training")
    found = saved if "failed" in saved else _step(_planted(IN_TRAINING), "bisect", saved["graph"])
    culprit = found.get("culprit") or ""
    named = fault.rule is not None and fault.rule in culprit
    return {**found, "named": named, "file named": "benchmarks/planted/faults.py:" in culprit, **watch.spent()}


# -- by torch's minifier -------------------------------------------------------------------------------
def _by_torch(name: str, folder: Path, limit: float) -> Results:
    fault, watch, place = FAULTS[name], _Watch(), folder / "torch"
    place.mkdir()
    assert fault.for_torch is not None
    hows = {"TORCHDYNAMO_REPRO_AFTER": "dynamo", "TORCH_COMPILE_DEBUG_DIR": str(place), "FOR_TORCHS_MINIFIER": "1"}
    environment = {**_planted(name), **hows, **TO_TORCH[fault.for_torch]}
    compiled = _step(environment, "torch", fault.model)
    launchers = list(place.rglob("minifier_launcher.py"))
    if not launchers:
        return {"failed": f"it saw nothing wrong ({compiled.get('raised', 'no exception')})", **watch.spent()}
    ended = True
    try:
        run_with_all([sys.executable, str(launchers[0])], place, environment, limit)
    except subprocess.TimeoutExpired:
        ended = False
    spent = watch.spent()
    made = place / "repro.py"
    if not made.exists():
        return {"failed": "it made nothing", "ended": ended, **spent}
    # Each checkpoint has its number of nodes in its name; the last one is what is left.
    nodes = [int(m[1]) for file in place.rglob("minified_*_nodes.py") if (m := re.search(r"_(\d+)_nodes", file.name))]
    return {"lines": len(made.read_text().splitlines()), "nodes": min(nodes), "ended": ended, **spent}


# -- processes -----------------------------------------------------------------------------------------
def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(THREADS), "LITZ_CACHE": "0", "PYTHONPATH": str(ROOT)}


def _planted(name: str) -> dict[str, str]:
    here = str(Path(__file__).resolve().parent / "planted")
    return {**_environment(), "PYTHONPATH": os.pathsep.join([here, str(ROOT)]), "PLANTED_FAULT": name}


def _step(environment: Mapping[str, str], *arguments: str) -> Results:
    """One of `minify_one.py`."""
    command = [sys.executable, "-m", "benchmarks.minify_one", *arguments]
    try:
        done = run_with_all(command, ROOT, environment, LONGEST)
    except subprocess.TimeoutExpired:
        return {"failed": f"{arguments[0]}: no end within {LONGEST:.0f} seconds"}
    if done.returncode != 0:
        return {"failed": f"{arguments[0]}: {last_line(done.stderr) or done.returncode}"}
    return json.loads(last_line(done.stdout))


class _Watch:
    def __init__(self) -> None:
        self.begun, self.worked = time.perf_counter(), _worked()

    def spent(self) -> Results:
        """Of the clock, and of the processor in all processes that have ended."""
        return {"seconds": time.perf_counter() - self.begun, "worked": _worked() - self.worked}


def _worked() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# -- what came of it -----------------------------------------------------------------------------------
def report(results: Results) -> str:
    header = ["fault", "kind", "lines", "calls", "nodes", "shows it", "trials", "s", "CPU s"]
    header += ["torch: lines", "nodes", "s", "CPU s", ""]
    rows = []
    for name, found in results.get("faults", {}).items():
        litz, torch = found["litz"], found.get("torch", {})
        shown = "-" if "failed" in litz else "yes" if _right(litz) else "NO"
        row = [name, FAULTS[name].kind, *(_whole(litz.get(key)) for key in ("lines", "calls", "nodes")), shown]
        row += [_whole(litz.get("trials")), *(figure(litz.get(key), ".0f") for key in ("seconds", "worked"))]
        row += [_whole(torch.get(key)) for key in ("lines", "nodes")]
        row += [figure(torch.get(key), ".0f") for key in ("seconds", "worked")]
        rows.append([*row, _of_torch(name, torch)])
    return render(header, rows)


def _of_torch(name: str, torch: Results) -> str:
    if FAULTS[name].for_torch is None:
        return "does not apply"
    if not torch:
        return "not run"
    return torch.get("failed") or ("" if torch["ended"] else "stopped")


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)


def _right(litz: Results) -> bool:
    return bool(litz["shows"] and litz["well without"] and litz["blamed"])


def bars(results: Results) -> list[Bar]:
    faults = results.get("faults", {})
    missing = [name for name in FAULTS if name not in faults]
    if not faults:
        return []
    bad = [name for name, found in faults.items() if not _small(found["litz"], lines=LINES)]
    few = [name for name, found in faults.items() if _small(found["litz"], nodes=NODES)]
    found = [
        Bar(
            f"planted faults, each in at most {LINES} lines that show it", f"{len(FAULTS)} of {len(FAULTS)}",
            f"{len(faults) - len(bad)}{_but('not', bad)}{_but('not run:', missing)}", not bad and not missing,
        ),
        Bar(
            f"planted faults with at most {NODES} nodes, inputs and output counted", f"at least {SMALL}", str(len(few)),
            len(few) >= SMALL,
        ),
    ]  # fmt: skip
    both = {name: (each["litz"], each["torch"]) for name, each in faults.items() if "lines" in each.get("torch", {})}
    longer = [
        n for n, (ours, theirs) in both.items() if ours["lines"] > theirs["lines"] or ours["nodes"] > theirs["nodes"]
    ]
    later = [n for n, (ours, theirs) in both.items() if ours["seconds"] >= theirs["seconds"]]
    met = None if not both else not longer
    found.append(
        Bar("no longer than torch's minifier's, lines and nodes", "all", f"of {len(both)}{_but('not', longer)}", met)
    )
    met = None if not both else not later
    found.append(Bar("found in less time than torch's minifier", "all", f"of {len(both)}{_but('not', later)}", met))
    training = results.get("training")
    if training is not None:
        named = bool(training["named"] and training["file named"])
        found.append(
            Bar("a wrong rule in BERT's training, bisected", "its name and file", str(training.get("culprit")), named)
        )
    return found


def _small(litz: Results, lines: int = LINES, nodes: int | None = None) -> bool:
    return (
        "failed" not in litz and _right(litz) and litz["lines"] <= lines and (nodes is None or litz["nodes"] <= nodes)
    )


def _but(what: str, names: Sequence[str]) -> str:
    return f", {what} {', '.join(names)}" if names else ""


if __name__ == "__main__":
    sys.exit(main())
