"""Operators by the names that programs have for them: `aten::mm`, `aten::add.Tensor`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from litz.errors import CallError
from litz.loop import draw, offload  # noqa: F401  (they register Litz's own)

TORCHS_OWN = frozenset(("aten", "prims", "prim", "quantized", "mkldnn", "mkl", "onednn", "profiler"))  # namespaces


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
    try:
        return getattr(getattr(getattr(torch.ops, own.namespace), own.name), overload or own.overload)
    except AttributeError as error:
        raise CallError(
            f"a program calls the operator {target}, which this process does not have",
            hint="import the package that registers it before the program is loaded",
        ) from error


@lru_cache(maxsize=None)
def returns_view(target: object) -> bool:
    """Whether the schema says that a result is memory of an argument."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target is torch.ops.aten.lift_fresh.default:
        return False  # a tensor written out in a program is made anew at each call, whatever the schema says
    return any(a.alias_info is not None and not a.alias_info.is_write for a in target._schema.arguments)


def is_zero_point(node: Any) -> bool:
    """Whether a node is the zero points of quantised weights. That they are zero, as is usual, saves sums of the other
    factor; only their values tell, and so what was found is looked at again when constants are made of them."""
    return any("dequantize_per_channel" in str(user.target) and user.args[2:3] == (node,) for user in node.users)


__all__ = ["TORCHS_OWN", "OperatorName", "is_zero_point", "operator_named", "returns_view", "taken_apart"]
