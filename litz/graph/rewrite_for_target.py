"""Rewriting for one machine: what is the same in numbers, and pays on some only.

In: a `Joint`, after all other rewriting of the whole step and before it is split. Out: the same, with the rules of the
machine it is compiled for applied. What is done here both sides of the split see: a padded product is padded for all
who read it, and what is cheap to compute again is not kept.
"""

from __future__ import annotations

from litz.context import Context
from litz.graph.cse import merge_equal_calls
from litz.graph.rewrite import apply_rules
from litz.graph.rules import FOR_TARGET
from litz.graph.signature import Joint


def rewrite_for_target(joint: Joint, ctx: Context) -> Joint:
    fired = [apply_rules(joint.graph, rules, ctx, recompile=False).fired for rules in FOR_TARGET[ctx.target.device]]
    if any(fired):
        merge_equal_calls(joint.graph, ctx)
        joint.graph.recompile()
    return joint


__all__ = ["rewrite_for_target"]
