"""Measurements in fresh processes.

In: a benchmark module and its arguments. Out: the JSON object it printed on its last line, or
`{"failed": why}` when it failed, so that one contender's failure costs its own row only.
"""

from __future__ import annotations

import compileall
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

# What is measured is this code's, unless a benchmark is about what an earlier process has left.
os.environ.setdefault("LITZ_CACHE", "0")

ROOT = Path(__file__).resolve().parent.parent
THREADS = 2
TIMEOUT_SECONDS = 900


def litz_backend() -> str:
    """The backend measured in Litz's place: Litz, unless `LITZ_BENCH_BACKEND` names another."""
    return os.environ.get("LITZ_BENCH_BACKEND", "litz")


def stand_in_warning() -> str:
    """Says so when the figures under the name of Litz are not Litz's; empty otherwise."""
    if litz_backend() == "litz":
        return ""
    return f"NOTE: LITZ_BENCH_BACKEND is set: every figure called litz below is of the backend {litz_backend()!r}.\n\n"


@lru_cache(maxsize=1)
def as_installed() -> None:
    """Litz's bytecode, which an installation writes as it did torch's, also where Python is told to write none."""
    compileall.compile_dir(str(ROOT / "litz"), quiet=2)


def in_fresh_process(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None, limit: float = TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Runs `python -m module arguments…` and returns what it reports within `limit` seconds."""
    as_installed()
    merged = {**os.environ, "OMP_NUM_THREADS": str(THREADS), **(environment or {})}
    try:
        done = run_with_all([sys.executable, "-m", module, *arguments], ROOT, merged, limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result within {limit:.0f} seconds"}
    if done.returncode < 0:
        return {"failed": f"process ended by {signal.Signals(-done.returncode).name}"}
    if done.returncode != 0:
        return {"failed": last_line(done.stderr) or f"exit status {done.returncode}"}
    try:
        return json.loads(last_line(done.stdout))
    except ValueError:
        return {"failed": f"no result in {last_line(done.stdout)!r}"}


def run_with_all(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], limit: float
) -> subprocess.CompletedProcess[str]:
    """Runs it, and leaves none of its processes behind: not after the limit, nor where this one is interrupted."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        said = process.communicate(timeout=limit)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return subprocess.CompletedProcess(command, process.returncode, *said)


def ends_well() -> None:
    """Has a request to end come as an exception, so that what was begun is ended too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def without_caches() -> dict[str, str]:
    """Environment in which no backend finds anything of an earlier process."""
    return {
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(prefix="litz-bench-"),
        "LITZ_CACHE": "0",
    }


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def describe(error: BaseException) -> str:
    """An exception on one line."""
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
