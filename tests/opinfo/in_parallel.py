"""The operator sweep by several processes, on a device: `python -m tests.opinfo.sweep --device cuda`.

In: jobs (an operator and a dtype), a device, how many processes, and how many seconds. Out: a row for each case, kept
in a file as the work goes on, so that the next run goes on where this one ended.

The samples of a job are taken in `ROUNDS`, a few of all jobs before more of any, so that however early the time is up,
every operator was looked at. A `Part` is a round of a job. Workers are given parts and say a line for each case. What
ends a worker (a crash, a hang, a device that no longer answers) costs it one case: a new one goes on behind that, and
the others do not notice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.messages import messages

# Samples in each round of a job, but for the last, which has the others.
ROUNDS = (1, 3, 8, 28)
TIMEOUT = 60  # seconds of work without a word; asleep, half as long again
_KEPT = ("status", "message", "conditioned", "calls", "treatment", "compile_ms")
_LONGEST = 1000  # characters of a message
_EVERY = 10.0  # seconds from one writing of the file to the next

Job = tuple[str, str]
Row = dict[str, Any]


class Part(NamedTuple):
    """The samples of a job from number `begin` on, before `end`."""

    operator: str
    dtype: str
    begin: int
    end: int | None

    @property
    def job(self) -> Job:
        return self.operator, self.dtype


def parts(jobs: Sequence[Job], most: int | None = None) -> list[Part]:
    """All jobs in rounds; with `most`, of no more samples than that."""
    found, begin = [], 0
    for length in (*ROUNDS, None):
        end = None if length is None else begin + length
        if most is not None:
            end = most if end is None else min(end, most)
        if end is None or end > begin:
            found += [Part(*job, begin, end) for job in jobs]
        begin = end if end is not None else begin
    return found


# -- the worker -------------------------------------------------------------------------------------
def work(device: str, twins: bool, core: int | None) -> None:
    """Runs the parts that come in, line by line; each with the label of the last case that was done of it before."""
    import torch

    from tests.opinfo.check import check
    from tests.opinfo.samples import cases_of, database, name_of

    say = _alone_on_stdout()
    if core is not None:  # LLVM, torch and the driver would each start as many threads as there are cores
        os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    entries = {name_of(e): e for e in database()}
    for line in sys.stdin:
        *fields, after = json.loads(line)
        part = Part(*fields)
        count = 0
        try:
            for case in cases_of(entries[part.operator], part.dtype, part.end, twins, device, part.begin):
                count += not case.label.endswith("n")
                if after is not None:
                    after = None if case.label == after else after
                    continue
                say({"case": case.label})
                row = _judged(check, case)
                if not answers(device):
                    say({"lost": row})
                    return
                say({"row": row})
        except Exception as error:
            message = f"the samples themselves: {type(error).__name__}: {error}"
            say({"case": "samples"})
            say({"row": {"status": "refused", "message": message}})
            if not answers(device):
                return
        say({"done": count})


def _judged(check: Callable[[Any], Any], case: Any) -> Row:
    try:
        return check(case).row()
    except Exception as error:  # the samples are another matter
        return {"status": "wrong", "message": f"judging it raised {type(error).__name__}: {error}"}


def answers(device: str) -> bool:
    """Whether the device still does as it is told: after a fault of a kernel it does nothing more for this process."""
    if device == "cpu":
        return True
    import torch

    try:
        return int(torch.ones(1, device=device).add(1).item()) == 2
    except RuntimeError:
        return False


def _alone_on_stdout() -> Callable[[dict[str, Any]], None]:
    """Says a line to the parent; whatever else writes to the standard output, kernels included, is not heard."""
    channel = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def say(message: dict[str, Any]) -> None:
        os.write(channel, (json.dumps(message) + "\n").encode())

    return say


# -- the parent -------------------------------------------------------------------------------------
class Ledger:
    """What is to be done, what was done, and what came of it: shared by threads, and kept in a file."""

    def __init__(self, todo: Sequence[Part], file: Path, resume: bool):
        self.file = file
        self.done: dict[Part, int] = {}  # with how many samples there were
        saved = json.loads(file.read_text()) if resume and file.exists() else {"done": [], "rows": []}
        for *fields, count in saved["done"]:
            self.done[Part(*fields)] = count
        self._rows: dict[tuple[str, ...], Row] = {_key(row): row for row in saved["rows"]}
        self._asked = frozenset(todo)
        self._todo = deque(part for part in todo if part not in self.done)
        self._lock = threading.Lock()
        self._saved = time.monotonic()

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    @property
    def of(self) -> int:
        """How many parts are asked for."""
        return len(self._asked)

    @property
    def so_far(self) -> int:
        return len(self._asked & self.done.keys())

    def take(self) -> Part | None:
        """The next part; one is done at once if an earlier one of the job had the last of its samples."""
        with self._lock:
            while self._todo:
                part = self._todo.popleft()
                if not self._is_over(part):
                    return part
                self.done[part] = 0
            return None

    def _is_over(self, part: Part) -> bool:
        before = [p for p in self.done if p.job == part.job and p.end == part.begin]
        return any(self.done[p] < part.begin - p.begin for p in before)

    def finished(self, part: Part, count: int, rows: Sequence[Row]) -> None:
        with self._lock:
            self.done[part] = count
            self._rows |= {_key(row): row for row in rows}
            if time.monotonic() - self._saved > _EVERY:
                self._save()

    def save(self) -> None:
        with self._lock:
            self._save()

    def _save(self) -> None:
        self._saved = time.monotonic()
        done = [[*part, count] for part, count in self.done.items()]
        text = json.dumps({"summary": self.summary(), "done": done, "rows": self.rows})
        beside = self.file.with_suffix(".new")
        beside.write_text(text)
        beside.replace(self.file)

    def summary(self) -> dict[str, Any]:
        """For the benchmark's bars."""
        counts = dict.fromkeys(("right", "wrong", "crashed", "called", "eager", "known", "refused"), 0)
        for row in self.rows:
            called = row["status"] == "right" and row.get("treatment") == "called"
            counts["called" if called else row["status"]] += 1
        return {"counts": counts, "done": self.so_far, "of": self.of}


class Workers:
    """Threads that each look after one process."""

    def __init__(
        self, ledger: Ledger, command: Callable[[int], Sequence[str]], count: int, seconds: float,
        tell: Callable[[Part, list[Row]], None] = lambda part, rows: None, timeout: float = TIMEOUT,
    ):  # fmt: skip
        self.ledger, self.command, self.tell, self.timeout = ledger, command, tell, timeout
        self.count = count
        self.deadline = time.monotonic() + seconds
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def run(self) -> None:
        threads = [threading.Thread(target=self._look_after, args=(i,), daemon=True) for i in range(self.count)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive() and time.monotonic() < self.deadline:
                    thread.join(0.2)
        finally:
            self.deadline = 0.0
            for process in list(self.processes.values()):
                process.kill()  # what it is at is done again in the next run
            for thread in threads:
                thread.join(10.0)
            self.ledger.save()

    def _look_after(self, number: int) -> None:
        said: Iterator[dict[str, Any]] | None = None
        while time.monotonic() < self.deadline:
            part = self.ledger.take()
            if part is None:
                break
            said = self._through(number, part, said)
        if number in self.processes:
            self.processes[number].kill()
            self.processes[number].wait()

    def _through(self, number: int, part: Part, said: Iterator[dict[str, Any]] | None) -> Any:
        """All of a part, by as many processes as that takes; what the last of them will say."""
        rows: list[Row] = []
        after: str | None = None
        in_vain = 0  # processes that ended before their first case
        while time.monotonic() < self.deadline:
            if said is None:
                said = self._start(number)
            process, before = self.processes[number], len(rows)
            label: str | None = None
            try:
                assert process.stdin is not None
                process.stdin.write((json.dumps([*part, after]) + "\n").encode())
                process.stdin.flush()
            except BrokenPipeError:
                pass  # it has ended, which is seen below
            for message in said:
                if "case" in message:
                    label = message["case"]
                elif "row" in message:
                    rows.append(_row(part, label, message["row"]))
                    after, label = label, None
                elif "lost" in message:
                    rows.append(_row(part, label, _as_crash(message["lost"])))
                    after, label = label, None
                    break
                else:
                    self.ledger.finished(part, message["done"], rows)
                    self.tell(part, rows)
                    return said
            how, said = self._end(process), None
            if time.monotonic() >= self.deadline:
                return None
            if label is not None:
                rows.append(_row(part, label, {"status": "crashed", "message": f"the process {how}"}))
                after = label
            in_vain = 0 if len(rows) > before else in_vain + 1
            if in_vain == 2:
                rows.append(_row(part, "start", {"status": "crashed", "message": f"the process {how}"}))
                self.ledger.finished(part, 0, rows)
                self.tell(part, rows)
                return None
        return said

    def _start(self, number: int) -> Iterator[dict[str, Any]]:
        process = subprocess.Popen(
            self.command(number), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.processes[number] = process
        return messages(process, self.timeout, self.timeout * 1.5)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> str:
        """How it ended; one that hangs is ended."""
        hung = process.poll() is None
        process.kill()
        code = process.wait()
        if hung:
            return "hung, or its device no longer answered"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def _as_crash(row: Row) -> Row:
    """A case after which the device no longer answers: eager's own doing, if eager already refused it."""
    if row["status"] == "refused":
        return row
    return {**row, "status": "crashed", "message": f"the device no longer answers; {row['message']}"}


def _key(row: Row) -> tuple[str, ...]:
    return row["operator"], row["dtype"], row["sample"]


def _row(part: Part, label: str | None, found: Row) -> Row:
    short = {key: found[key] for key in _KEPT if found.get(key)}
    short["message"] = str(short.get("message", ""))[:_LONGEST]
    return {"operator": part.operator, "dtype": part.dtype, "sample": label, **short}


def command(device: str, twins: bool, count: int) -> Callable[[int], Sequence[str]]:
    """How worker number i is started: on a core of its own where there are enough."""
    cores = sorted(os.sched_getaffinity(0))

    def of(number: int) -> Sequence[str]:
        core = cores[number % len(cores)] if count > 1 else None
        how = json.dumps({"device": device, "twins": twins, "core": core})
        return [sys.executable, "-m", "tests.opinfo.sweep", "--parallel-worker", how]

    return of


__all__ = ["Job", "Ledger", "Part", "Workers", "answers", "command", "parts", "work"]
