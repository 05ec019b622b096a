"""Common subexpressions: equal calls of pure operators become one.

In: a graph module. Out: the same with each value computed once, in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from litz.context import Context
from litz.graph.alias import escapes, is_pure, is_seen, is_view, read_in_backward
from litz.loop.exact import spelled


def merge_equal_calls(graph_module: fx.GraphModule, ctx: Context) -> int:
    """How many calls were merged."""
    seen: dict[Any, fx.Node] = {}
    merged = 0
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or not is_pure(node.target):
            continue
        key = (node.target, _key(node.args), _key(node.kwargs))
        first = seen.setdefault(key, node)
        if first is node:
            continue
        # Two results of the user's own may not become one tensor.
        if not is_view(node) and escapes(node):
            continue
        again = "in_backward" in node.meta and "in_backward" not in first.meta
        if not is_view(node) and _differs_by_then(node, first, again):
            continue
        if not ctx.spend(f"merge_equal_calls at {node.name}"):
            break
        if again:
            first.meta["in_backward"] = True
        node.replace_all_uses_with(first)
        graph_module.graph.erase_node(node)
        merged += 1
    if merged:
        ctx.fired("merge_equal_calls", __file__, merge_equal_calls.__code__.co_firstlineno, merged)
    return merged


def _differs_by_then(node: fx.Node, first: fx.Node, again: bool) -> bool:
    """Whether the user may write, before the backward runs, to what eager's backward makes the node from (`again`: it
    does), or to the result that would be kept for the backward in the node's place."""
    if again and any(is_seen(each) for each in node.all_input_nodes):
        return True
    return (again or read_in_backward(node)) and escapes(first)


def _key(value: Any) -> Any:
    """Hashable, and telling 1 from 1.0 and True, and 0.0 from -0.0."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, (list, tuple)):
        return ("list", *(_key(v) for v in value))
    if isinstance(value, dict):
        return ("dict", *((k, _key(v)) for k, v in sorted(value.items())))
    if isinstance(value, torch.Tensor):
        return id(value)
    return (type(value), spelled(value))
