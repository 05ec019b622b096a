"""Memory for temporaries, shared by all programs of the process: one runs, then another takes its place.

In: a number of bytes. Out: a block of at least that many, to be given back. A forward and its backward, or two
models called in turn, so need the larger of their arenas and not the sum; calls at the same time, in other
threads, get blocks of their own.
"""

from __future__ import annotations

import threading
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
        self._lock = threading.Lock()

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
        memory = torch.empty(size + _ALIGNMENT, dtype=torch.uint8)
        address = -(-memory.data_ptr() // _ALIGNMENT) * _ALIGNMENT
        return Block(address, size, memory)

    def give(self, block: Block) -> None:
        if block.memory is not None:
            with self._lock:
                self._free.append(block)

    def clear(self) -> None:
        """Return what is not in use to the system."""
        with self._lock:
            self._free.clear()

    @property
    def held(self) -> int:
        """Bytes kept for later calls."""
        return sum(b.size for b in self._free)


ARENA = Arena()
