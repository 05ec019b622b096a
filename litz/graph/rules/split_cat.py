"""Splits and concatenations that undo each other.

In: a functional ATen graph. Out: the same without the detour through memory.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from litz.graph.pattern import ANY, Arg, Call, ListOf, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.sizes import sizes

aten = torch.ops.aten

_SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int)


def _dim(node: fx.Node, position: int, rank: int) -> int:
    given = node.args[position] if len(node.args) > position else node.kwargs.get("dim", 0)
    return int(given) % rank  # type: ignore[call-overload]


_PART = call(operator.getitem, Arg("whole"), Arg("part"), users=ANY)


@rule(call(aten.cat.default, ListOf(_PART), ..., users=ANY), any_size=True)
def cat_of_split(match: Match) -> Any:
    """All parts of a split, joined again in order: the tensor itself."""
    wholes = match["whole"]
    split = wholes[0]
    if any(w is not split for w in wholes) or split.target not in _SPLITS[:3]:
        return None
    rank = match.root.meta["val"].dim()
    if list(match["part"]) != list(range(len(split.meta["val"]))) or _dim(match.root, 1, rank) != _dim(split, 2, rank):
        return None
    return split.args[0]


@rule(
    call(
        operator.getitem,
        Call(
            _SPLITS[:2], (call(aten.cat.default, Arg("xs"), ..., users=ANY, name="cat"), ...), users=ANY, name="split"
        ),
        Arg("part"),
        users=ANY,
    ),
    any_size=True,
)
def split_of_cat(match: Match) -> Any:
    """A part of a split that is exactly one of the tensors joined before."""
    split, cat, part = match["split"], match["cat"], match["part"]
    rank = cat.meta["val"].dim()
    dim = _dim(cat, 1, rank)
    xs = [x for x in match["xs"] if x.meta["val"].dim() == rank]
    if _dim(split, 2, rank) != dim or len(xs) != len(match["xs"]):
        return None
    parts = sizes(v.shape[dim] for v in split.meta["val"])
    joined = sizes(x.meta["val"].shape[dim] for x in xs)
    if parts != joined:
        return match.miss(f"the parts have sizes {parts}, what was joined has {joined}")
    return xs[part]


@rule(call(aten.cat.default, Arg("xs"), ..., users=ANY), any_size=True)
def cat_of_cat(match: Match) -> Any:
    """Nested concatenations along one dimension."""
    rank = match.root.meta["val"].dim()
    dim = _dim(match.root, 1, rank)
    flat: list[fx.Node] = []
    for x in match["xs"]:
        inner = x.target is aten.cat.default and len(x.users) == 1 and _dim(x, 1, rank) == dim
        # What it joins was rounded to its type first.
        inner = inner and all(part.meta["val"].dtype == x.meta["val"].dtype for part in x.args[0])
        flat += list(x.args[0]) if inner else [x]
    if len(flat) == len(match["xs"]):
        return None
    return match.call(aten.cat.default, flat, dim)


SPLIT_CAT: Rules = (cat_of_split, split_of_cat, cat_of_cat)
