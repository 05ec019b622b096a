"""The split for graphs of others: a joint graph module in PyTorch's convention, to a forward and a backward in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import fx
from torch.utils import _pytree as pytree

from litz.errors import OptionError
from litz.graph.module import copied, graph_module
from litz.graph.partition.again import AGGRESSIVE, RULES, Rules
from litz.graph.partition.cost import CORE, Cost, at_ceilings
from litz.graph.partition.extract import Split, split_at
from litz.graph.partition.knapsack import SOLVERS
from litz.graph.partition.sides import sides_of
from litz.graph.partition.split import Policy, choose
from litz.graph.signature import Input, Joint, Signature


def min_cut_rematerialization_partition(
    joint: fx.GraphModule,
    joint_inputs: Any = None,
    *,
    num_fwd_outputs: int,
    recomputable_ops: Iterable[Any] | None = None,
    memory_budget: float = 1.0,
    solver: str = "dp",
    aggressive: bool = False,
    cost: Cost | None = None,
    static_lifetime_input_indices: Any = None,
    **rules: bool,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """A joint graph as forward and backward.

    The graph is functional; its inputs are those of the forward, then the tangents, whose names contain "tangents";
    its outputs are `num_fwd_outputs` of the forward, then the gradients. Nodes have their fake values in `meta["val"]`.
    The forward also returns what is kept: tensors, then sizes; the backward takes sizes, tensors, tangents. That is
    PyTorch's convention, so that this function can be given to whoever takes a partitioner.

    `recomputable_ops` are cheap to compute again, besides what fuses into its readers. `rules` switch those of
    `Rules` on or off by name; `aggressive` switches all off. `memory_budget`: of the bytes that are kept then, a
    fraction, found by `solver` ("dp", "greedy", "ilp"), where computing a node again takes the seconds that `cost`
    says of it.
    """
    if not isinstance(memory_budget, (int, float)) or not 0 <= memory_budget <= 1:
        raise OptionError(f"memory_budget is a number from 0 to 1, not {memory_budget!r}")
    if solver not in SOLVERS:
        raise OptionError(f"solver is one of {', '.join(SOLVERS)}, not {solver!r}")
    unknown = set(rules) - set(RULES)
    if unknown:
        raise OptionError(
            f"there is no rule {min(unknown)!r} of what is not computed again", hint=f"the rules are {', '.join(RULES)}"
        )
    usual = AGGRESSIVE if aggressive else Rules()
    stated = replace(usual, allowed=frozenset(recomputable_ops or ()), **rules)
    whole = _as_joint(joint, num_fwd_outputs)
    sides = sides_of(whole, read_again=True)
    policy = Policy(stated, float(memory_budget), solver, at_ceilings(CORE) if cost is None else cost, strict=True)
    kept = choose(whole, sides, policy).kept
    return _in_their_order(whole, split_at(whole, sides, kept))


def _as_joint(module: fx.GraphModule, forward_outputs: int) -> Joint:
    """A copy: splitting writes into the graph."""
    graph = copied(module.graph)
    (output,) = (n for n in graph.nodes if n.op == "output")
    output.args = (pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None),)
    module = graph_module(module, graph)
    given = [n for n in graph.nodes if n.op == "placeholder"]
    primals = [n for n in given if "tangents" not in str(n.target)]
    if given[: len(primals)] != primals:
        raise OptionError("the joint graph's tangents come before some of its other inputs")
    gradients = len(output.args[0]) - forward_outputs
    signature = Signature(tuple(Input() for _ in primals), (), forward_outputs, ())
    return Joint(module, signature, len(primals), forward_outputs, tuple(range(gradients)))


def _in_their_order(joint: Joint, split: Split) -> tuple[fx.GraphModule, fx.GraphModule]:
    """What is kept as results of the forward one by one, tensors first; and numbers first in the backward."""
    graph = split.forward.graph
    (output,) = (n for n in graph.nodes if n.op == "output")
    results = list(output.args[0])
    own, rest = results[: joint.forward_outputs], results[joint.forward_outputs :]
    given = [n for n in graph.nodes if n.op == "placeholder"]
    tensors = [*(given[i] for i in split.saved_primals), *(own[i] for i in split.saved_results), *rest[: split.saved]]
    output.args = ((*own, *tensors, *rest[split.saved :]),)
    split.forward.recompile()
    taken = [n for n in split.backward.graph.nodes if n.op == "placeholder"][: split.taken]
    for number in reversed(taken[len(tensors) :]):
        next(iter(split.backward.graph.nodes)).prepend(number)
    split.backward.recompile()
    return split.forward, split.backward


__all__ = ["min_cut_rematerialization_partition"]
