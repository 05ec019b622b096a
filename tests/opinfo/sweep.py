"""The operator sweep: every entry of torch's operator database, every sample, compiled by Litz against eager.

    python -m tests.opinfo.sweep [--ops add,nn.functional] [--dtype float32,bool] [--shard 0/4] [--first 3]
                                 [--symbolic] [--jvp] [--without-twins] [--json out.json] [--resume]
                                 [--device cuda [--workers 16] [--seconds 520]]

With `--symbolic` each sample goes through `torch.compile(…, dynamic=True)`, and one program takes it at three sizes.
With `--jvp` each goes through `litz.jvp`, as users call it, and is judged by `torch.func.jvp`.
With `--device` several processes share the work (`in_parallel.py`), on that device, for as long as `--seconds` says;
`--resume` goes on where such a run ended.

Fails where a result is wrong, where a process dies, and where a sample is left to eager that `left_to_eager.py` does
not list.

Workers run the cases and print a line for each; a worker that dies or hangs costs one case, which counts as crashed,
and a new one goes on behind it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from tests.messages import messages
from tests.opinfo.check import TWO_DEVICES
from tests.opinfo.in_parallel import Ledger, Part, Row, Workers, command, parts
from tests.opinfo.in_parallel import work as work_in_parallel
from tests.opinfo.known import NOT_ON_CPU
from tests.opinfo.left_to_eager import may_be_left
from tests.opinfo.samples import (
    DTYPES,
    FORWARDS,
    GRADIENTS,
    database,
    dtypes_of,
    has_forward_mode,
    has_gradients,
    name_of,
)

TIMEOUT = 60  # seconds of work without a word from the worker
ENOUGH = 200  # cases through Dynamo in one process: what it and sympy remember slows those that follow down
_MOST_SHOWN = 40  # operators whose faults are shown at the end of a run on a device
ON_DEVICE = ("float32", "bfloat16", GRADIENTS + "float32", GRADIENTS + "bfloat16")
KINDS = (*DTYPES, "errors", GRADIENTS + "float32", GRADIENTS + "bfloat16", FORWARDS + "float32")
# Operator and dtype; "errors" stands for the samples to be refused, "grad-float32" for results and gradients,
# "jvp-float32" for results and their tangents.
Job = tuple[str, str]
# How a sample is compiled: "" by the compiler itself, "symbolic" over symbolic sizes, "jvp" by `litz.jvp`; the last two
# go through Dynamo.
Way = Literal["", "symbolic", "jvp"]


def jobs(operators: list[str], dtypes: list[str], shard: tuple[int, int], device: str = "cpu") -> list[Job]:
    entries = [e for e in database() if not operators or any(_matches(name_of(e), o) for o in operators)]
    if device != "cpu":  # those that are code of the caller's own, for CUDA's compiler
        entries = [e for e in entries if name_of(e) not in NOT_ON_CPU]
    found: list[Job] = []
    for dtype in dtypes:
        if dtype == "errors":
            found += [(name_of(e), dtype) for e in entries if e.error_inputs_func is not None]
        elif dtype.startswith((GRADIENTS, FORWARDS)):
            plain = dtype.rpartition("-")[2]
            has = has_gradients if dtype.startswith(GRADIENTS) else has_forward_mode
            learn = [e for e in entries if plain in dtypes_of(e, device) and has(e, plain, device)]
            found += [(name_of(e), dtype) for e in learn]
        else:
            found += [(name_of(e), dtype) for e in entries if dtype in dtypes_of(e, device)]
    part, parts = shard
    return found[part::parts]


def _matches(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(wanted + ".") or (wanted.endswith("*") and name.startswith(wanted[:-1]))


# -- the worker -------------------------------------------------------------------------------
def work(todo: list[Job], after: str | None, first: int | None, way: Way, twins: bool = True) -> None:
    """Run the cases of the jobs, in order; `after` is the label of the last case done of the first job."""
    import torch

    from tests.opinfo.check import check, check_jvp
    from tests.opinfo.samples import cases_of, refused
    from tests.opinfo.symbolic import check_symbolic

    torch.set_num_threads(2)
    checks = {"": check, "symbolic": check_symbolic, "jvp": check_jvp}
    entries = {name_of(e): e for e in database()}
    left = ENOUGH
    for operator, dtype in todo:
        entry = entries[operator]
        _say({"job": [operator, dtype]})
        try:
            if dtype == "errors":
                every = refused(entry)
            else:
                every = cases_of(entry, dtype, first, twins)
            for case in every:
                if after is not None:
                    after = None if case.label == after else after
                    continue
                _say({"case": case.label})
                _say(_row(checks[way] if dtype != "errors" else check, case))
                left -= way != ""
                if not left:
                    _say({"anew": case.label})
                    return
        except Exception as error:
            _say({"case": "samples"})
            _say({"status": "refused", "message": f"the samples themselves: {type(error).__name__}: {error}"})
        after = None
    _say({"done": True})


def _row(checked: Callable[[Any], Any], case: Any) -> dict[str, Any]:
    try:
        return checked(case).row()
    except Exception as error:
        return {"status": "crashed", "message": f"the check itself: {type(error).__name__}: {error}"}


def _say(message: dict[str, Any]) -> None:
    os.write(1, (json.dumps(message) + "\n").encode())


# -- the parent -------------------------------------------------------------------------------
class Sweep:
    def __init__(self, todo: list[Job], first: int | None, way: Way = "", twins: bool = True):
        self.todo, self.first, self.way, self.twins = todo, first, way, twins
        self.rows: list[dict[str, Any]] = []

    def run(self) -> Iterator[Job]:
        """Runs all jobs; yields each as it ends."""
        after: str | None = None
        while self.todo:
            job: Job | None = None
            label: str | None = None
            worker = self._start(after)
            after = None
            for message in messages(worker, TIMEOUT):
                if "job" in message:
                    if job is not None:
                        self.todo.pop(0)
                        yield job
                    job = tuple(message["job"])
                elif "case" in message:
                    label = message["case"]
                elif "done" in message:
                    assert job is not None
                    self.todo.pop(0)
                    yield job
                    break
                elif "anew" in message:
                    after = message["anew"]
                    break
                else:
                    self._record(job, label, message)
                    label = None
            else:
                worker.kill()
                code = worker.wait()
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
                if label is None:  # died between cases: a job that cannot even begin is given up
                    label = "start"
                self._record(job or self.todo[0], label, {"status": "crashed", "message": f"the process ended: {how}"})
                if label == "start":
                    self.todo.pop(0)
                else:
                    after = label
                continue
            worker.stdin.close()
            worker.wait()

    def _start(self, after: str | None) -> Any:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.opinfo.sweep", "--worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert worker.stdin is not None
        worker.stdin.write(json.dumps([self.todo, after, self.first, self.way, self.twins]).encode() + b"\n")
        worker.stdin.flush()
        return worker

    def _record(self, job: Any, label: str | None, message: dict[str, Any]) -> None:
        self.rows.append({"operator": job[0], "dtype": job[1], "sample": label, **message})


# -- what came of it --------------------------------------------------------------------------
def summary(rows: list[dict[str, Any]], brief: bool = False) -> str:
    """`brief`: without the names of operators for which kernels were generated."""
    lines = []
    for dtype in KINDS:
        mine = [row for row in rows if row["dtype"] == dtype]
        if mine:
            lines.append(f"{dtype:>10}: {_counts(mine)}")
    lines.append(f"{'all':>10}: {_counts(rows)}")
    by_treatment: dict[str, list[str]] = {}
    for operator, treatment in sorted(treatment_of_each(rows).items()):
        by_treatment.setdefault(treatment, []).append(operator)
    for treatment, operators in sorted(by_treatment.items(), key=lambda item: -len(item[1])):
        listed = textwrap.fill(", ".join(operators), 120, initial_indent="    ", subsequent_indent="    ")
        shown = treatment in ("called", "eager") or not brief
        lines.append(f"{len(operators)} operators {treatment}" + (f":\n{listed}" if shown else ""))
    reasons = collections.Counter(_reason(row["message"]) for row in rows if row["status"] == "eager")
    lines += [f"{count} left to eager: {reason}" for reason, count in reasons.most_common(40)]
    again = {row["operator"] for row in rows if row["status"] == "right" and "compiles for" in row["message"]}
    if again:
        listed = textwrap.fill(", ".join(sorted(again)), 120, initial_indent="    ", subsequent_indent="    ")
        lines.append(f"{len(again)} operators compiled anew for each size:\n{listed}")
    times = [row["compile_ms"] for row in rows if row.get("compile_ms")]
    if times:
        lines.append(f"median compile: {statistics.median(times):.1f} ms")
    return "\n".join(lines)


def _counts(rows: list[dict[str, Any]]) -> str:
    tally = collections.Counter(row["status"] for row in rows)
    conditioned = sum(bool(row.get("conditioned")) for row in rows)
    parts = [f"{tally[s]} {s}" for s in ("right", "wrong", "crashed", "eager", "known", "refused")]
    return ", ".join(parts) + f" ({conditioned} right within the rounding of the inputs)"


def _reason(message: str) -> str:
    return re.sub(r"\d+", "N", message.splitlines()[0])[:160]


def treatment_of_each(rows: list[dict[str, Any]]) -> dict[str, str]:
    """How each operator was run: the least generated way that any of its samples took."""
    order = ("view", "generated", "decomposed", "called", "eager")
    found: dict[str, str] = {}
    for row in rows:
        if row["status"] in ("right", "wrong", "eager") and row["dtype"] != "errors":
            mine = row.get("treatment", "eager")
            found[row["operator"]] = max(found.get(row["operator"], "view"), mine, key=order.index)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", help="names, comma-separated; a trailing * is a prefix")
    parser.add_argument("--dtype", help=f"of {', '.join(KINDS)}; on a GPU, four of them unless told otherwise")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--first", type=int, help="only so many samples of each operator")
    parser.add_argument("--symbolic", action="store_true", help="one program over symbolic sizes for each sample")
    parser.add_argument("--jvp", action="store_true", help="tangents by litz.jvp, against those of torch.func.jvp")
    parser.add_argument("--without-twins", action="store_true", help="only the samples, not their non-contiguous twins")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="several processes, on that device")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=float("inf"), help="with --device: after which the run ends")
    parser.add_argument("--resume", action="store_true", help="go on where the JSON file ends")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--parallel-worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.parallel_worker is not None:
        work_in_parallel(**json.loads(options.parallel_worker))
        return 0
    if options.worker:
        todo, *how = json.loads(sys.stdin.readline())
        work([tuple(job) for job in todo], *how)
        return 0
    device = options.device or "cpu"
    way: Way = "symbolic" if options.symbolic else "jvp" if options.jvp else ""
    usual = (FORWARDS + "float32",) if options.jvp else ON_DEVICE if device != "cpu" else KINDS
    kinds = options.dtype.split(",") if options.dtype else usual
    if options.jvp and not all(kind.startswith(FORWARDS) for kind in kinds):
        parser.error(f"--jvp is for the kinds that have tangents, such as --dtype {FORWARDS}float32")
    part, of = (int(n) for n in options.shard.split("/"))
    todo = jobs([o for o in options.ops.split(",") if o], list(kinds), (part, of), device)
    name = "opinfo.json" if options.device is None else f"opinfo-{device}.json"
    options.json = options.json or Path("build") / name
    options.json.parent.mkdir(parents=True, exist_ok=True)
    if options.device is not None:
        ledger = Ledger(parts(todo, options.first), options.json, options.resume)
        start = command(device, not options.without_twins, options.workers)
        return in_parallel(ledger, start, options.workers, options.seconds, device)
    sweep = Sweep(todo, options.first, way, not options.without_twins)
    if options.resume and options.json.exists():
        saved = json.loads(options.json.read_text())
        done = {tuple(job) for job in saved["done"]}
        sweep.rows = [row for row in saved["rows"] if (row["operator"], row["dtype"]) in done]
        sweep.todo = [job for job in todo if job not in done]
    else:
        done = set()
    return report(sweep, done, options.json)


def report(sweep: Sweep, done: set[Job], file: Path) -> int:
    total, start, saved = len(sweep.todo), time.perf_counter(), time.perf_counter()
    shown = len(sweep.rows)
    for number, job in enumerate(sweep.run(), 1):
        done.add(job)
        bad = [row for row in sweep.rows[shown:] if fault(row, sweep.way)]
        for row in bad[:3]:
            where = f"{row['operator']}[{row['dtype']}] {row['sample']}"
            print(f"  {fault(row, sweep.way)}: {where}: {row['message'][:300]}", flush=True)
        if len(bad) > 3:
            print(f"  ... and {len(bad) - 3} more samples of it", flush=True)
        shown = len(sweep.rows)
        if number % 25 == 0 or number == total:
            elapsed = time.perf_counter() - start
            tally = collections.Counter(row["status"] for row in sweep.rows)
            counts = ", ".join(f"{tally[status]} {status}" for status in ("right", "wrong", "crashed"))
            print(f"[{number}/{total}] {elapsed:.0f} s: {counts}", flush=True)
        if time.perf_counter() - saved > 10 or number == total:
            file.write_text(json.dumps({"done": sorted(done), "rows": sweep.rows}))
            saved = time.perf_counter()
    print(summary(sweep.rows))
    return verdict(sweep.rows, sweep.way)


def in_parallel(
    ledger: Ledger, start: Callable[[int], Sequence[str]], workers: int, seconds: float, device: str
) -> int:
    """A sweep by several processes; what fails is said as soon as it is known, each operator once."""
    said: set[tuple[str, str, str]] = set()
    begun = time.perf_counter()
    lock = threading.Lock()

    def tell(part: Part, rows: list[Row]) -> None:
        with lock:
            for row in rows:
                kind = fault(row, "", device)
                if kind is not None and (key := (row["operator"], row["dtype"], kind)) not in said:
                    said.add(key)
                    where = f"{row['operator']}[{row['dtype']}] {row['sample']}"
                    print(f"  {kind}: {where}: {row['message'][:200]}", flush=True)
            if ledger.so_far % 250 == 0:
                print(f"[{ledger.so_far}/{ledger.of}] {time.perf_counter() - begun:.0f} s", flush=True)

    Workers(ledger, start, workers, seconds, tell).run()
    print(summary(ledger.rows, brief=True))
    for row in first_faults(ledger.rows, device)[:_MOST_SHOWN]:
        print(f"  {row['operator']}[{row['dtype']}] {row['sample']}: {row['message'][:160]}")
    counts = ledger.summary()
    print(", ".join(f"{count} {what}" for what, count in counts["counts"].items()))
    print(f"{counts['done']} of {counts['of']} parts done")
    return verdict(ledger.rows, "", device)


def first_faults(rows: list[dict[str, Any]], device: str) -> list[dict[str, Any]]:
    """The first row of each operator that the sweep fails for."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if fault(row, "", device) is not None:
            found.setdefault(row["operator"], row)
    return list(found.values())


def verdict(rows: list[dict[str, Any]], way: Way, device: str = "cpu") -> int:
    faults: dict[str, set[str]] = {}
    for row in rows:
        if (kind := fault(row, way, device)) is not None:
            faults.setdefault(kind, set()).add(f"{row['operator']}[{row['dtype']}]")
    for kind, where in sorted(faults.items()):
        print(f"FAILED, {kind}: {', '.join(sorted(where))}")
    return 1 if faults else 0


def fault(row: dict[str, Any], way: Way, device: str = "cpu") -> str | None:
    """What the sweep fails for, if for this row."""
    if row["status"] in ("wrong", "crashed"):
        return row["status"]
    if row["status"] == "eager" and row["message"] == TWO_DEVICES:
        return None
    if row["status"] == "eager" and not may_be_left(row["operator"], row["dtype"], way, device):
        return "left to eager, and not listed in left_to_eager.py"
    return None


if __name__ == "__main__":
    sys.exit(main())
