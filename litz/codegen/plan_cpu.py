"""Plan rows for a CPU: a thread walks whole rows, in the widest vectors it has."""

from __future__ import annotations

from collections.abc import Collection

from litz.codegen.depend import depends
from litz.codegen.far import asked_ahead
from litz.codegen.lanes import vector_axis
from litz.codegen.rows import RowPlan, keep_what_is_dear, may_be_held, plan_passes, shared_loads
from litz.loop.expr import Expr
from litz.loop.ir import Kernel, Reduce, Store
from litz.target import Target

_SCRATCH_BYTES = 1 << 18
_MOST_ADDED = 20  # numbers in a sum that is not cut; eager adds up 16, but a cut for a few more costs time
SCRATCH_COPIES = 4  # vectors that a row of scratch has room for side by side, where lanes are not reduced


def plan_for_cpu(kernel: Kernel, target: Target, far: Collection[str] = ()) -> RowPlan:
    """`far`: buffers that no cache holds."""
    vector = vector_axis(kernel)
    varies = depends(kernel.body, kernel.reduced)
    types = {op.dtype for op in kernel.body if not isinstance(op, Store)}
    only_wide = bool(types & {"f64"}) and not types & {"f32", "f16", "bf16"}
    lanes = max(target.vector_bytes // (8 if only_wide else 4), 2)
    copies = 1 if vector is None else _copies(kernel, vector.size, lanes)
    passes = plan_passes(kernel, varies)
    if vector is not None and may_be_held(kernel, vector, passes):
        vectors = -(-vector.size.int // lanes)
        # Half of the registers are for what is computed meanwhile.
        if vectors * max(1, len(shared_loads(passes))) <= target.vector_registers // 2:
            return RowPlan(kernel, vector, lanes, vectors, 1, True, passes, {}, most_added=_MOST_ADDED)
    width = 1 if vector in kernel.reduced else lanes * SCRATCH_COPIES
    passes, kept = keep_what_is_dear(kernel, varies, passes, _SCRATCH_BYTES, width)
    ahead = asked_ahead(kernel, vector, far)
    return RowPlan(kernel, vector, lanes, copies, 1, False, passes, kept, most_added=_MOST_ADDED, ahead=ahead)


def _copies(kernel: Kernel, size: Expr, lanes: int) -> int:
    """Vectors side by side: to hide the latency of a reduction's chain, and of dear operators. The first size that
    a program meets says nothing about those to come."""
    if any(op.kind.startswith("arg") for op in kernel.body if isinstance(op, Reduce)):
        return 1
    live = len(kernel.body)
    most = 4 if live <= 12 or kernel.reduced else 2 if live <= 40 else 1
    while most > 1 and size.is_int and size.int < most * lanes:
        most //= 2
    return most


__all__ = ["SCRATCH_COPIES", "plan_for_cpu"]
