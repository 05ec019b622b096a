"""Arguments of an operator as its schema orders them, and as the dispatcher's C interface boxes them.

In: an operator's name, and arguments of a call. Out: `Given`s, which `codegen/llvm/boxed.py` checks for; and refusals
of operators that cannot be called that way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from litz.codegen.llvm.boxed import Given, TensorForm
from litz.codegen.llvm.shim import SCALAR_TYPE
from litz.errors import OptionError
from litz.loop.dtype import from_torch
from litz.loop.operator import operator_named

_KINDS = {
    "Tensor": "tensor", "int": "int", "SymInt": "int", "bool": "bool", "float": "float", "str": "str",
    "List[int]": "ints", "List[SymInt]": "ints", "ScalarType": "dtype",
}  # fmt: skip


class NotGiven(Exception):
    """A call whose arguments no code is made for."""


def find(name: str) -> torch._ops.OpOverload:
    """`"aten::gelu"`, `"aten::mul.Tensor"`: the operator, if it can be enabled."""
    if not isinstance(name, str):
        raise OptionError(f'an operator is given by its name, such as "aten::gelu", and this is {name!r:.60}')
    namespace, _, rest = name.partition("::")
    short, _, overload = rest.partition(".")
    try:
        op = operator_named(f"{namespace}::{short}.{overload or 'default'}")
    except (AttributeError, RuntimeError) as error:
        hint = 'spell it with its namespace, and its overload if it has one, such as "aten::mul.Tensor"'
        raise OptionError(f"there is no operator {name!r}", hint=hint) from error
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        raise OptionError(f"{name} is made of other operators, which have its gradient: enable those")
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(op.name(), "CPU"):
        raise OptionError(f"{name} has no kernel for the CPU")
    schema = op._schema
    if schema.is_mutable or any(r.alias_info is not None for r in schema.returns):
        raise OptionError(f"{name} writes to its arguments, or returns memory of theirs: it stays as it is")
    if not schema.returns or any(str(r.type) != "Tensor" for r in schema.returns):
        raise OptionError(f"{name} returns something else than tensors: it stays as it is")
    for argument in schema.arguments:
        if _kind(argument) is None:
            raise OptionError(
                f"{name} takes {argument.name}, a {argument.real_type}, which torch's C interface does not carry: "
                "it stays as it is"
            )
    return op


def _kind(argument: Any) -> tuple[str, bool] | None:
    """The kind of an argument, and whether it may be absent."""
    text = str(argument.real_type)
    optional = text.startswith("Optional[")
    kind = _KINDS.get(text[len("Optional[") : -1] if optional else text)
    return None if kind is None else (kind, optional)


def kinds(op: torch._ops.OpOverload) -> list[tuple[str, bool]]:
    return [found for a in op._schema.arguments if (found := _kind(a)) is not None]


def in_order(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """All arguments, defaults included."""
    found, waiting, named = [], list(args), dict(kwargs)
    for argument in op._schema.arguments:
        if waiting and not argument.kwarg_only:
            found.append(waiting.pop(0))
        elif argument.name in named:
            found.append(named.pop(argument.name))
        elif argument.has_default_value():
            found.append(argument.default_value)
        else:
            raise OptionError(f"{op.name()} is not given {argument.name}")
    if waiting or named:
        raise OptionError(f"{op.name()} takes no {next(iter(named), 'more arguments')}")
    return found


def called(op: torch._ops.OpOverload, arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments in order, as a call spells them."""
    schema = list(zip(op._schema.arguments, arguments, strict=True))
    return [v for a, v in schema if not a.kwarg_only], {a.name: v for a, v in schema if a.kwarg_only}


def given(op: torch._ops.OpOverload, arguments: Sequence[Any]) -> tuple[Given, ...]:
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    if any(t.dim() == 0 for t in tensors):
        raise NotGiven("a tensor of no dimensions, which may stand for a number, and then gives way to other types")
    if not any(t.is_floating_point() for t in tensors):
        raise NotGiven("whole numbers alone, of which the default type makes floats")
    return tuple(Given(*kind, _value(kind[0], value)) for kind, value in zip(kinds(op), arguments, strict=True))


def _value(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "tensor":
        return form_of(value)
    if kind == "ints":
        return tuple(int(n) for n in value)
    if kind == "dtype":
        name = from_torch(value)
        if name not in SCALAR_TYPE:
            raise NotGiven(f"the type {value}")
        return SCALAR_TYPE[name]
    if isinstance(value, float) and value != value:
        raise NotGiven("a number that is none, which equals nothing it could be found by")
    return {"int": int, "bool": bool, "float": float, "str": str}[kind](value)


def form_of(tensor: torch.Tensor) -> TensorForm:
    dtype = from_torch(tensor.dtype) if tensor.layout is torch.strided else None
    if dtype not in SCALAR_TYPE or tensor.device.type != "cpu":
        raise NotGiven(f"a tensor of {tensor.dtype} on {tensor.device}")
    return TensorForm(dtype, tuple(tensor.shape), tuple(tensor.stride()))


__all__ = ["NotGiven", "called", "find", "form_of", "given", "in_order", "kinds"]
