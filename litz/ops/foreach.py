"""Operators on lists of tensors, as optimisers use them: each is its plain operator, tensor by tensor.

The kernels of one parameter are chained by its tensors, so fusion makes of a whole step one kernel a parameter, and
parameters of one shape share its code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from litz.loop.ir import View
from litz.ops.builder import Builder
from litz.ops.registry import LOWERINGS, Lowering, lowers

aten = torch.ops.aten

_WITH_NUMBERS = ("ScalarList", "Scalar")
_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc", "zero", "clone", "copy", "max",
)  # fmt: skip
_CLAMPS = {"clamp_min": "clamp_min", "clamp_max": "clamp_max", "maximum": "clamp_min", "minimum": "clamp_max"}
# List operator -> the plain operator it is, by what its second argument is.
_TABLE: dict[str, dict[str, str]] = {
    **{f"{name}.default": {"tensor": f"{name}.default"} for name in _UNARY},
    "norm.Scalar": {"tensor": "linalg_vector_norm.default", "number": "linalg_vector_norm.default"},
    **{
        f"{name}.{form}": {"tensor": f"{name}.Tensor", "number": f"{name}.Scalar"}
        for name in ("add", "sub", "mul", "div")
        for form in ("List", "Scalar", "ScalarList", "Tensor")
    },
    **{
        f"{name}.{form}": {"tensor": f"{plain}.Tensor", "number": f"{plain}.default"}
        for name, plain in _CLAMPS.items()
        for form in ("List", *_WITH_NUMBERS)
    },
    **{
        f"pow.{form}": {"tensor": "pow.Tensor_Tensor", "number": "pow.Tensor_Scalar"}
        for form in ("List", *_WITH_NUMBERS)
    },
    "pow.ScalarAndTensor": {"tensor": "pow.Scalar"},
    **{f"{name}.{form}": {"tensor": f"{name}.default"} for name in ("addcmul", "addcdiv") for form in _WITH_NUMBERS},
    "lerp.List": {"tensor": "lerp.Tensor"},
    **{f"lerp.{form}": {"tensor": "lerp.Scalar"} for form in _WITH_NUMBERS},
}  # fmt: skip


@dataclass(frozen=True)
class _One:
    """The node of one tensor's operator: what lowerings read of a node, and no more."""

    target: Any
    args: tuple
    meta: dict[str, Any]
    users: dict = field(default_factory=dict)


def _overload(name: str) -> torch._ops.OpOverload | None:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet, None), overload, None)


def _expand(plain: dict[str, str]) -> Lowering:
    def lowering(b: Builder, node: fx.Node, *args: Any, **kwargs: Any) -> Any:
        before = len(b.steps)
        results = []
        for k, fake in enumerate(node.meta["val"]):
            own = tuple(a[k] if isinstance(a, (list, tuple)) else a for a in args)
            target = _overload(plain["tensor" if len(own) < 2 or isinstance(own[1], View) else "number"])
            result: Any = NotImplemented
            if target in LOWERINGS:
                result = LOWERINGS[target](b, _One(target, own, {"val": fake}), *own, **kwargs)
            if result is NotImplemented:
                # All or none: what was lowered so far is dropped, and the operator called on the lists.
                del b.steps[before:]
                return NotImplemented
            results.append(result)
        return tuple(results)

    return lowering


for _name, _plain in _TABLE.items():
    lowers(_overload(f"_foreach_{_name}"))(_expand(_plain))
