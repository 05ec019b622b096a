"""How the threads of a team scan a row, in NumPy: the meaning of what `llvm/gpu_scan.py` emits.

In: the steps that each thread has, `(units, threads, copies, lanes)`, and what those before all of them made. Out: what
all steps up to each make, and what all make. A thread goes through the lanes of each of its vectors; threads are then
joined in pairs, pairs of pairs and so on; and vectors, which all threads have side by side, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from litz.codegen.lanes import WARP
from litz.loop.interpret import ACCUMULATE, as_type
from litz.loop.ir import identity


def scanned(kind: str, dtype: str, value: np.ndarray, carry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    def join(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return as_type(ACCUMULATE[kind](first, second), dtype)

    found = np.empty_like(value)
    units, threads, copies, lanes = value.shape
    last = carry.reshape(units, 1)
    if threads == 1:
        for copy in range(copies):
            for lane in range(lanes):
                last = join(last, value[:, :, copy, lane])
                found[:, :, copy, lane] = last
        return found, last.reshape(carry.shape)
    for copy in range(copies):
        own = value[:, :, copy].copy()
        for lane in range(1, lanes):
            own[..., lane] = join(own[..., lane - 1], own[..., lane])
        nothing = np.full((units, threads), identity(kind, dtype), value.dtype)
        before, whole = _before_each(join, own[..., -1], nothing, 1, min(threads, WARP))
        if threads > WARP:
            earlier, whole = _before_each(join, whole, nothing, WARP, threads)
            before = join(earlier, before)
        found[:, :, copy] = join(join(last, before)[..., None], own)
        last = join(last, whole[:, :1])
    return found, last.reshape(carry.shape)


def _before_each(
    join: Callable[[np.ndarray, np.ndarray], np.ndarray], whole: np.ndarray, nothing: np.ndarray, first: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """What the totals before each thread's make, and what all make, of threads whose numbers differ in bits from
    `first` to below `end`."""
    before, threads = nothing, np.arange(whole.shape[1])
    while first < end:
        other, second = whole[:, threads ^ first], (threads & first) != 0
        before = np.where(second, join(other, before), before)
        whole = join(np.where(second, other, whole), np.where(second, whole, other))
        first *= 2
    return before, whole


__all__ = ["scanned"]
