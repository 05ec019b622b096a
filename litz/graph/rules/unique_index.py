"""Indices that are known to differ from each other: no accumulation is needed.

In: a functional ATen graph. Out: the same, where `index_add` and an accumulating `index_put` at the indices
of a permutation (or of part of one) became a read, a sum and a plain write, which run in parallel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule

aten = torch.ops.aten

_RANDPERM = (aten.randperm.default, aten.randperm.generator)
_PARTS = (
    aten.slice.Tensor,
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.flip.default,
    aten.view.default,
)


def is_unique(match: Match, node: Any) -> bool:
    """Whether no element occurs twice: part of a random permutation, or a constant that shows it."""
    if not isinstance(node, fx.Node) or node.meta["val"].dtype not in (torch.int64, torch.int32):
        return False
    known = match.constants.whole(node)
    if known is not None:
        # Minus one is the last element: only indices of one sign are told apart by their values.
        return known.unique().numel() == known.numel() and bool((known >= 0).all())
    while node.target in _PARTS:
        node = node.args[0]
    return node.target in _RANDPERM


@rule(
    call(aten.index_add.default, Arg("x"), Arg("dim"), Arg("index"), Arg("source"), alpha=Arg("alpha"), users=ANY),
    any_size=True,
)
def index_add_unique(match: Match) -> Any:
    x, index, source = match["x"], match["index"], match["source"]
    if index.meta["val"].dim() != 1 or not is_unique(match, index):
        return None
    rank = x.meta["val"].dim()
    where = [None] * (match["dim"] % rank) + [index]
    old = match.call(aten.index.Tensor, x, where)
    total = match.call(aten.add.Tensor, old, source, alpha=match["alpha"])
    return match.call(aten.index_put.default, x, where, total, False)


_PUT = (aten.index_put.default, aten._unsafe_index_put.default)


@rule(call(_PUT, Arg("x"), Arg("where"), Arg("v"), True, users=ANY), any_size=True)
def index_put_unique(match: Match) -> Any:
    """What the backward of `x[permutation]` is."""
    x, where = match["x"], match["where"]
    indices = [i for i in where if i is not None]
    if len(indices) != 1 or not is_unique(match, indices[0]):
        return None
    value = match["v"]
    if match.uniform(x) != 0:
        value = match.call(aten.add.Tensor, match.call(aten.index.Tensor, x, list(where)), value)
    elif value.meta["val"].dtype != x.meta["val"].dtype:
        return None
    elif value.meta["val"].is_floating_point():
        value = match.call(aten.add.Tensor, value, 0.0)  # as zero and minus zero are zero
    return match.call(match.root.target, x, list(where), value, False)


UNIQUE_INDEX: Rules = (index_add_unique, index_put_unique)
