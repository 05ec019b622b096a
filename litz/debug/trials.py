"""Trials: a reproduction is run in a process of its own, with a limit on its time, and its symptom comes back.

In: a `Reproduction`. Out: its `Symptom`, whatever it does: raise, end by a signal, never end. What was tried is written
down in the folder, so that a search which was stopped, and begins again, goes on where it was.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from litz.debug.reproduce import CALL, EAGER, Symptom, slow_for_certain
from litz.debug.reproduction import Reproduction
from litz.errors import LitzError
from litz.source import source_digest

_ASLEEP = 4  # times the limit: so long a process may take that does not work
_TICKS = os.sysconf("SC_CLK_TCK")


class Trials:
    def __init__(self, folder: Path, limit: float):
        """`limit`: seconds of work after which a trial has no end."""
        self.folder, self.limit = folder, limit
        self.run = 0  # not counting what was known
        folder.mkdir(parents=True, exist_ok=True)
        self._ledger = folder / "tried.jsonl"
        self._known = dict(self._read())
        self._zygote: subprocess.Popen[bytes] | None = None
        self._lines, self._ready = b"", False

    def __enter__(self) -> Trials:
        self._begin()  # it has much to load, which takes as long as to read what is to be tried
        return self

    def __exit__(self, *_: Any) -> None:
        if self._zygote is not None:
            self._end_zygote()

    def __call__(self, reproduction: Reproduction, limit: float | None = None, again: bool = False) -> Symptom:
        """`limit`: less than the usual one, where that is known to be enough. `again`: with other options it will be
        tried again, for which its results in eager are kept."""
        text, limit = reproduction.text(), min(limit or self.limit, self.limit)
        key = blake2b(f"{source_digest()} {text}".encode(), digest_size=12).hexdigest()
        found, given = self._known.get(key, (None, 0.0))
        if found is None or (found.kind == "hang" and given < limit / 2):  # then it has not had its time
            file = self.folder / "trial.py"
            file.write_text(text)
            known = self._results_of(reproduction) if again else None
            found = self._run(file, known, limit)
            self._known[key] = found, limit
            self.run += 1
            with open(self._ledger, "a") as ledger:
                ledger.write(json.dumps([key, limit, asdict(found)]) + "\n")
        return found

    def _read(self) -> Iterator[tuple[str, tuple[Symptom, float]]]:
        if not self._ledger.exists():
            return
        text = self._ledger.read_text()
        if text and not text.endswith("\n"):  # a search that was killed while it wrote
            text = text[: text.rfind("\n") + 1]
            self._ledger.write_text(text)
        for line in text.splitlines():
            row = json.loads(line)
            if len(row) != 3:
                continue  # by another version
            key, limit, found = row
            yield key, (Symptom(**{**found, "spent": tuple(found["spent"])}), limit)

    def _results_of(self, reproduction: Reproduction) -> Path:
        text = replace(reproduction, options={}).text()
        return self.folder / f"results_{blake2b(text.encode(), digest_size=6).hexdigest()}.pt"

    def _run(self, file: Path, known: Path | None, limit: float) -> Symptom:
        zygote = self._started()
        assert zygote.stdin is not None
        zygote.stdin.write(json.dumps([str(file), known and str(known)]).encode() + b"\n")
        zygote.stdin.flush()
        stage, found, failed, pid, killed, worked = EAGER, None, None, None, False, 0.0
        in_call = float("inf")  # how much work is allowed there
        applied: list[str] = []
        begun = time.monotonic()
        while True:
            for message in self._heard(zygote):
                pid = message.get("pid", pid)
                if "stage" in message and pid is not None:
                    stage, worked = message["stage"], _worked(pid)
                failed, in_call = message.get("failed", failed), message.get("allowed", in_call)
                if "applied" in message:
                    _note(applied, message["applied"])
                if "symptom" in message:
                    found = Symptom(**{**message["symptom"], "spent": tuple(message["symptom"]["spent"])})
                if "ended" in message:
                    if found is None and killed:
                        found = Symptom("hang", "no end", stage, f"it worked for {limit:.0f} seconds", seconds=worked)
                    found = found or self._without_word(message["ended"], stage, failed)
                    if stage == EAGER and found.kind in ("hang", "signal"):
                        return Symptom("invalid", found.what, told=str(found))
                    return found if found.spent else replace(found, spent=tuple(applied))
            if zygote.poll() is not None:
                self._end_zygote()
                return Symptom("signal", "the end of all trials", stage)
            passed, is_slow = time.monotonic() - begun, False
            if pid is not None and found is None and stage == CALL:
                is_slow = _worked(pid) - worked > in_call
            if pid is not None and not killed and (is_slow or _worked(pid) > limit or passed > _ASLEEP * limit):
                killed = True
                found = slow_for_certain(in_call) if is_slow else None
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def _without_word(self, status: int, stage: str, failed: str | None) -> Symptom:
        if failed is not None:
            return Symptom("invalid", "the file", told=failed)
        code = os.waitstatus_to_exitcode(status)
        return Symptom("signal", signal.Signals(-code).name if code < 0 else f"exit status {code}", stage)

    def _heard(self, zygote: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
        assert zygote.stdout is not None
        if not select.select([zygote.stdout], [], [], 0.2)[0]:
            return []
        self._lines += os.read(zygote.stdout.fileno(), 1 << 16)
        *whole, self._lines = self._lines.split(b"\n")
        return [json.loads(line) for line in whole]

    def _begin(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "LITZ_CACHE": "0"}  # what is kept must not answer for what is tried
        folder = str(Path(__file__).parent.parent.parent)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "litz.debug.zygote"], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._lines, self._ready = b"", False
        return self._zygote

    def _started(self) -> subprocess.Popen[bytes]:
        zygote = self._zygote or self._begin()
        while not self._ready:
            self._ready = any("ready" in message for message in self._heard(zygote))
            if zygote.poll() is not None:
                assert zygote.stderr is not None
                told = zygote.stderr.read().decode(errors="replace")
                raise LitzError(f"the process for trials does not start: {told[-2000:]}")
        return zygote

    def _end_zygote(self) -> None:
        zygote, self._zygote = self._zygote, None
        assert zygote is not None and zygote.stdin is not None
        with suppress(BrokenPipeError):
            zygote.stdin.close()
        try:
            zygote.wait(timeout=5)
        except subprocess.TimeoutExpired:
            zygote.kill()
            zygote.wait()


def _note(applied: list[str], what: str) -> None:
    """One that is a rule is told of twice, the second time with where it is written."""
    if applied and what.startswith(f"{applied[-1]} ("):
        applied[-1] = what
    else:
        applied.append(what)


def _worked(pid: int) -> float:
    """Seconds of the processor that it has had, where that is known: on a busy machine a trial is only slow."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


__all__ = ["Trials"]
