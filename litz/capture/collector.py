"""Python's collector of cycles, and a rest from it.

Where Dynamo is loaded there are half a million objects to look through, which takes a quarter of a second, in the midst
of a stage that takes less. What stages make is in use while they run.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Collector:
    def __init__(self) -> None:
        self._resting, self._was_on, self._lock = 0, False, threading.Lock()

    @contextmanager
    def rests(self) -> Iterator[None]:
        """Until all that have asked for it are done, in whatever thread."""
        with self._lock:
            if not self._resting:
                self._was_on = gc.isenabled()
                gc.disable()
            self._resting += 1
        try:
            yield
        finally:
            with self._lock:
                self._resting -= 1
                if not self._resting and self._was_on:
                    gc.enable()


COLLECTOR = _Collector()


__all__ = ["COLLECTOR"]
