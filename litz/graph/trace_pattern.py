"""Patterns by example: a traced function becomes the pattern that finds it.

In: the graph of a traced search function. Out: a `Pattern` in which the function's arguments are `Arg`s.

A trace burns in what it saw: shapes, strides, scalars. The *loose* pattern ignores all of that and finds
candidates; the *exact* one is made by tracing again on the candidate's own values, and must match too.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from litz.errors import RuleError
from litz.graph.pattern import ANY, INSIDE, Arg, Call, Outputs, Pattern, Wild
from litz.graph.sizes import SYMBOLIC, Extent, size_of

aten = torch.ops.aten

_COMMUTES = {
    aten.add.Tensor,
    aten.mul.Tensor,
    aten.maximum.default,
    aten.minimum.default,
    aten.eq.Tensor,
    aten.bitwise_and.Tensor,
}
_BURNT_IN = (int, float, complex, *SYMBOLIC, torch.dtype, torch.device, torch.layout, torch.memory_format)


def pattern_of(traced: fx.GraphModule, names: Sequence[str], scalars: Mapping[str, Any], *, exact: bool) -> Pattern:
    """`names` are those of the graph's inputs; `scalars` are recognised among its constants by their value."""
    made: dict[fx.Node, Any] = {}
    supply = iter(names)
    by_value = {size_of(value): name for name, value in scalars.items()}

    def convert(value: Any, keep: bool) -> Any:
        if isinstance(value, fx.Node):
            return made[value]
        if isinstance(value, (list, tuple)):
            if not exact and not any(isinstance(v, fx.Node) for v in value):
                return Wild()
            return tuple(convert(v, keep) for v in value)
        number = size_of(value)
        if isinstance(number, (int, float, Extent)) and not isinstance(number, bool) and number in by_value:
            return Arg(by_value[number])
        if not exact and not keep and isinstance(value, _BURNT_IN) and not isinstance(value, bool):
            return Wild()
        return value

    for node in traced.graph.nodes:
        if node.op == "placeholder":
            made[node] = Arg(next(supply))
        elif node.op == "call_function":
            keep = node.target is operator.getitem
            args = tuple(convert(a, keep) for a in node.args)
            kwargs = tuple((k, convert(v, keep)) for k, v in node.kwargs.items())
            if not exact:
                # What an operator is told beyond its tensors (dtype, device) is checked by the exact pattern.
                args, kwargs = (
                    _padded(node.target, args, kwargs),
                    tuple((k, v) for k, v in kwargs if not isinstance(v, Wild)),
                )
            shared = f"_{node.name}" if len(node.users) > 1 else None
            is_result = any(user.op == "output" for user in node.users)
            made[node] = Call(
                (node.target,), args, kwargs, shared, ANY if is_result else INSIDE, node.target in _COMMUTES
            )
        elif node.op == "output":
            found = node.args[0]
            results = tuple(found) if isinstance(found, (tuple, list)) else (found,)
            if not all(isinstance(r, fx.Node) and r.op == "call_function" for r in results):
                raise RuleError("a result of the search function is one of its inputs or a constant")
            items = tuple(made[r] for r in results)
            return items[0] if len(items) == 1 else Outputs(items)
        else:
            raise RuleError(f"the search function holds a {node.op} ({node.target}), which no pattern can describe")
    raise RuleError("the search function returns nothing")


def _padded(target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> tuple[Any, ...]:
    """Room for further arguments of an ATen operator, if one of those given is ignored already."""
    loose = any(isinstance(a, Wild) for a in (*args, *(v for _, v in kwargs)))
    return (*args, ...) if loose and isinstance(target, torch._ops.OpOverload) else args
