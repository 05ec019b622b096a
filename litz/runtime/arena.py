"""Memory for temporaries, shared by all programs of the process: one runs, then another takes its place.

In: a number of bytes. Out: a block of at least that many, to be given back. A forward and its backward, or two
models called in turn, so need the larger of their arenas and not the sum; calls at the same time, in other
threads, get blocks of their own.

What is kept for later calls is bounded by what there is to call: whoever will ask for a block says so beforehand
(`expect`), and when it is gone, blocks that nobody left could fill are returned to the system.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from typing import NamedTuple

import torch

_ALIGNMENT = 64


class Block(NamedTuple):
    address: int  # aligned
    size: int  # usable bytes from there
    memory: torch.Tensor | None


EMPTY = Block(0, 0, None)


class Arena:
    """The free blocks. A request takes the smallest that is large enough; a larger one than any takes the place
    of the largest, so that no block is kept that a grown one makes useless."""

    def __init__(self) -> None:
        self._free: list[Block] = []
        self._expected: Counter[int] = Counter()  # bytes that callers need -> how many of them there are
        self._largest = 0  # of those
        self._gone: deque[int] = deque()  # callers that no longer exist, not yet taken off
        self._lock = threading.Lock()

    def expect(self, caller: object, size: int) -> None:
        """`caller` will ask for `size` bytes from time to time, for as long as it exists."""
        if size == 0:
            return
        with self._lock:
            self._expected[size] += 1
            self._largest = max(self._largest, size)
        weakref.finalize(caller, self._forget, size).atexit = False
        self._settle()

    def take(self, size: int) -> Block:
        if size == 0:
            return EMPTY
        with self._lock:
            fitting = [b for b in self._free if b.size >= size]
            if fitting:
                found = min(fitting, key=lambda b: b.size)
                self._free.remove(found)
                return found
            if self._free:
                self._free.remove(max(self._free, key=lambda b: b.size))
        memory = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device="cpu")
        address = -(-memory.data_ptr() // _ALIGNMENT) * _ALIGNMENT
        return Block(address, size, memory)

    def give(self, block: Block) -> None:
        if block.memory is None:
            return
        with self._lock:
            if block.size <= self._largest:
                self._free.append(block)
        if self._gone:
            self._settle()

    def _forget(self, size: int) -> None:
        # The garbage collector may call this anywhere, also where this thread holds the lock: never wait for it.
        self._gone.append(size)
        self._settle()

    def _settle(self) -> None:
        """Take off the callers that are gone, and let go of blocks too large or too many for those that are left.
        Who holds the lock meanwhile does it afterwards."""
        while self._gone and self._lock.acquire(blocking=False):
            try:
                while self._gone:
                    self._expected[self._gone.popleft()] -= 1
                self._expected = +self._expected  # without those that count nothing
                needs = sorted(self._expected.elements(), reverse=True)
                self._largest = needs[0] if needs else 0
                useful = sorted((b for b in self._free if b.size <= self._largest), key=lambda b: b.size, reverse=True)
                self._free = [block for block, need in zip(useful, needs, strict=False) if block.size <= need]
            finally:
                self._lock.release()

    def clear(self) -> None:
        """Return what is not in use to the system."""
        with self._lock:
            self._free.clear()

    @property
    def held(self) -> int:
        """Bytes kept for later calls."""
        return sum(b.size for b in self._free)


ARENA = Arena()
