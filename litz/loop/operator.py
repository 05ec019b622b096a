"""Operators by the names that programs have for them: `aten::mm`, `aten::add.Tensor`."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch


class OperatorName(NamedTuple):
    namespace: str
    name: str
    overload: str


@lru_cache(maxsize=1 << 12)
def taken_apart(target: str) -> OperatorName:
    """A name without an overload is that of the default one."""
    namespace, _, rest = target.partition("::")
    name, _, overload = rest.partition(".")
    return OperatorName(namespace, name, overload or "default")


def operator_named(target: str, overload: str | None = None) -> torch._ops.OpOverload:
    """The operator, or another overload of it."""
    own = taken_apart(target)
    return getattr(getattr(getattr(torch.ops, own.namespace), own.name), overload or own.overload)


__all__ = ["OperatorName", "operator_named", "taken_apart"]
