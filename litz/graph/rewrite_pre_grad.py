"""Rewriting before autograd: the torch-level graph that Dynamo captured.

In: the function that is to be traced, the `forward` of a graph module. Out: the same one, or that of a
rewritten copy. What is rewritten here is differentiated afterwards, so that the backward comes out right by
itself; but the graph is not functional, and every rule must hold under mutation and aliasing.

With `verify`, the graph is run before and after on the inputs, and must give the same numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_flatten, tree_map

from litz.context import Context
from litz.errors import VerifyError
from litz.graph.module import graph_module
from litz.graph.mutation import is_dead
from litz.graph.normalise import canonical, normalise
from litz.graph.pattern import root_of
from litz.graph.rewrite import Rules, apply_rules, for_stage
from litz.graph.rules import PRE_GRAD

Function = Callable[..., Any]


def _roots(rules: Rules) -> set[Any]:
    return {target for rule in rules for target in root_of(rule.pattern).targets}


# A graph without any of these is not looked at. Taking a part is everywhere, and of interest only beside a join.
_ROOTS = _roots(PRE_GRAD) - {operator.getitem}


def rewrite_pre_grad(function: Function, inputs: Sequence[Any], ctx: Context) -> Function:
    module = getattr(function, "__self__", None)
    if not isinstance(module, fx.GraphModule):
        return function
    changed = rewritten(module, ctx)
    if changed is None:
        return function
    if ctx.options.verify:
        check_numbers(module, changed, inputs)
    return changed.forward


def rewritten(module: fx.GraphModule, ctx: Context) -> fx.GraphModule | None:
    """A copy with the rules applied, to its subgraphs first; None if none holds."""
    inner = {
        name: rewritten(child, ctx) for name, child in module.named_children() if isinstance(child, fx.GraphModule)
    }
    changes = {name: child for name, child in inner.items() if child is not None}
    own = for_stage(ctx.options.rules, "rewrite_pre_grad")
    roots = _ROOTS | _roots(own) if own else _ROOTS
    if not changes and not any(canonical(node) in roots for node in module.graph.nodes):
        return None
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    next(iter(reversed(graph.nodes))).meta = dict(next(iter(reversed(module.graph.nodes))).meta)
    normalise(graph)
    for node in graph.nodes:
        node.meta["val"] = node.meta.get("example_value")
    copy = graph_module(module, graph)
    for name, child in changes.items():
        setattr(copy, name, child)
    if not apply_rules(copy, own + PRE_GRAD, ctx, recompile=False, subgraphs=False).fired and not changes:
        return None
    for node in reversed(list(graph.nodes)):
        if is_dead(node):
            graph.erase_node(node)
    copy.recompile()
    return copy


def check_numbers(before: fx.GraphModule, after: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Runs both on copies of the inputs, with the same random numbers. Inputs without data prove nothing."""
    if any(isinstance(x, (FakeTensor, torch.SymInt)) for x in inputs):
        return
    results = []
    with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
        seed = torch.random.initial_seed()
        for module in (before, after):
            torch.manual_seed(seed)
            given = tree_map(lambda x: _copied(x) if isinstance(x, torch.Tensor) else x, list(inputs))
            results.append([x for x in tree_flatten((module(*given), given))[0] if isinstance(x, torch.Tensor)])
    for old, new in zip(*results, strict=True):
        try:
            loose = 2e-2 if old.dtype in (torch.bfloat16, torch.float16) else 1e-3
            torch.testing.assert_close(new, old, rtol=loose, atol=loose, equal_nan=True)
        except AssertionError as error:
            raise VerifyError(
                f"rewriting before autograd changed a result: {error}", stage="rewrite_pre_grad"
            ) from None


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that may be written to, and that learns if the tensor does: which kernel runs may depend on it."""
    return tensor.detach().requires_grad_(tensor.requires_grad).clone()
