"""A backward that is given many tangents in one: those that `vmap` carries along (`jacobian(vectorize=True)`,
`is_grads_batched`).

In: a function of tangents, compiled for one of each, and tangents. Out: what it gives, batched where they were.
Compiled code reads memory, and a batched tensor has none of its own; so the function runs for each in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

functorch = torch._C._functorch


def is_batched(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (
        functorch.is_batchedtensor(value) or functorch.is_legacy_batchedtensor(value)
    )


def in_turn(run: Callable[[Sequence[Any]], Sequence[Any]], given: Sequence[Any]) -> Sequence[Any]:
    """`run` on each of the tangents that the outermost level of `vmap` holds in one; None stands for no tensor."""
    batched = [t for t in given if is_batched(t)]
    if not batched:
        return run(given)
    level, legacy = _level(batched)
    add, remove = (
        (torch._add_batch_dim, torch._remove_batch_dim)
        if legacy
        else (functorch._add_batch_dim, functorch._remove_batch_dim)
    )
    wholes = [remove(t, level, 1, 0) if _is_at(t, level, legacy) else t for t in given]
    size = next(whole.shape[0] for whole, t in zip(wholes, given, strict=True) if whole is not t)
    rows = []
    for row in range(size):
        each = [w if w is t else w[row] for w, t in zip(wholes, given, strict=True)]
        rows.append(in_turn(run, each))
    if not rows:
        # No tangent at all is one of zeros as far as shapes go, and nothing of it is kept.
        zeros = [w if w is t else w.new_zeros(w.shape[1:]) for w, t in zip(wholes, given, strict=True)]
        like = in_turn(run, zeros)
        return [None if x is None else add(x.new_empty((0, *x.shape)), 0, level) for x in like]
    return [
        None if column[0] is None else add(torch.stack(column), 0, level)
        for column in (list(parts) for parts in zip(*rows, strict=True))
    ]


def _level(batched: Sequence[torch.Tensor]) -> tuple[int, bool]:
    """The outermost one that a tensor is batched at, and whether it is one of autograd's own old `vmap`."""
    if not any(map(functorch.is_legacy_batchedtensor, batched)):
        return max(map(functorch.maybe_get_level, batched)), False
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return level, True


def _is_at(value: Any, level: int, legacy: bool) -> bool:
    if not is_batched(value):
        return False
    return functorch.is_legacy_batchedtensor(value) if legacy else functorch.maybe_get_level(value) == level


__all__ = ["in_turn", "is_batched"]
