"""A process that runs one file after the other, each in a child of its own, and says what became of it.

In: a file that defines a reproduction. Out: its `Symptom`, whatever it does: raise, end by a signal, never end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from litz.debug.reproduce import CALL, EAGER, Symptom, slow_for_certain
from litz.errors import LitzError

_ASLEEP = 4  # times the limit: so long a process may take that does not work
_TICKS = os.sysconf("SC_CLK_TCK")


class Runner:
    def __init__(self) -> None:
        self._zygote: subprocess.Popen[bytes] | None = None
        self._lines, self._ready = b"", False

    def end(self) -> None:
        if self._zygote is not None:
            self._end_zygote()

    def kill(self) -> None:
        """Its child ends with it."""
        if self._zygote is not None:
            self._zygote.kill()

    def run(self, file: Path, known: Path | None, limit: float) -> Symptom:
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

    def begin(self) -> subprocess.Popen[bytes]:
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
        zygote = self._zygote or self.begin()
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


__all__ = ["Runner"]
