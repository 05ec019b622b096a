"""Rewriting after the split: what only one side shows.

In: the graph of a forward, a backward, or an inference. Out: the same one, cleaned in place: views, casts
and copies that partitioning left, equal calls, dead code.
"""

from __future__ import annotations

from torch import fx

from litz.context import Context
from litz.graph.cse import merge_equal_calls
from litz.graph.rewrite import apply_rules, for_stage
from litz.graph.rules import GPU, NOOP, POST_GRAD


def rewrite_post_grad(graph: fx.GraphModule, ctx: Context) -> fx.GraphModule:
    own = for_stage(ctx.options.rules, "rewrite_post_grad")
    apply_rules(graph, own + POST_GRAD, ctx, recompile=False)
    merge_equal_calls(graph, ctx)
    graph.recompile()
    return graph


def rewrite_inference(graph: fx.GraphModule, ctx: Context) -> fx.GraphModule:
    """There is no split, which leaves nothing to clean: what is left to do is what only the last graph shows."""
    own = for_stage(ctx.options.rules, "rewrite_post_grad")
    if apply_rules(graph, own + GPU, ctx, recompile=False).fired:
        apply_rules(graph, NOOP, ctx, recompile=False)
        graph.recompile()
    return graph
