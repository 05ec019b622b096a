"""What the user asked to be computed again: regions under `torch.utils.checkpoint`.

In: a joint graph, whose nodes say which region recorded them, and which of them a policy keeps. Out: `Regions`.

What leaves a region is kept if the backward needs it, and so is what cannot be computed again: a random draw is made
once. A region within another belongs to the outer one.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import fx

from litz.graph.alias import base
from litz.graph.partition.again import is_possible
from litz.graph.partition.sides import is_backward
from litz.graph.signature import Joint

REGION = "checkpoint"  # in the `meta` of a node: the number of its region
KEPT = "checkpoint_keeps"  # and: the user's own policy keeps it


class Regions(NamedTuple):
    again: frozenset[fx.Node]  # made again from what is kept, whatever it costs
    kept: frozenset[fx.Node]  # never made again, or region after region would be, from the first


def regions_of(joint: Joint) -> Regions:
    inside = [n for n in joint.graph.graph.nodes if REGION in n.meta and not is_backward(n)]
    leaving = {base(n) for n in inside if any(_leaves(n, user) for user in n.users)}
    kept = leaving | {n for n in inside if KEPT in n.meta}
    return Regions(frozenset(n for n in inside if n not in kept and is_possible(n)), frozenset(kept))


def _leaves(node: fx.Node, user: fx.Node) -> bool:
    """Whether the user is code behind the region, and not the region's own backward."""
    return not is_backward(user) and user.meta.get(REGION) != node.meta[REGION]


__all__ = ["KEPT", "REGION", "Regions", "regions_of"]
