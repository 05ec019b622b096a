"""Philox4x32-10, the generator of random numbers that eager's kernels for GPUs draw from.

In: a key, and a counter of 128 bits. Out: a block of four words of 32 bits each. There is no state: whoever knows key
and counter can draw the same block again, in any order, which is what lets a backward draw what its forward drew.

J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import numpy as np

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # of the words 0 and 2 of the counter
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # what is added to the two words of the key from round to round
WORDS = 4  # of a block

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(seed: np.ndarray, counter: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Word `place % 4` of the block whose key is `seed` and whose counter is `counter`, with `place // 4` above it: all
    of 64 bits, and the word a number from 0 to 2^32 - 1."""
    key = list(_halves(seed))
    block = [*_halves(counter), *_halves(np.asarray(place) // WORDS)]
    for _ in range(ROUNDS):
        first, second = (np.uint64(m) * word for m, word in zip(MULTIPLIERS, (block[0], block[2]), strict=True))
        block = [(second >> _HALF) ^ block[1] ^ key[0], second & _LOW, (first >> _HALF) ^ block[3] ^ key[1], first & _LOW]
        key = [(k + np.uint64(step)) & _LOW for k, step in zip(key, KEY_STEPS, strict=True)]
    word = np.asarray(place) % WORDS
    return np.select([word == i for i in range(WORDS)], block).astype(np.int64)


def _halves(number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bits = np.asarray(number, np.int64).astype(np.uint64)
    return bits & _LOW, bits >> _HALF


__all__ = ["KEY_STEPS", "MULTIPLIERS", "ROUNDS", "WORDS", "philox"]
