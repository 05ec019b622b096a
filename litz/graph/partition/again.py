"""Which forward values the backward may compute again.

In: the forward's nodes, and the rules that hold. Out: the nodes that may not be computed again, each with the rule that
says so.

A rule is a row of `RULES`, and a field of `Rules`, which switches it on. What no rule forbids may still be impossible:
a draw of random numbers, a write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from litz.graph.alias import is_pure, is_view
from litz.graph.partition.sides import Sides
from litz.graph.sizes import likely
from litz.loop.draw import DRAW
from litz.options import RECOMPUTE_RULES

aten = torch.ops.aten


@dataclass(frozen=True)
class Rules:
    """What is not to be computed again, though it could be. `allowed`: operators that the caller takes to be cheap,
    besides those that fuse into whoever reads them."""

    not_in_allow_list: bool = True  # what does not fuse into its readers: products, reductions, scans
    reductions: bool = False  # a result of a fourth of the elements that went in, or fewer
    used_far_apart: bool = False  # what the forward itself reads much later: all in between would be computed again
    long_fusible_chains: bool = False  # more than so many operators in a row
    materialised_backward: bool = False  # what the backward would write to memory, for products to read
    allowed: frozenset[Any] = frozenset()

    @classmethod
    def of_option(cls, value: Mapping[str, bool] | str | None) -> Rules:
        if value == "aggressive":
            return AGGRESSIVE
        return cls(**dict(value or {}))  # type: ignore[arg-type]


# Cheap to compute again although not marked pointwise.
_LIGHT = {
    aten.clone.default, aten._to_copy.default, aten.full.default, aten.full_like.default, aten.zeros_like.default,
    aten.ones_like.default, aten.arange.default, aten.arange.start, aten.arange.start_step, aten.scalar_tensor.default,
    aten._unsafe_view.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.copy.default,
    aten.constant_pad_nd.default, aten.empty.memory_format, aten.zeros.default, aten.ones.default,
    aten.max_pool2d_with_indices.default,  # its indices are twice the size of its result
    DRAW,
}  # fmt: skip


def is_possible(node: fx.Node) -> bool:
    """Whether computing it twice gives the same, and does nothing else."""
    if node.op != "call_function":
        return node.op == "get_attr"
    if not isinstance(node.target, torch._ops.OpOverload):
        return True  # getitem: as its tuple
    return node.target is DRAW or (is_pure(node.target) and not _drops_out(node))


def _drops_out(node: fx.Node) -> bool:
    """Whether it is an attention that draws random numbers."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return bool(given.get("dropout_p", 0.0))


def fuses(node: fx.Node, allowed: frozenset[Any] = frozenset()) -> bool:
    """Whether computing it twice is cheap: what fuses into its readers, and draws no random number."""
    if node.op != "call_function":
        return node.op == "get_attr"
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True  # getitem: as its tuple
    if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable:
        return False
    if target in allowed or target.overloadpacket in allowed:
        return True
    return torch.Tag.pointwise in target.tags or is_view(node) or target in _LIGHT


# -- rules --------------------------------------------------------------------------------------
Forbidden = Callable[[Sequence[fx.Node], Sides, Rules], list[fx.Node]]
_FAR = 100  # operators of the forward
_LONG = 64  # operators of a chain


def _not_in_allow_list(nodes: Sequence[fx.Node], sides: Sides, rules: Rules) -> list[fx.Node]:
    return [n for n in nodes if not fuses(n, rules.allowed)]


def _reductions(nodes: Sequence[fx.Node], sides: Sides, rules: Rules) -> list[fx.Node]:
    def reduces(node: fx.Node) -> bool:
        given = sum(_elements(n) for n in node.all_input_nodes)
        return not is_view(node) and 4 * _elements(node) <= given

    return [n for n in nodes if n.op == "call_function" and reduces(n)]


def _used_far_apart(nodes: Sequence[fx.Node], sides: Sides, rules: Rules) -> list[fx.Node]:
    place = {node: at for at, node in enumerate(nodes)}

    def is_far(node: fx.Node) -> bool:
        readers = [place[u] for u in node.users if u in place and u in sides.ahead]
        return max(readers, default=0) - place[node] > _FAR

    return [n for n in nodes if not is_view(n) and is_far(n)]


def _long_fusible_chains(nodes: Sequence[fx.Node], sides: Sides, rules: Rules) -> list[fx.Node]:
    length: dict[fx.Node, int] = {}
    found = []
    for node in nodes:
        if not fuses(node, rules.allowed):
            continue
        behind = max((length.get(n, 0) for n in node.all_input_nodes), default=0)
        length[node] = behind + (not is_view(node))
        if length[node] > _LONG:
            found.append(node)
            length[node] = 0
    return found


def _materialised_backward(nodes: Sequence[fx.Node], sides: Sides, rules: Rules) -> list[fx.Node]:
    def is_written(node: fx.Node) -> bool:
        readers = [user for user in _readers(node) if user in sides.late]
        return bool(readers) and not is_view(node) and not any(fuses(u, rules.allowed) for u in readers)

    return [n for n in nodes if is_written(n)]


def _readers(node: fx.Node) -> list[fx.Node]:
    """Who reads it, be it through views."""
    return [reader for user in node.users for reader in (_readers(user) if is_view(user) else [user])]


# One row a rule: the field of `Rules`, and what it forbids.
RULES: dict[str, Forbidden] = {
    "not_in_allow_list": _not_in_allow_list,
    "reductions": _reductions,
    "used_far_apart": _used_far_apart,
    "long_fusible_chains": _long_fusible_chains,
    "materialised_backward": _materialised_backward,
}
AGGRESSIVE = Rules(**dict.fromkeys(RULES, False))  # type: ignore[arg-type]
assert {f.name for f in dataclasses.fields(Rules)} == {*RULES, "allowed"} == {*RECOMPUTE_RULES, "allowed"}


def forbidden(nodes: Sequence[fx.Node], sides: Sides, rules: Rules) -> dict[fx.Node, str]:
    """Those that may not be computed again, and the first of the rules that says so."""
    found: dict[fx.Node, str] = {}
    for name, rule in RULES.items():
        if getattr(rules, name):
            found = dict.fromkeys(rule(nodes, sides, rules), name) | found
    return found


def _elements(node: fx.Node) -> int:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return sum(likely(value.numel()) for value in leaves if isinstance(value, torch.Tensor))


__all__ = ["AGGRESSIVE", "RULES", "Rules", "forbidden", "fuses", "is_possible"]
