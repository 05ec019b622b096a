"""Products of floats with weights of 8 bits: the weights are read as they are, and become floats in registers.

In: a graph where a matrix of whole numbers of 8 bits is cast to the type of what it is multiplied with, as `torchao`'s
weight-only linear layers do; their scales are arithmetic on the result. Out: the same without the matrix of floats,
summed in float32. For few rows the time of a product is that of reading its weights.
"""

from __future__ import annotations

from typing import Any, Union

import torch
from torch import fx

from litz.graph.alias import is_view
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.rules.quantised_formulas import cast
from litz.graph.sizes import sizes
from litz.ops.int8 import INT8_WEIGHT_MM

aten = torch.ops.aten

_TYPES = (torch.float32, torch.bfloat16)


@rule(call(aten.mm.default, Arg("x"), Arg("weight"), users=ANY), any_size=True)
def int8_weights(match: Match) -> Any:
    x, weight = match["x"], _whole_numbers(match["weight"])
    if weight is None or x.meta["val"].dtype not in _TYPES or x.meta["val"].device.type != "cpu":
        return None
    if not match.ctx.target.generates_products or match.ctx.options.matmul == "library":
        return match.miss("products are not generated for this machine, or are not to be")
    if not all(isinstance(size, int) for size in sizes(match["weight"].meta["val"].shape)):
        return match.miss("the weight's sizes vary")
    numbers, steps = weight
    for step in steps:
        numbers = match.call(step.target, numbers, *step.args[1:], **step.kwargs)
    return cast(match, match.call(INT8_WEIGHT_MM, x, numbers), match.root.meta["val"].dtype)


def _whole_numbers(node: Any) -> Union[tuple[fx.Node, list[fx.Node]], None]:
    """The tensor of 8 bits that the node is the float form of, and the views between, innermost first."""
    steps: list[fx.Node] = []
    is_float = False
    while isinstance(node, fx.Node) and node.op == "call_function":
        if (
            node.target is aten._to_copy.default
            and node.meta["val"].is_floating_point()
            and set(node.kwargs) <= {"dtype"}
        ):
            is_float = True
        elif is_view(node):
            steps.append(node)
        else:
            break
        node = node.args[0]
        if is_float and node.meta["val"].dtype is torch.int8:
            return node, steps[::-1]
    return None


INT8_WEIGHTS: Rules = (int8_weights,)
