"""Philox4x32-10, the generator of random numbers that eager's kernels for GPUs draw from.

In: a key, and a counter of 128 bits. Out: a block of four words of 32 bits each. There is no state: whoever knows key
and counter can draw the same block again, in any order, which is what lets a backward draw what its forward drew.

J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # of the words 0 and 2 of the counter
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # what is added to the two words of the key from round to round
WORDS = 4  # of a block
_LOW = 0xFFFFFFFF


def words(seed: Any, counter: Any, place: Any) -> Any:
    """Word `place % 4` of the block whose key is `seed` and whose counter is `counter`, with `place // 4` above it.

    All are arrays of 64-bit integers, NumPy's or torch's; products wrap around. The word is from 0 to 2^32 - 1.
    """
    key, block = _halves(seed), (*_halves(counter), *_halves(place // WORDS))
    for _ in range(ROUNDS):
        (low0, high0), (low2, high2) = _halves(block[0] * MULTIPLIERS[0]), _halves(block[2] * MULTIPLIERS[1])
        block = (high2 ^ block[1] ^ key[0], low2, high0 ^ block[3] ^ key[1], low0)
        key = ((key[0] + KEY_STEPS[0]) & _LOW, (key[1] + KEY_STEPS[1]) & _LOW)
    return sum(block[word] * (place % WORDS == word) for word in range(WORDS))


def _halves(number: Any) -> tuple[Any, Any]:
    return number & _LOW, (number >> 32) & _LOW


def philox(seed: np.ndarray, counter: np.ndarray, place: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return words(*(np.asarray(number).astype(np.int64) for number in (seed, counter, place)))


__all__ = ["KEY_STEPS", "MULTIPLIERS", "ROUNDS", "WORDS", "philox", "words"]
