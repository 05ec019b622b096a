"""CUDA graphs: work in, something that starts all of it at once out.

In: a function that starts work on the current stream. Out: a `Graph`, and what the function returned, whose memory is
the graph's. Work that draws random numbers is captured by torch, which has the generator take part in that; other work
without the generator (`bare_graph.py`), so that other threads draw as ever.

Memory that a graph needs comes from a pool. All graphs that are replayed on one stream share one: they run one after
the other there, so their temporaries may lie in the same memory. (What must outlive a replay is held by whoever asked
for the capture, so no other graph is given it.) A call on another stream has graphs of its own.

A capture that fails leaves the device, the allocator and the generator as they were.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from litz.compat import mend_after_capture
from litz.runtime.bare_graph import BareGraph
from litz.runtime.captures import Time

T = TypeVar("T")


class Uncapturable(Exception):
    """The work could not be captured: why. Nothing of it was done."""


class NotNow(Uncapturable):
    """Another thread is capturing."""


class Pool:
    """The memory of the graphs of one stream, as long as there are any. `lent`: addresses in it that calls may be given
    as arguments: they are fixed by being there."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.lent: set[int] = set()


class Graph:
    def __init__(self, graph: torch.cuda.CUDAGraph | BareGraph, pool: Pool):
        self._graph, self.pool = graph, pool

    def replay(self) -> None:
        """On the current stream."""
        self._graph.replay()


class Stopwatch:
    """From its making to `stop`; what it says is known some time later."""

    def __init__(self) -> None:
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._begun = time.perf_counter()
        self._start.record()

    def stop(self) -> None:
        self._end.record()
        self._host = time.perf_counter() - self._begun

    def read(self) -> Time | None:
        return Time(self._host, self._start.elapsed_time(self._end) / 1e3) if self._end.query() else None


_pools: weakref.WeakValueDictionary[tuple[int, int], Pool] = weakref.WeakValueDictionary()
# By device: on which captures are made. It is one, since a pool hands memory out again to the stream it was made for.
_streams: dict[int, torch.cuda.Stream] = {}
_capturing = threading.Lock()
_MOST_BROKEN = 4  # captures that did not end, after which a device has no more of them
_broken: dict[int, list[Any]] = {}  # by device; they are kept, since torch still refers to them


class Recorder:
    """Captures on one device, which is the current one whenever anything here is called."""

    stopwatch = Stopwatch

    def __init__(self, index: int):
        self._index = index

    @property
    def why_not(self) -> str | None:
        if torch.cuda.get_allocator_backend() != "native":
            return "captures share memory as torch's own allocator hands it out, and another one is in use"
        if len(_broken.get(self._index, ())) >= _MOST_BROKEN:
            return f"{_MOST_BROKEN} captures broke off on this device"
        return None

    @property
    def device_bytes(self) -> int:
        """Of memory that the device has."""
        return torch.cuda.get_device_properties(self._index).total_memory

    def give_back_spare_memory(self) -> None:
        """What torch keeps for later, and nobody uses now. It waits for the device."""
        torch.cuda.empty_cache()

    def stream(self) -> int:
        return torch._C._cuda_getCurrentRawStream(self._index)

    def is_capturing(self) -> bool:
        """Whether the caller himself is."""
        return torch.cuda.is_current_stream_capturing()

    def lent(self, stream: int) -> set[int] | None:
        pool = _pools.get((self._index, stream))
        return None if pool is None else pool.lent

    def record(self, stream: int, run: Callable[[], T], draws: bool) -> tuple[Graph, T]:
        """`run` starts work on the current stream, which is another one than the caller's then. `draws`: whether that
        takes from the default generator's random numbers."""
        if not _capturing.acquire(blocking=False):
            raise NotNow
        try:
            return self._record(stream, run, torch.cuda.CUDAGraph() if draws else BareGraph(self._index))
        finally:
            _capturing.release()

    def _record(self, stream: int, run: Callable[[], T], graph: torch.cuda.CUDAGraph | BareGraph) -> tuple[Graph, T]:
        pool = _pools.get((self._index, stream)) or Pool()
        mine = torch.cuda.current_stream()
        aside = _streams.get(self._index) or _streams.setdefault(self._index, torch.cuda.Stream())
        aside.wait_stream(mine)
        failure: Exception | None = None
        with torch.cuda.stream(aside), _without_collections():
            torch.cuda.current_blas_handle()  # a thread's first use of it could not be captured
            # Libraries keep memory to work in for each stream; that of a graph must come from its pool, and be
            # free afterwards.
            torch._C._cuda_clearCublasWorkspaces()
            try:
                graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
                try:
                    made = run()
                except Exception as error:
                    failure = error
                graph.capture_end()
            except Exception as error:
                self._mend(stream, graph, pool, failure or error)
            finally:
                torch._C._cuda_clearCublasWorkspaces()
        mine.wait_stream(aside)
        if failure is not None:
            graph.reset()
            _pools.pop((self._index, stream), None)
            raise Uncapturable(_told(failure))
        _pools[self._index, stream] = pool
        return Graph(graph, pool), made

    def _mend(self, stream: int, graph: torch.cuda.CUDAGraph | BareGraph, pool: Pool, error: Exception) -> None:
        _pools.pop((self._index, stream), None)  # the allocator may still think that it serves a capture with it
        if not isinstance(graph, BareGraph):
            _broken.setdefault(self._index, []).append((graph, pool))
            mend_after_capture(graph, self._index, pool.handle)
        raise Uncapturable(f"the capture broke off: {_told(error)}") from error


def _told(error: Exception) -> str:
    """Its first line: torch's have a page."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextmanager
def _without_collections() -> Iterator[None]:
    """What the garbage collector finds might ask the device for something that cannot be captured."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


__all__ = ["Graph", "NotNow", "Pool", "Recorder", "Stopwatch", "Uncapturable"]
