"""How eager's kernels for GPUs draw random numbers, thread by thread, written down once more and in another way.

In: seed and offset of a generator, and the form of a kernel. Out: the numbers of 32 bits that each element gets. What
Litz generates is held to this where there is no GPU; where there is one, to eager itself (`tests/gpu`).
"""

from __future__ import annotations

import struct

_M = (0xD2511F53, 0xCD9E8D57)
_W = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    c, k = list(counter), list(key)
    for _ in range(10):
        one, two = _M[0] * c[0], _M[1] * c[2]
        c = [(two >> 32) ^ c[1] ^ k[0], two & 0xFFFFFFFF, (one >> 32) ^ c[3] ^ k[1], one & 0xFFFFFFFF]
        k = [(k[0] + _W[0]) & 0xFFFFFFFF, (k[1] + _W[1]) & 0xFFFFFFFF]
    return tuple(c)


class _Thread:
    """The state of one thread's generator: what `curand_init` makes, and each call of four numbers changes."""

    def __init__(self, seed: int, thread: int, offset: int):
        assert offset % 4 == 0
        self.key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
        self.thread, self.at = thread, offset // 4

    def four(self) -> tuple[int, ...]:
        at = self.at % (1 << 64)
        words = (at & 0xFFFFFFFF, at >> 32, self.thread & 0xFFFFFFFF, self.thread >> 32)
        self.at += 1
        return philox4x32(words, self.key)


def drawn(elements: int, width: int, seed: int, offset: int, most_threads: int) -> list[int]:
    """The numbers of a kernel in which a thread takes `width` elements at a time; of width 1, four that lie apart."""
    found = [-1] * elements
    threads = min(most_threads, 256 * -(-elements // 256))
    for idx in range(threads):
        state = _Thread(seed, idx, offset)
        if width == 1:
            rounded = ((elements - 1) // (threads * 4) + 1) * threads * 4
            for first in range(idx, rounded, threads * 4):
                words = state.four()
                for i in range(4):
                    if first + threads * i < elements:
                        found[first + threads * i] = words[i]
            continue
        for first in range(idx * width, elements, threads * width):
            words = tuple(word for _ in range((width + 3) // 4) for word in state.four())
            found[first : first + width] = words[:width]
    assert -1 not in found
    return found


def increment(elements: int, most_threads: int) -> int:
    """By how much the generator's offset grows."""
    threads = min(most_threads, 256 * -(-elements // 256))
    return ((elements - 1) // (threads * 4) + 1) * 4


def uniform(word: int) -> float:
    """The float32 that a number of 32 bits becomes: above 0, up to 1."""
    return _f32(_f32(word) * 2.0**-32 + 2.0**-33)


def _f32(x: float) -> float:
    return struct.unpack("<f", struct.pack("<f", x))[0]


def is_kept(word: int, probability: float, double: bool = False) -> bool:
    return uniform(word) < (probability if double else _f32(probability))


__all__ = ["drawn", "increment", "is_kept", "philox4x32", "uniform"]
