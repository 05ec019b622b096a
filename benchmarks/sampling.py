"""Where seconds go, by looking at a thread's stack now and then: next to no overhead, and calls of C count as they are.

In: a block that this thread runs. Out: for each function the seconds in which it was on the stack, and of the innermost
lines the seconds in which they ran. A sample counts for the time since the one before: a call that keeps Python's lock
is seen once, right after it, for as long as it took.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FrameType, TracebackType
from typing import Any

_EVERY = 0.002  # seconds


class Sampler:
    def __init__(self) -> None:
        self.inclusive: Counter[str] = Counter()
        self.innermost: Counter[str] = Counter()
        self._thread, self._done = threading.get_ident(), threading.Event()
        self._sampling = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Sampler:
        self._sampling.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._sampling.join()

    def _sample(self) -> None:
        before = time.perf_counter()
        while not self._done.wait(_EVERY):
            frame: FrameType | None = sys._current_frames().get(self._thread)
            now = time.perf_counter()
            took, before = now - before, now
            if frame is not None:
                self.innermost[f"{_short(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"] += took
            seen: set[Any] = set()
            while frame is not None:
                if frame.f_code not in seen:
                    seen.add(frame.f_code)
                    code = frame.f_code
                    self.inclusive[f"{_short(code.co_filename)}:{code.co_firstlineno} {code.co_name}"] += took
                frame = frame.f_back

    def found(self, most: int = 60) -> dict[str, list[tuple[str, float]]]:
        """The dearest of both, Litz's own functions apart: Dynamo's are many."""
        own = Counter({name: s for name, s in self.inclusive.items() if name.startswith("litz/")})
        tables = {"on the stack": self.inclusive, "Litz's on the stack": own, "innermost lines": self.innermost}
        return {what: [(n, round(s, 4)) for n, s in table.most_common(most)] for what, table in tables.items()}


def _short(path: str) -> str:
    for package in ("litz", "torch", "transformers", "benchmarks"):
        _, found, rest = path.rpartition(f"/{package}/")
        if found:
            return f"{package}/{rest}"
    return path.rpartition("/")[2]


__all__ = ["Sampler"]
