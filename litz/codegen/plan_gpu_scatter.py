"""Plan updates for a GPU: every step of the loops is some thread's, at once with all others.

In: a kernel that updates memory at places taken from data, step by step. Out: the same steps, none of which waits for
another. What is combined is combined by indivisible instructions, in any order; of what is put in one place, anything
stays, as in eager.

Such an instruction takes a thread one word. Threads side by side that have words side by side are served together; if
each had several, a warp would be served in as many parts. So vectors are as short as a word, and a thread has several.
"""

from __future__ import annotations

from dataclasses import replace

from litz.loop.dtype import DTYPES, is_float
from litz.loop.expr import ONE, Axis
from litz.loop.ir import Kernel, Reduce, Scan, Store

_WORD = 4  # bytes
_AT_A_TIME = 8


def at_once(kernel: Kernel) -> Kernel:
    """Its steps as parallel ones, outermost: what was parallel lies side by side in memory."""
    if not kernel.ordered or any(isinstance(op, (Scan, Reduce)) for op in kernel.body):
        return kernel
    return replace(kernel, axes=(*kernel.reduced, *kernel.axes), reduced=())


def widest_update(kernel: Kernel, vector: Axis) -> int | None:
    """Lanes that the narrowest of a kernel's updates can have; None: any number, since what is put is stored."""
    types = {op.name: op.dtype for op in kernel.body if not isinstance(op, Store)}
    widths = [_width(op, types[op.value], vector) for op in kernel.stores if _combines(op)]
    return min(widths, default=None)


def most_updates(kernel: Kernel) -> int | None:
    """Vectors that a thread has at a time: what is updated need not be waited for. None: any number."""
    return _AT_A_TIME if any(_combines(op) for op in kernel.stores) else None


def _combines(op: Store) -> bool:
    return op.updates and op.update != "put"


def _width(op: Store, dtype: str, vector: Axis) -> int:
    """Two halves of a word, where both are always there."""
    halves = op.update == "sum" and is_float(dtype) and DTYPES[dtype].bytes * 2 == _WORD
    even = all(factor % 2 == 0 for _, factor in vector.size.terms)
    return 2 if halves and even and op.index.coefficient(vector) is ONE else 1


__all__ = ["at_once", "most_updates", "widest_update"]
