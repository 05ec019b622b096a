"""Which values are the same at every call of a frozen program: those computed of frozen inputs alone.

In: a node. Out: whether it is such a value. Nothing is evaluated: what holds here holds for all weights of that form.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import lru_cache
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
    target, value = node.target, node.meta.get("val")
    if target is operator.getitem:
        return None
    values = (value,) if isinstance(value, torch.Tensor) else pytree.tree_leaves(value)
    if not isinstance(target, torch._ops.OpOverload) or not all(isinstance(x, torch.Tensor) for x in values):
        return False
    if not _gives_the_same(target):
        return False
    return False if _is_symbolic((node.args, node.kwargs, [tuple(x.shape) for x in values])) else None


@lru_cache(maxsize=None)
def _gives_the_same(target: torch._ops.OpOverload) -> bool:
    """Whether the operator computes, of equal arguments, equal results."""
    if not is_pure(target) or torch.Tag.nondeterministic_bitwise in target.tags or "empty" in target.name():
        return False
    return depends_on_memory(target) is None


def _is_symbolic(value: Any) -> bool:
    """Whether it has a symbolic number in it. Asked of every node for every rule that tries it."""
    if isinstance(value, (tuple, list)):
        return any(map(_is_symbolic, value))
    if isinstance(value, Mapping):
        return any(map(_is_symbolic, value.values()))
    return isinstance(value, SYMBOLIC)


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
