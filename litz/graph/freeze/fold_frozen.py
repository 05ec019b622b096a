"""Fold: what follows a product with constant weights, and is as constant, becomes part of the weights.

In: a `Joint` with inputs marked as frozen. Out: the same one, with fewer operators. What is computed of constants
stands in the graph like anything else, in float64 where it is folded, and is rounded once; `hoist` takes it out.

Two kinds of folding feed each other, and so alternate: an operator that disappears leaves the next one behind the
product, and parts that depend on nothing become constants to fold with.
"""

from __future__ import annotations

from litz.context import Context
from litz.graph.cse import merge_equal_calls
from litz.graph.freeze.frozen import FROZEN
from litz.graph.rewrite import apply_rules
from litz.graph.rules import FOLDING, JOINED_PRODUCTS
from litz.graph.rules.constants import fold_constants
from litz.graph.signature import Joint

MAX_ROUNDS = 4


def fold_frozen(joint: Joint, ctx: Context) -> Joint:
    graph = joint.graph
    if not any(FROZEN in node.meta for node in graph.graph.nodes if node.op == "placeholder"):
        return joint
    for _ in range(MAX_ROUNDS):
        folded = apply_rules(graph, FOLDING, ctx, recompile=False).fired
        if not folded + fold_constants(graph, ctx):
            break
    apply_rules(graph, JOINED_PRODUCTS, ctx, recompile=False)
    merge_equal_calls(graph, ctx)
    graph.recompile()
    return joint


__all__ = ["fold_frozen"]
