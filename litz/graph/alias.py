"""Whose memory a node is: what a rewrite must know before it hands out an existing tensor for a fresh one.

In: a node of a functional graph. Out: the node that owns its memory, and whether that memory reaches the
user. `x - 0` may become `x` inside a graph, but not where the user would receive his own input back as a
result that used to be a tensor of its own.
"""

from __future__ import annotations

import operator
from functools import lru_cache

import torch
from torch import fx

from litz.loop.operator import returns_view
from litz.ops import int8
from litz.ops.layout import depends_on_memory

aten = torch.ops.aten

# Results that share memory although the schema does not say so.
_UNDECLARED = {aten._unsafe_view.default, aten._reshape_alias.default}

# In the `meta` of a node: it was written so as to be computed again, wherever it is read, and is not to be kept.
COMPUTED_AGAIN = "computed_again"

_PURE = ("aten", "prims", "quantized_decomposed")  # namespaces in which what is not pure says so

# They give nothing back: they are there to raise.
CHECKS = frozenset({aten._linalg_check_errors.default, aten._assert_async.default, aten._assert_async.msg})


@lru_cache(maxsize=None)
def is_pure(target: object) -> bool:
    """Whether a call can be removed when nobody uses its result, and repeated at will."""
    if target is operator.getitem:
        return True
    if target in int8.OPERATORS:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target._schema.is_mutable or target.namespace not in _PURE or target in CHECKS:
        return False
    # Fused attention is marked random for its dropout, which the graphs here never ask it for.
    return torch.Tag.nondeterministic_seeded not in target.tags or "_scaled_dot_product_" in target._schema.name


def is_view(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])  # type: ignore[arg-type]
    return node.target in _UNDECLARED or returns_view(node.target)


def base(node: fx.Node) -> fx.Node:
    """The node whose memory this one looks at."""
    while is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def escapes(node: fx.Node) -> bool:
    """Whether the node's memory, itself or through views, is returned by the graph."""
    todo, seen = [node], {node}
    while todo:
        for user in todo.pop().users:
            if user.op == "output":
                return True
            # One of several results is memory of the call's own.
            if user not in seen and (is_view(user) or user.target is operator.getitem):
                seen.add(user)
                todo.append(user)
    return False


def counts_in_memory(node: fx.Node) -> bool:
    """Whether what a call gives depends on where its arguments begin, and on what lies around them."""
    if isinstance(node.target, torch._ops.OpOverload):
        return depends_on_memory(node.target) is not None
    # Before autograd the functions are torch's own, and most are taken apart later.
    return any(word in str(node.target) for word in ("strided", "resize", "view_as"))


def is_looked_around(node: fx.Node) -> bool:
    """Whether the node is a part of some memory, and a reader counts in all of it."""
    if base(node) is node:
        return False
    todo, seen = [node], {node}
    while todo:
        for user in todo.pop().users:
            if counts_in_memory(user):
                return True
            if user not in seen and is_view(user):
                seen.add(user)
                todo.append(user)
    return False


def is_seen(node: fx.Node) -> bool:
    """Whether the node's memory is an argument's, or returned by the graph."""
    owner = base(node)
    return owner.op == "placeholder" or escapes(owner)


def read_in_backward(node: fx.Node) -> bool:
    """Whether eager's backward reads the node's memory, itself or through views."""
    todo, seen = [node], {node}
    while todo:
        for user in todo.pop().users:
            if "in_backward" in user.meta:
                return True
            if user not in seen and is_view(user):
                seen.add(user)
                todo.append(user)
    return False


def may_stand_for(existing: fx.Node, old: fx.Node) -> bool:
    """Whether `existing` may take the place of `old` without the user noticing shared memory: it would be his to write
    to as a result, or be kept for the backward though he may write to it meanwhile."""
    owner = base(existing)
    if owner is base(old):
        return True
    seen = is_seen(owner)
    if escapes(old) and (seen or owner.op == "get_attr"):
        return False
    if "in_backward" in old.meta:
        return True
    return not (read_in_backward(old) if seen else escapes(old) and read_in_backward(owner))
