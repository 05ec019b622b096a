"""Python floats that change from call to call.

In: Dynamo's graph, changed in place. Dynamo passes such a float as a tensor of one float64 and asks for its `item`,
which no trace can know. In arithmetic with a floating tensor the tensor itself means the same: it takes the other's
type there, just as the number would.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

_ARITHMETIC = {
    operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div,
    "add", "sub", "mul", "div",
}  # fmt: skip


def floats_as_tensors(graph_module: fx.GraphModule) -> None:
    for node in list(graph_module.graph.nodes):
        if node.op == "call_method" and node.target == "item" and isinstance(_value(node), torch.SymFloat):
            (source,) = node.all_input_nodes
            if source.op == "placeholder" and all(_takes_a_tensor(user, node) for user in node.users):
                node.replace_all_uses_with(source)
                graph_module.graph.erase_node(node)
                graph_module.recompile()


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _takes_a_tensor(user: fx.Node, number: fx.Node) -> bool:
    others = [_value(a) for a in user.args if a is not number]
    return (
        user.target in _ARITHMETIC and not user.kwargs and len(user.args) == 2 and len(others) == 1
        and isinstance(others[0], torch.Tensor) and others[0].is_floating_point()
    )  # fmt: skip


__all__ = ["floats_as_tensors"]
