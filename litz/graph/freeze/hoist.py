"""Hoist: what a frozen program computes of its constants is taken out of it, and done once.

In: a `Joint` with inputs marked as frozen. Out: one without them among its arguments: its graph has an input for each
constant that it reads, the signature knows the other arguments alone, and a `Recipe` says how the constants come about.

Views of constants stay in the program, where they cost nothing. So does what would take more memory as a constant than
all that it is made of.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.context import Context
from litz.graph.alias import escapes, is_looked_around, is_view
from litz.graph.editor import inherit
from litz.graph.freeze.frozen import FROZEN, RELIED_ON, bytes_of, is_frozen, sources
from litz.graph.recipe import Argument, Computed, Constant, Recipe, Step
from litz.graph.signature import Joint, without_inputs
from litz.ops.held import CONSTANT

_GROWTH, _SMALL = 2, 1 << 20  # bytes: a constant may take as much more than what it is made of


def hoist(joint: Joint, ctx: Context) -> Joint:
    inputs = [node for node in joint.graph.graph.nodes if node.op == "placeholder"]
    marked = [place for place, node in enumerate(inputs) if FROZEN in node.meta]
    if not marked:
        return joint
    arguments = joint.signature.places or tuple(range(len(inputs)))
    frozen = tuple(place for place, at in enumerate(arguments) if at in marked)
    first = {at: arguments.index(at) for at in marked}
    again = tuple((place, first[arguments[place]]) for place in frozen if place != first[arguments[place]])
    hoisting = _Hoisting(joint.graph, {inputs[at]: first[at] for at in marked}, ctx)
    hoisting.run()
    kept = tuple(place for place, at in enumerate(arguments) if at not in marked)
    zeros = tuple(first[at] for at in marked if RELIED_ON in inputs[at].meta)
    recipe = Recipe(kept, frozen, again, tuple(hoisting.steps), tuple(hoisting.constants), zeros)
    if ctx.freezing is not None:
        ctx.freezing = ctx.freezing._replace(
            kept=kept, frozen=len(frozen), constants=len(recipe.constants), computed=hoisting.computed
        )
    signature = without_inputs(joint.signature, frozenset(marked))
    return replace(joint, signature=signature, primals=len(inputs) - len(marked), recipe=recipe)


class _Hoisting:
    """One walk over the graph. `places`: the frozen inputs, and which arguments of the caller's they are."""

    def __init__(self, graph_module: fx.GraphModule, places: dict[fx.Node, int], ctx: Context):
        self.graph_module, self.graph, self.places, self.ctx = graph_module, graph_module.graph, places, ctx
        self.known: dict[fx.Node, bool] = {}
        self.steps: list[Step] = []
        self.constants: list[Constant] = []
        self.computed = 0
        self.references: dict[fx.Node, Any] = {}

    def run(self) -> None:
        last = [node for node in self.graph.nodes if node.op == "placeholder"][-1]
        for node in self._boundary():
            if not self.ctx.spend(f"hoist at {node.name}"):
                break
            with self.graph.inserting_after(last):
                last = self.graph.placeholder(f"constant_{len(self.constants)}")
            inherit(last, node)
            last.meta["val"], last.meta[CONSTANT] = node.meta["val"], len(self.constants)
            self._keep(node, self._reference(node))
            self.references[last] = self.references[node]
            node.replace_all_uses_with(last)
            self.computed += 1
            self.ctx.fired("hoist", __file__, hoist.__code__.co_firstlineno)
        for node in reversed(list(self.graph.nodes)):
            if not node.users and (node in self.places or self.known.get(node)) and node.op != "output":
                self.graph.erase_node(node)
            elif node in self.places:
                node.meta[CONSTANT] = len(self.constants)
                self._keep(node, Argument(self.places[node]))
        self.graph_module.recompile()

    def _keep(self, node: fx.Node, value: Argument | Computed) -> None:
        fake = node.meta["val"]
        self.constants.append(Constant(value, tuple(map(int, fake.shape)), tuple(map(int, fake.stride()))))

    def _boundary(self) -> list[fx.Node]:
        """What is computed of constants alone, and read by what is not."""
        found: dict[fx.Node, None] = {}
        for node in self.graph.nodes:
            if is_frozen(node, self.known):
                continue
            todo = [used for used in node.all_input_nodes if is_frozen(used, self.known)]
            seen = set(todo)
            while todo:
                top = todo.pop()
                if self._may_be_constant(top):
                    found[top] = None
                    continue
                # Computed at each call: what it is made of may still be a constant.
                more = [used for used in top.all_input_nodes if used not in seen]
                seen.update(more)
                todo += more
        return list(found)

    def _may_be_constant(self, node: fx.Node) -> bool:
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return False  # one of several results is
        if node.op != "call_function" or is_view(node) or escapes(node) or is_looked_around(node):
            return False
        made_of = sources(node) & self.places.keys()
        most = _GROWTH * sum(bytes_of(source.meta["val"]) for source in made_of) + _SMALL
        return bool(made_of) and bytes_of(node.meta["val"]) <= most

    def _reference(self, node: fx.Node) -> Any:
        """How the recipe names it; the steps to it are added."""
        todo = [node]
        while todo:
            top = todo[-1]
            waiting = [] if top.op != "call_function" else [n for n in top.all_input_nodes if n not in self.references]
            if top in self.references or waiting:
                todo = todo[:-1] if top in self.references else todo + waiting
                continue
            todo.pop()
            if top.op == "placeholder":
                self.references[top] = Argument(self.places[top])
            elif top.op == "get_attr":
                self.references[top] = getattr(self.graph_module, str(top.target)).detach()
            elif top.target is operator.getitem:
                self.references[top] = replace(self.references[top.args[0]], index=top.args[1])
            else:
                args, kwargs = fx.node.map_arg((top.args, dict(top.kwargs)), self.references.__getitem__)
                assert isinstance(top.target, torch._ops.OpOverload)
                self.steps.append(Step(top.target, _plain(args), _plain(kwargs)))
                self.references[top] = Computed(len(self.steps) - 1)
        return self.references[node]


def _plain(value: Any) -> Any:
    """In Python's own containers."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(_plain, value)) if type(value) in (tuple, list) else list(map(_plain, value))
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


__all__ = ["hoist"]
