"""The table of lowerings: ATen operator -> function. `lowers` adds a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Lowering = Callable[..., Any]
LOWERINGS: dict[torch._ops.OpOverload, Lowering] = {}
IN_ORDER: set[torch._ops.OpOverload] = set()  # operators that are lowered only where steps are walked in order


def lowers(*targets: torch._ops.OpOverload | None, in_order: bool = False) -> Callable[[Lowering], Lowering]:
    """Register a lowering `f(builder, node, *args, **kwargs)`; NotImplemented from it has the operator called.

    An operator that this version of torch does not have is given as None and skipped. `in_order`: where steps are not
    walked in order, the operator had better be called.
    """

    def register(function: Lowering) -> Lowering:
        for target in targets:
            if target is None:
                continue
            assert target not in LOWERINGS, f"{target} is lowered twice"
            LOWERINGS[target] = function
            if in_order:
                IN_ORDER.add(target)
        return function

    return register


_LATER: dict[str, Lowering] = {}


def lowers_later(name: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering for an operator that exists only once some other module has been imported: found by name."""

    def register(function: Lowering) -> Lowering:
        _LATER[name] = function
        return function

    return register


def lowering_of(target: torch._ops.OpOverload) -> Lowering | None:
    return LOWERINGS.get(target) or _LATER.get(target.name())
