"""Softmax written out, before autograd: `exp(x - max) / sum` becomes the operator, and so does its backward.

In: a torch-level graph, normalised. Out: the same with `softmax`, so that attention is recognised in training too.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from litz.graph.mutation import disturbed
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule

_SUBTRACTIONS = (operator.sub, torch.sub)


_RAISED = call(torch.exp, Arg("shifted"), name="raised", users=ANY)


@rule(call((operator.truediv, torch.div), _RAISED, Arg("total"), users=ANY), any_size=True)
def softmax_pre_grad(match: Match) -> Any:
    raised, shifted, total = match["raised"], match["shifted"], match["total"]
    if not isinstance(total, fx.Node) or total.target is not torch.sum or total.args[0] is not raised:
        return None
    dim = _sole(total.args[1]) if len(total.args) == 3 and not total.kwargs else None
    if dim is None or total.args[2] is not True:
        return None
    if not isinstance(shifted, fx.Node) or shifted.target not in _SUBTRACTIONS or shifted.kwargs:
        return None
    x, highest = shifted.args[:2]
    value = x.meta.get("val") if isinstance(x, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    way = _maximum(highest, x, dim % value.dim())
    if way is None:
        return match.miss("what is subtracted is not the maximum along the same dimension", shifted)
    own = {match.root, total, raised, shifted, *way}
    seen = next((n for n in own if n is not match.root and any(user not in own for user in n.users)), None)
    if seen is not None:
        return match.miss("its result is also used outside of the softmax", seen)
    writer = disturbed(min(own), match.root, own)
    if writer is not None:
        return match.miss("it may write to what the softmax reads", writer)
    return match.call(torch.softmax, x, dim, None)


def _sole(dims: Any) -> int | None:
    """The one dimension that is meant."""
    if isinstance(dims, (tuple, list)) and len(dims) == 1:
        dims = dims[0]
    return dims if isinstance(dims, int) and not isinstance(dims, bool) else None


def _maximum(node: Any, x: Any, dim: int) -> list[fx.Node] | None:
    """The nodes that compute the maximum of `x` along `dim`, kept with size 1; None if it is something else."""
    way = []
    while isinstance(node, fx.Node) and node.target in ("detach", operator.getitem):
        if node.target is operator.getitem and node.args[1] != 0:
            return None
        way.append(node)
        node = node.args[0]
    if not isinstance(node, fx.Node) or node.target not in (torch.amax, torch.max) or node.args[0] is not x:
        return None
    along = _sole(node.args[1]) if len(node.args) == 3 else None
    if along is None or node.args[2] is not True or along % x.meta["val"].dim() != dim:
        return None
    return [*way, node]


SOFTMAX_PRE_GRAD: Rules = (softmax_pre_grad,)
