"""What a machine does not generate, of all that can be lowered.

In: a step. Out: why the operator that it stands for is called as it is on this machine, or None.
"""

from __future__ import annotations

import torch

from litz.loop.dtype import is_float
from litz.loop.ir import Kernel, Scan, Step, Store
from litz.target import Machine

_LONG = 1 << 15  # steps of one row that a team of threads is done with soon enough


def why_not_here(step: Step, target: Machine) -> str | None:
    if not isinstance(step, Kernel) or target.walks_in_order:
        return None
    if torch.are_deterministic_algorithms_enabled() and _depends_on_order(step):
        return "its threads would add in any order, and torch is to be deterministic"
    if not step.axes and any(isinstance(op, Scan) for op in step.body) and step.reduced[0].size.hint > _LONG:
        return "a row as long as this is scanned by all of the GPU at once, which the library does"
    return None


def _depends_on_order(kernel: Kernel) -> bool:
    """Whether updates that take place in another order leave another result."""
    types = {op.name: op.dtype for op in kernel.body if not isinstance(op, Store)}
    return any(
        op.update == "put" or (op.update in ("sum", "prod") and is_float(types[op.value])) for op in kernel.stores
    )


__all__ = ["why_not_here"]
