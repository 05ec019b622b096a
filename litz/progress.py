"""Progress: a line on the terminal, while a compile takes longer than two seconds.

In: the stages of a compile, as each begins. Out: on standard error, if that is a terminal, one line with the stage and
the share that is done, written over and over and taken away at the end. A log never has it. How much of a compile a
stage is, is as of typical ones (`_WEIGHTS`).
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

AFTER_SECONDS, EVERY_SECONDS = 2.0, 0.2
# Hundredths of a training step's forward, from the trace to the code; stages that are not here are done at once.
_WEIGHTS = {
    "trace": 38, "rewrite_joint": 12, "split": 6, "lower": 8, "fuse": 8, "accumulate": 4, "plan_memory": 2,
    "render": 8, "build": 14,
}  # fmt: skip
_FRONT = ("rewrite_pre_grad", "trace", "freeze", "carry_numbers", "rewrite_joint", "fold_frozen", "split")
_SHOWING = threading.Lock()  # one line: of compiles at the same time, the first to take long


class Progress:
    """Of one compile. The line is written by a thread of its own, since one stage may be all that takes long."""

    def __init__(self, title: str, stream: TextIO, after: float = AFTER_SECONDS, every: float = EVERY_SECONDS):
        self.title, self.stage, self.share = title, "", 0.0
        self._stream, self._after, self._every = stream, after, every
        self._done: dict[str, None] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="litz-progress", daemon=True)

    def at(self, stage: str) -> None:
        """This stage begins, and those before it are over."""
        if self.stage:
            self._done[self.stage] = None
        left_out = () if not self._done or _FRONT[1] in (stage, *self._done) else _FRONT  # a backward has no trace
        whole = sum(weight for name, weight in _WEIGHTS.items() if name not in left_out)
        self.stage = stage
        self.share = max(self.share, sum(_WEIGHTS.get(name, 0) for name in self._done) / whole)

    def line(self, columns: int) -> str:
        """As much as fits: the title is what may be cut."""
        rest = f": {self.stage}, {self.share:.0%}" if self.stage else ""
        return f"litz: compiling {self.title}"[: max(columns - 1 - len(rest), 0)] + rest

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()

    def _show(self) -> None:
        if self._ended.wait(self._after) or not _SHOWING.acquire(blocking=False):
            return
        try:
            while True:
                self._write(self.line(shutil.get_terminal_size().columns))
                if self._ended.wait(self._every):
                    return
        finally:
            self._write("")
            _SHOWING.release()

    def _write(self, text: str) -> None:
        try:
            self._stream.write(f"\r\x1b[2K{text}")
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone
            self._ended.set()


def terminal(wanted: bool, environ: Mapping[str, str]) -> TextIO | None:
    """Where the line goes, if anywhere."""
    if not wanted or environ.get("TERM") == "dumb":
        return None
    stream = sys.stderr
    try:
        return stream if stream is not None and stream.isatty() else None
    except ValueError:  # closed
        return None


@contextmanager
def progress_of(title: str, wanted: bool) -> Iterator[Progress | None]:
    """What is told of the stages; None where nobody would see it."""
    stream = terminal(wanted, os.environ)
    if stream is None:
        yield None
        return
    with Progress(title, stream, AFTER_SECONDS) as progress:
        yield progress


__all__ = ["Progress", "progress_of", "terminal"]
