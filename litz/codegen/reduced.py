"""How the parts of a reduction become one, in NumPy: the meaning of what `llvm/reduction.py` and `llvm/gpu.py` emit.

In: what each thread found in each of its vectors, `(units, threads, copies, lanes)`. Out: what all of them found, one a
unit. Copies are combined in pairs, then the halves of a vector, then threads whose numbers differ in one bit: first
within a warp, then warp by warp. Each result is rounded to its type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from litz.codegen.plan_gpu import WARP
from litz.loop.interpret import as_type
from litz.loop.ir import COMBINE, POSITIONS
from litz.loop.scalar import SCALARS

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]
_Best = tuple[np.ndarray, np.ndarray]  # a value, and its position


def combined(kind: str, dtype: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of two zeros, `max` and `min` keep the first; the scalar operators take the second."""
    first, second = (b, a) if kind in ("max", "min") else (a, b)
    return as_type(SCALARS[COMBINE[kind]].reference(first, second), dtype)


def together(combine: Combine, value: np.ndarray, live: int | None) -> np.ndarray:
    """`live`: where only the first lanes of a vector count, how many; they are taken one by one."""
    copies = [value[:, :, copy] for copy in range(value.shape[2])]
    while len(copies) > 1:
        pairs = zip(copies[::2], copies[1::2], strict=False)
        copies = [*(combine(a, b) for a, b in pairs), *copies[len(copies) & ~1 :]]
    found = copies[0]
    if live is not None:
        lanes = [found[..., lane : lane + 1] for lane in range(live)]
        found = functools.reduce(combine, lanes)
    while found.shape[-1] > 1:
        half = found.shape[-1] // 2
        found = combine(found[..., :half], found[..., half:])
    for other in _exchanges(found.shape[1]):
        found = combine(found, found[:, other])
    return found[:, :1].reshape(-1, 1, 1, 1)


def best_place(kind: str, value: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Of `(units, threads, lanes)`, the position of the best."""
    best = value[..., 0], place[..., 0]
    for lane in range(1, value.shape[-1]):
        best = _better_of(kind, best, (value[..., lane], place[..., lane]))
    for other in _exchanges(value.shape[1]):
        best = _better_of(kind, best, (best[0][:, other], best[1][:, other]))
    return best[1][:, :1].reshape(-1, 1, 1, 1)


def meet(kind: str, dtype: str, one: _Best, other: _Best) -> _Best:
    """What two threads found, as one."""
    if kind in POSITIONS:
        return _better_of(kind, one, other)
    return combined(kind, dtype, one[0], other[0]), one[1]


def better_than(kind: str, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Whether `new`, which comes later, replaces `old`: strictly greater (or less), or the first NaN, or any."""
    better = new < old if kind == "argmin" else new > old
    if new.dtype.kind != "f":
        return better
    return better | (np.isnan(new) if kind == "argpool" else np.isnan(new) & ~np.isnan(old))


def _better_of(kind: str, one: _Best, other: _Best) -> _Best:
    """The one that a walk in order of positions would end with."""
    (best, place), (value, here) = one, other
    take = np.where(here > place, better_than(kind, value, best), ~better_than(kind, best, value))
    return np.where(take, value, best), np.where(take, here, place)


def _exchanges(threads: int) -> Iterator[np.ndarray]:
    """With which other each thread of a team shares what it found, in turn."""
    bits = [1 << bit for bit in reversed(range(threads.bit_length() - 1))]
    for bit in sorted(bits, key=lambda bit: bit >= WARP):
        yield np.arange(threads) ^ bit


__all__ = ["best_place", "better_than", "combined", "meet", "together"]
