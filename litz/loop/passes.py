"""How many passes over its reduced axes a kernel takes, and in which of them each operator runs.

In: a kernel's body. Out: for every operator the pass it belongs to. A reduction is complete after its
pass; what reads it comes one pass later. Values that a later pass needs again are computed again.
"""

from __future__ import annotations

from litz.loop.ir import Kernel, Reduce, Store, operands


def pass_of_each(kernel: Kernel) -> list[int]:
    """For each operator of the body, in order, the first pass in which it can run."""
    ready: dict[str, int] = {}
    found = []
    for op in kernel.body:
        at = max((ready[name] for name in operands(op)), default=0)
        found.append(at)
        if not isinstance(op, Store):
            ready[op.name] = at + 1 if isinstance(op, Reduce) else at
    return found


def last_pass_only(kernel: Kernel, buffer: str) -> bool:
    """Whether `buffer` is stored to in the last pass alone: each pass loads again, and must find what was there."""
    if not kernel.reduced:
        return True
    passes = pass_of_each(kernel)
    return all(
        p == max(passes)
        for p, op in zip(passes, kernel.body, strict=True)
        if isinstance(op, Store) and op.buffer == buffer
    )
