"""Plan scans for a GPU: a team of threads goes along a row together, as far as they reach at a time.

In: a kernel that scans the steps of its reduced axis. Out: its `RowPlan`, whose vectors run along that axis: each
thread has some steps, what those before it make is asked of the team, and what all make is carried on. Where the steps
of a row lie side by side, so do those of a thread. Where rows lie side by side, threads side by side have one each, and
a row is shared only where there are too few of them.
"""

from __future__ import annotations

from collections.abc import Callable

from litz.codegen.depend import depends
from litz.codegen.lanes import WARP
from litz.codegen.rows import RowPlan, plan_passes, volume
from litz.loop.expr import ONE, Axis
from litz.loop.ir import Kernel, Load, Reduce, Scan, Store

_STEPS = 16  # that a thread has at a time
_WIDEST_TEAM = 512
_UNKNOWN_TEAM = 256  # of rows whose length is known only at run time
_BUSY = 1 << 15  # threads that keep a GPU busy
_SHORT = 64  # steps of a row that a thread walks alone rather than wait for others


def scan_rows(kernel: Kernel, lanes_along: Callable[[Kernel, Axis], int]) -> RowPlan | None:
    """None: no team can take the kernel's steps. `lanes_along`: of an axis, how many lanes a vector may have."""
    if not any(isinstance(op, Scan) for op in kernel.body) or len(kernel.reduced) != 1:
        return None
    if any(isinstance(op, Reduce) or (isinstance(op, Store) and op.update is not None) for op in kernel.body):
        return None
    (axis,) = kernel.reduced
    if _lies_side_by_side(kernel, axis):
        lanes = lanes_along(kernel, axis)
        team, copies = _along_row(axis, lanes)
    else:
        lanes = 1
        team, copies = _across_rows(kernel, axis)
    passes = plan_passes(kernel, depends(kernel.body, kernel.reduced))
    return RowPlan(kernel, axis, lanes, copies, team, False, passes, {})


def _lies_side_by_side(kernel: Kernel, axis: Axis) -> bool:
    accesses = [op for op in kernel.body if isinstance(op, (Load, Store)) and axis in op.index.axes()]
    return all(op.index.coefficient(axis) is ONE for op in accesses)


def _along_row(axis: Axis, lanes: int) -> tuple[int, int]:
    """Threads that share a row, so that it is read in one go if it is short enough, and vectors that each has."""
    most = max(1, _STEPS // lanes)
    if not axis.size.is_int:
        return _UNKNOWN_TEAM, most
    vectors = max(1, -(-axis.size.int // lanes))
    team = 1
    while team < min(vectors, WARP) or (team < _WIDEST_TEAM and team * most < vectors):
        team *= 2
    return team, min(most, -(-vectors // team))


def _across_rows(kernel: Kernel, axis: Axis) -> tuple[int, int]:
    rows, length = max(1, volume(kernel.axes).hint), axis.size.hint
    team = 1
    while team < _WIDEST_TEAM and rows * team < _BUSY and team * _SHORT < length:
        team *= 2
    return team, max(1, min(_STEPS // 2, -(-length // team)))


__all__ = ["scan_rows"]
