"""Products of floats with weights of 8 bits: the weights are read as they are, and become floats in registers.

In: a graph where a matrix of whole numbers of 8 bits is cast to the type of what it is multiplied with, as `torchao`'s
weight-only linear layers do; their scales are arithmetic on the result. Out: the same without the matrix of floats,
summed in float32. For few rows the time of a product is that of reading its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import torch
from torch import fx

from litz.graph.alias import is_view
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.rules.quantised_formulas import cast
from litz.graph.sizes import sizes
from litz.ops.int8 import INT8_GROUP_MM, INT8_WEIGHT_MM
from litz.ops.matmul import FEW_ROWS

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


# -- a scale for each group of a row's numbers --------------------------------------------------------
@dataclass(frozen=True)
class _Groups:
    numbers: fx.Node  # (rows, groups, members)
    scales: fx.Node  # (rows, groups, 1)
    zeros: fx.Node | None


@rule(call((aten.mm.default, aten.addmm.default), ..., users=ANY), any_size=True)
def int8_groups(match: Match) -> Any:
    root = match.root
    *bias, x, weight = root.args
    found = _groups(weight)
    if found is None or x.meta["val"].dtype not in _TYPES or x.meta["val"].device.type != "cpu":
        return None
    if not match.ctx.target.generates_products or match.ctx.options.matmul == "library" or root.kwargs:
        return match.miss("products are not generated for this machine, or are not to be, or this one is scaled")
    rows = sizes(x.meta["val"].shape)[0]
    if not isinstance(rows, int) or rows > FEW_ROWS:
        return match.miss(f"{rows} rows are multiplied faster by a weight that is made of floats once a call")
    count, groups, members = (int(size) for size in found.numbers.meta["val"].shape)

    def flat(node: fx.Node) -> fx.Node:
        return match.call(aten.view.default, node, [count, groups])

    numbers = match.call(aten.view.default, found.numbers, [count, groups * members])
    zeros = None if found.zeros is None else flat(found.zeros)
    result = match.call(INT8_GROUP_MM, x, numbers, flat(found.scales), zeros)
    for added in bias:
        result = match.call(aten.add.Tensor, result, cast(match, added, torch.float32))
    return cast(match, result, root.meta["val"].dtype)


def _groups(node: Any) -> _Groups | None:
    """What a weight is made of that is turned, was seen in groups, scaled, and moved by zero points before."""
    for expected in (aten.t.default, aten.view.default):
        if not isinstance(node, fx.Node) or node.target is not expected:
            return None
        node = node.args[0]
    if node.target is not aten.mul.Tensor or len(sizes(node.meta["val"].shape)) != 3:
        return None
    moved, scales, zeros = _not_cast(node.args[0]), node.args[1], None
    if isinstance(moved, fx.Node) and moved.target is aten.sub.Tensor and len(moved.args) == 2 and not moved.kwargs:
        moved, zeros = _not_cast(moved.args[0]), _not_cast(moved.args[1])
    shape = sizes(node.meta["val"].shape)
    for value, expected_shape in ((moved, shape), (scales, (*shape[:2], 1)), (zeros, (*shape[:2], 1))):
        if value is zeros is None:
            continue
        if not isinstance(value, fx.Node) or sizes(value.meta["val"].shape) != expected_shape:
            return None
    if moved.meta["val"].dtype is not torch.int8 or not all(isinstance(size, int) for size in shape):
        return None
    return _Groups(moved, scales, zeros)


def _not_cast(node: Any) -> Any:
    is_cast = isinstance(node, fx.Node) and node.target is aten._to_copy.default and set(node.kwargs) <= {"dtype"}
    return node.args[0] if is_cast and node.meta["val"].is_floating_point() else node


INT8_WEIGHTS: Rules = (int8_weights, int8_groups)
