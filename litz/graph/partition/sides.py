"""What a forward value may be made again from, and by whom.

In: a joint graph. Out: `Sides`.

Arguments and results are the caller's, who may write to them before the backward runs. Eager's formulas read some of
them there, and so may Litz; but a value that eager took from them in the forward is kept, never made again from what
they hold by then. Who asks for a checkpoint or a bound on memory asks for that too: then they are read once more, as
`torch.utils.checkpoint` does, and autograd raises if they were written to meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch import fx

from litz.graph.alias import CHECKS, base
from litz.graph.signature import Joint

aten = torch.ops.aten


@dataclass(frozen=True)
class Sides:
    alive: set[fx.Node]  # inputs that keep their value, and so cost nothing
    seen: set[fx.Node]  # tensors that the caller holds, and may write to
    late: set[fx.Node]  # what only the backward can compute
    ahead: set[fx.Node]  # what the results of the forward are made of
    read_again: bool = False  # what the caller holds may be read once more

    def owner(self, node: fx.Node) -> fx.Node:
        """The node that is kept where this one is read: a view of the caller's memory is the caller's."""
        whole = base(node)
        return whole if whole in self.seen else node

    def reads_what_is_seen(self, user: fx.Node) -> bool:
        """Whether it may read arguments and results as they are in the backward."""
        return self.read_again or user in self.late or is_backward(user) or "checkpoint" in user.meta

    def only_in_backward(self, node: fx.Node) -> bool:
        return node in self.late or (is_backward(node) and node not in self.ahead)

    def read_by_then(self, nodes: Iterable[fx.Node]) -> set[fx.Node]:
        """Of these, in graph order, what eager's backward makes of the caller's tensors: not to be made before."""
        found: set[fx.Node] = set()
        for node in nodes:
            if self.only_in_backward(node) and any(
                used in found or self.owner(used) in self.seen for used in node.all_input_nodes
            ):
                found.add(node)
        return found


def sides_of(joint: Joint, read_again: bool = False) -> Sides:
    nodes = joint.graph.graph.nodes
    placeholders = [n for n in nodes if n.op == "placeholder"]
    primals, tangents = placeholders[: joint.primals], placeholders[joint.primals :]
    (output,) = (n for n in nodes if n.op == "output")
    results = [n for n in output.args[0][: joint.forward_outputs] if isinstance(n, fx.Node)]
    drawn = [n for n in nodes if is_backward(n) and must_run(n)]
    inputs = joint.signature.inputs
    # What is written to through `.data` eager's formulas read as it is by then.
    alive = {p for p, spec in zip(primals, inputs, strict=True) if not spec.mutated or not spec.counted}
    # Those that follow are copied into the inputs they are new values of.
    returned = {base(n) for n in output.args[0][: joint.signature.results] if isinstance(n, fx.Node)}
    seen = alive | {n for n in returned if n not in primals}
    return Sides(alive, seen, descendants([*tangents, *drawn]), ancestors(results), read_again)


def is_backward(node: fx.Node) -> bool:
    """Whether eager computes it in the backward, be it for the second time."""
    return bool(node.meta.get("in_backward"))


def must_run(node: fx.Node) -> bool:
    """Writes to inputs, and random draws: those after them depend on their having happened; and what may raise."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target is aten.copy_.default or torch.Tag.nondeterministic_seeded in target.tags or target in CHECKS


def descendants(roots: list[fx.Node]) -> set[fx.Node]:
    found = set(roots)
    todo = list(roots)
    while todo:
        for user in todo.pop().users:
            if user not in found and user.op != "output":
                found.add(user)
                todo.append(user)
    return found


def ancestors(roots: list[fx.Node], stop: Collection[fx.Node] = ()) -> set[fx.Node]:
    """The nodes and all they are made of, without going past `stop`."""
    found = {n for n in roots if n not in stop}
    todo = list(found)
    while todo:
        for other in todo.pop().all_input_nodes:
            if other not in found and other not in stop:
                found.add(other)
                todo.append(other)
    return found


__all__ = ["Sides", "ancestors", "descendants", "is_backward", "must_run", "sides_of"]
