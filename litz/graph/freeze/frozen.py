"""Which values are the same at every call of a frozen program: those computed of frozen inputs alone.

In: a node. Out: whether it is such a value. Nothing is evaluated: what holds here holds for all weights of that form.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from litz.graph.alias import is_pure
from litz.graph.sizes import SYMBOLIC
from litz.ops.layout import depends_on_memory

# In the `meta` of a placeholder:
FROZEN = "frozen"  # a parameter or buffer that nobody writes to
ZERO = "zero"  # one of these that is zero throughout, as it is now
RELIED_ON = "relied_on"  # a rewrite has made use of that
_OWN_CONSTANTS = ("_tensor_constant", "_litz_constant")  # what tracing and rewriting made


def is_frozen(node: fx.Node, known: dict[fx.Node, bool]) -> bool:
    """`known`: what was found out about others, to be kept while the graph only has values replaced by equal ones."""
    todo = [node]
    while todo:
        top = todo[-1]
        if top in known:
            todo.pop()
            continue
        answer = _by_itself(top)
        if answer is None:
            found = [known.get(used) for used in top.all_input_nodes]
            if None in found and False not in found:
                todo += [used for used in top.all_input_nodes if used not in known]
                continue
            answer = False not in found
        known[top] = answer
        todo.pop()
    return known[node]


def _by_itself(node: fx.Node) -> bool | None:
    """None where it depends on what the node is computed of."""
    if node.op == "placeholder":
        return FROZEN in node.meta
    if node.op == "get_attr":
        return str(node.target).startswith(_OWN_CONSTANTS) or bool(node.meta.get("literal"))
    target, values = node.target, pytree.tree_leaves(node.meta.get("val"))
    if target is operator.getitem:
        return None
    if not isinstance(target, torch._ops.OpOverload) or not all(isinstance(x, torch.Tensor) for x in values):
        return False
    if not is_pure(target) or torch.Tag.nondeterministic_bitwise in target.tags or "empty" in target.name():
        return False
    if depends_on_memory(target) is not None:
        return False
    leaves = pytree.tree_leaves((node.args, node.kwargs, [tuple(x.shape) for x in values]))
    return False if any(isinstance(leaf, SYMBOLIC) for leaf in leaves) else None


def sources(node: fx.Node) -> set[fx.Node]:
    """The frozen inputs that it is computed of."""
    todo, seen = [node], {node}
    while todo:
        for used in todo.pop().all_input_nodes:
            if used not in seen:
                seen.add(used)
                todo.append(used)
    return {each for each in seen if each.op == "placeholder"}


def bytes_of(value: Any) -> int:
    return value.numel() * value.element_size()


__all__ = ["FROZEN", "RELIED_ON", "ZERO", "bytes_of", "is_frozen", "sources"]
