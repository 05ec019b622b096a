"""What a worker process says, line by line: a JSON object each."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")


def messages(worker: subprocess.Popen[bytes], limit: float, asleep: float | None = None) -> Iterator[dict[str, Any]]:
    """Until it ends, or hangs: says nothing for `limit` seconds of work, or sleeps ten times (or `asleep`) as long.
    The time it works is what counts, not the time that passes: on a busy machine it is only slow."""
    assert worker.stdout is not None
    buffer = b""
    while _speaks(worker, limit, 10 * limit if asleep is None else asleep):
        chunk = os.read(worker.stdout.fileno(), 1 << 16)
        if not chunk:
            worker.wait()
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        yield from map(json.loads, lines)


def _speaks(worker: subprocess.Popen[bytes], limit: float, asleep: float) -> bool:
    worked, began = _worked(worker), time.monotonic()
    while not select.select([worker.stdout], [], [], 1.0)[0]:
        if _worked(worker) - worked > limit or time.monotonic() - began > asleep:
            return False
    return True


def _worked(worker: subprocess.Popen[bytes]) -> float:
    """Seconds of the processor that it has had."""
    try:
        with open(f"/proc/{worker.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except FileNotFoundError:  # ended, or no such files here: the clock has to do
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
