"""A CUDA graph made by the driver alone, for work that draws no random numbers.

In: work on the current stream, between `capture_begin` and `capture_end`. Out: something to `replay`. It stands in the
place of torch's `CUDAGraph`, which has the default generator of the device be part of every capture: whoever draws in
another thread meanwhile gets an error. Here only the stream and the memory that this thread allocates are captured; an
operator that draws all the same is refused by torch. It is over once `capture_end` was called, however that ends.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch

from litz.runtime.driver import cuda, make_current

_THREAD_LOCAL = 1  # what other threads ask of the device is no concern of the capture's


class BareGraph:
    def __init__(self, index: int, driver: Any = None):
        self._index, self._driver = index, driver
        self._stream, self._run = ctypes.c_void_p(), ctypes.c_void_p()
        self._pool: Any = None

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        if self._driver is None:
            make_current()
            self._driver = cuda()
        self._stream.value = torch.cuda.current_stream().cuda_stream
        torch._C._cuda_beginAllocateCurrentThreadToPool(self._index, pool)
        self._pool = pool
        status = self._driver.cuStreamBeginCapture_v2(self._stream, _THREAD_LOCAL)
        if status:
            self._memory_is_given_as_before()
        self._check(status, "the capture did not begin")

    def capture_end(self) -> None:
        graph = ctypes.c_void_p()
        status = self._driver.cuStreamEndCapture(self._stream, ctypes.byref(graph))
        if not status:
            status = self._driver.cuGraphInstantiateWithFlags(ctypes.byref(self._run), graph, ctypes.c_ulonglong(0))
            self._driver.cuGraphDestroy(graph)
        if status:
            self._memory_is_given_as_before()
        self._check(status, "the capture did not end")
        torch._C._cuda_endAllocateToPool(self._index, self._pool)
        self._close = weakref.finalize(self, _close, self._driver, self._run, self._index, self._pool)
        self._close.atexit = False

    def replay(self) -> None:
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(self._index))
        self._check(self._driver.cuGraphLaunch(self._run, stream), "a captured call did not start")

    def reset(self) -> None:
        """Its share of the pool's memory is given back."""
        self._close()

    def _memory_is_given_as_before(self) -> None:
        torch._C._cuda_endAllocateToPool(self._index, self._pool)
        torch._C._cuda_releasePool(self._index, self._pool)

    def _check(self, status: int, what: str) -> None:
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"{what}: {(text.value or b'').decode()} ({status})")


def _close(driver: Any, run: ctypes.c_void_p, index: int, pool: Any) -> None:
    torch._C._cuda_releasePool(index, pool)
    driver.cuGraphExecDestroy(run)


__all__ = ["BareGraph"]
