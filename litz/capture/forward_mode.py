"""Forward-mode differentiation around a compiled function, which would lose the tangents of its arguments.

Dynamo does not guard it: a function compiled without is called with them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.autograd import forward_ad


def carries_tangents(values: Iterable[object]) -> bool:
    """Whether a tensor among them is a dual one. Asked at each call: outside a level it costs a comparison."""
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(v, torch.Tensor) and forward_ad.unpack_dual(v).tangent is not None for v in values)


__all__ = ["carries_tangents"]
