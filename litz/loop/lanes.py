"""Which axis of a kernel runs across the lanes of a vector.

In: a `Kernel`. Out: one of its axes, or None where each point is better taken by itself.
"""

from __future__ import annotations

from litz.loop.expr import Axis
from litz.loop.ir import Kernel, Load, Scan, Store


def vector_axis(kernel: Kernel) -> Axis | None:
    """The axis to run across lanes: the one most accesses are contiguous along, stores counting double.

    What is read or written once a row, and not once an element, hardly counts.
    """
    best: tuple[float, int] | None = None
    chosen = None
    candidates = [*kernel.axes] if kernel.ordered else [*kernel.axes, *kernel.reduced]
    reduced = frozenset(kernel.reduced)
    accesses = [op for op in kernel.body if isinstance(op, (Load, Store))]
    for position, axis in enumerate(candidates):
        score = 0.0
        for op in accesses:
            step = op.index.coefficient(axis)
            weight = 2.0 if isinstance(op, Store) else 1.0
            if reduced and not op.index.axes() & reduced:
                weight /= 16
            if step is None:
                score -= weight
            elif step.is_int and step.int == 1:
                score += weight
            elif not (step.is_int and step.int == 0):
                score -= 2 * weight
        if axis.size.is_int and axis.size.int < 4:
            score -= 4
        if best is None or (score, position) >= best:
            best, chosen = (score, position), axis
    if kernel.ordered and best is not None and best[0] <= 0 and not _has_dear_scan(kernel):
        return None  # rows that lie apart, each walked in order: gathering them costs more than it gives
    return chosen


def _has_dear_scan(kernel: Kernel) -> bool:
    return any(isinstance(op, Scan) and op.kind == "logaddexp" for op in kernel.body)


__all__ = ["vector_axis"]
