"""What a kernel costs: operations for each of its points. Few cost less than a round trip through memory."""

from __future__ import annotations

from litz.loop.ir import Apply, Kernel
from litz.loop.scalar import SCALARS

_CHEAP = 8


def is_cheap(kernel: Kernel) -> bool:
    return sum(SCALARS[op.op].cost for op in kernel.body if isinstance(op, Apply)) <= _CHEAP


def is_formula(kernel: Kernel) -> bool:
    """Whether it stores one thing, and that had as well be computed again."""
    return not kernel.reduced and len(kernel.stores) == 1 and is_cheap(kernel)


__all__ = ["is_cheap", "is_formula"]
