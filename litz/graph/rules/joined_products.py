"""Products of one matrix with several frozen ones of equal shape: one product, and views of its result.

In: a graph with frozen inputs. Out: the same, where `x @ w1, x @ w2, …`, with or without biases, are one product with
the weights side by side, `x @ (w1 | w2 | …)`. The matrix is read, and packed, once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from litz.graph.alias import is_view
from litz.graph.editor import sees_layout
from litz.graph.match import Found
from litz.graph.pattern import ANY, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.sizes import sizes

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.addmm.default)


@rule(call(_PRODUCTS, ..., users=ANY), any_size=True)
def joined_products(match: Match) -> Any:
    own = _operands(match.root)
    if own is None or not match.is_frozen(own[2]) or match.is_frozen(own[1]):
        return None
    x = own[1]
    beside = [node for node in x.users if node.target is match.root.target and (_operands(node) or (0, None))[1] is x]
    group = [node for node in sorted(beside) if node is match.root or _goes_with(match, node, own)]
    if len(beside) < 2 or group[-1] is not match.root:
        return None  # the last of them speaks for all
    if len(group) < 2:
        return match.miss("those beside it have weights or biases of another shape or type, or that are not frozen")
    fixed = [node for node in group if _reader_of_layout(node) is not None]
    if fixed:
        return match.miss("a view of it would be copied for who reads it", _reader_of_layout(fixed[0]))
    weights, biases = ([_operands(node)[at] for node in group] for at in (2, 0))  # type: ignore[index]
    columns = match.root.meta["val"].shape[1]
    weight = match.call(aten.cat.default, weights, 1)
    if biases[0] is None:
        whole = match.call(aten.mm.default, x, weight)
    else:
        whole = match.call(aten.addmm.default, match.call(aten.cat.default, biases), x, weight)
    match.found = Found(match.found.bindings, match.found.nodes, tuple(group))
    return tuple(match.call(aten.slice.Tensor, whole, 1, i * columns, (i + 1) * columns) for i in range(len(group)))


def _operands(node: fx.Node) -> tuple[fx.Node | None, fx.Node, fx.Node] | None:
    """Bias, rows, columns."""
    if node.target is aten.mm.default:
        return None, node.args[0], node.args[1]  # type: ignore[return-value]
    if node.target is aten.addmm.default and len(node.args) == 3 and not node.kwargs:
        return node.args  # type: ignore[return-value]
    return None


def _goes_with(match: Match, node: fx.Node, own: tuple[fx.Node | None, fx.Node, fx.Node]) -> bool:
    found = _operands(node)
    assert found is not None
    for one, other in ((found[2], own[2]), (found[0], own[0])):
        if one is None or other is None:
            if one is not other:
                return False
        elif not match.is_frozen(one) or not match.is_frozen(other) or not _alike(one, other):
            return False
    return own[0] is None or sizes(own[0].meta["val"].shape) == sizes(own[2].meta["val"].shape[1:])


def _alike(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta["val"], b.meta["val"]
    return (
        sizes(x.shape) == sizes(y.shape)
        and x.dtype == y.dtype
        and not any(isinstance(size, torch.SymInt) for size in x.shape)
    )


def _reader_of_layout(node: fx.Node) -> fx.Node | None:
    """Who reads it, or a view of it, and needs it to lie in one piece."""
    todo = [node]
    for each in todo:  # which grows as it is walked
        for user in each.users:
            if user.op == "output" or sees_layout(user, each.meta["val"]):
                return user
            if is_view(user):
                todo.append(user)
    return None


JOINED_PRODUCTS: Rules = (joined_products,)
