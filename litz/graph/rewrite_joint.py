"""Rewriting the joint graph: forward and backward in one, or the forward alone in inference.

In: a `Joint`. Out: the same one, its graph rewritten in place: constants folded, the user's rules and then
the built-in ones applied until none holds, equal calls merged.
"""

from __future__ import annotations

from litz.context import Context
from litz.graph.cse import merge_equal_calls
from litz.graph.rewrite import apply_rules, for_stage
from litz.graph.rules import ATTENTION_TRAINING, JOINT, QUANTISED
from litz.graph.rules.constants import fold_constants
from litz.graph.rules.quantised_formulas import quantised_formulas
from litz.graph.signature import Joint


def rewrite_joint(joint: Joint, ctx: Context) -> Joint:
    own = for_stage(ctx.options.rules, "rewrite_joint")
    formulas = quantised_formulas(joint.graph.graph)
    rules = own + JOINT + formulas
    # The user's rules first, on the graph as it was written.
    apply_rules(joint.graph, own, ctx, recompile=False)
    if joint.gradient_of:
        # While the backward is still as autograd made it: the rule recognises it by making it again.
        apply_rules(joint.graph, ATTENTION_TRAINING, ctx, recompile=False)
    if formulas:
        # Before what quantises and dequantises is taken apart.
        apply_rules(joint.graph, QUANTISED, ctx, recompile=False)
    # Equal calls first: what the layers share is then looked at once.
    merge_equal_calls(joint.graph, ctx)
    # Rules before folding: a mask that is folded to a stored tensor is still proved, but folding it would be wasted.
    apply_rules(joint.graph, rules, ctx, recompile=False)
    if fold_constants(joint.graph, ctx):
        apply_rules(joint.graph, rules, ctx, recompile=False)
    merge_equal_calls(joint.graph, ctx)
    if ctx.options.verify:
        joint.graph.graph.lint()
    joint.graph.recompile()
    return joint
