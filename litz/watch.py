"""Who looks on while programs are compiled, such as `litz.explain`.

In: a `Watch`, for as long as a block lasts. Out: a `Watcher` for each compile begun meanwhile, which the `Context` of
that compile carries; it is shown what each stage makes. No stage reads anything here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from litz.context import Context


class Watcher(Protocol):
    """Looks on at one compile."""

    def ran(self, stage: str, result: Any, seconds: float) -> Any:
        """Told of each stage that has run; what it returns goes on in the result's place."""

    def begins_again(self) -> None:
        """The stages start anew: what they have made so far is of no use."""


class Watch(Protocol):
    def begins(self, ctx: Context) -> Watcher: ...


_LOCK = threading.Lock()
_WATCHES: list[Watch] = []  # the latest last


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Has every compile that begins in the block, in whichever thread, be watched."""
    with _LOCK:
        _WATCHES.append(watch)
    try:
        yield
    finally:
        with _LOCK:
            _WATCHES.remove(watch)


def watch_now() -> Watch | None:
    return _WATCHES[-1] if _WATCHES else None


__all__ = ["Watch", "Watcher", "watch_now", "watching"]
