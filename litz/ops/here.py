"""What a machine does not generate, of all that can be lowered.

In: a step. Out: why the operator that it stands for is called as it is on this machine, or None.
"""

from __future__ import annotations

from litz.loop.dtype import DTYPES
from litz.loop.ir import Apply, Kernel, Step, Store
from litz.loop.scalar import SCALARS
from litz.target import Machine


def why_not_here(step: Step, target: Machine) -> str | None:
    if not isinstance(step, Kernel):
        return None
    if step.ordered and not target.walks_in_order:
        return "its steps depend on their order"
    types = {op.name: op.dtype for op in step.body if not isinstance(op, Store)}
    for op in step.body:
        if isinstance(op, Apply) and not target.calls_libraries and needs_library(op.op, types[op.args[-1]]):
            return f"there is no {op.op} of {DTYPES[types[op.args[-1]]].torch_name} here"
    return None


def needs_library(name: str, dtype: str) -> bool:
    """Whether the function is one of a library of mathematical functions."""
    spelling = SCALARS[name].llvm.get(DTYPES[dtype].kind, "")
    return spelling.startswith("sleef") or name in ("asinh", "acosh") or (dtype == "f64" and name in _IN_DOUBLE)


_IN_DOUBLE = {"exp", "log", "tanh", "erf", "normal_cdf", "sigmoid"}

__all__ = ["needs_library", "why_not_here"]
