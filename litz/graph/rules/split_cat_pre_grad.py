"""Splits and concatenations that undo each other, before autograd: their backward is never made.

In: a torch-level graph, normalised. Out: the same without the detour. A tensor takes the place of a copy of
itself only where nobody writes afterwards, and where the copy's memory does not reach the user.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from litz.graph.editor import same_layout
from litz.graph.mutation import disturbed, looked_around, shared_with_user
from litz.graph.pattern import ANY, Arg, ListOf, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.sizes import is_dense, sizes

_JOINS = {torch.cat: (torch.split, torch.chunk), torch.stack: (torch.unbind,)}
_PARTINGS = {torch.split: torch.cat, torch.chunk: torch.cat, torch.unbind: torch.stack}


def _dim(node: fx.Node) -> int | None:
    """The dimension that a call joins or parts, counted from the front."""
    value = node.meta.get("val")
    whole = value if node.target in _JOINS else node.args[0].meta.get("val")  # type: ignore[union-attr]
    dim = node.args[-1]
    return dim % whole.dim() if isinstance(whole, torch.Tensor) and isinstance(dim, int) else None


def _tensor(match: Match, taken: fx.Node, since: fx.Node) -> Any:
    """`taken` for the root, if nobody can tell."""
    value, root = taken.meta.get("val"), match.root.meta["val"]
    if not isinstance(value, torch.Tensor) or not (same_layout(value, root) or is_dense(value)):
        return match.miss("it is laid out otherwise", taken)
    (output,) = (n for n in match.editor.graph.nodes if n.op == "output")
    writer = disturbed(since, output, ())
    if writer is not None:
        return match.miss("it may write to a tensor that would be shared", writer)
    if shared_with_user(match.root):
        return match.miss("its memory reaches the user")
    # What the user holds may be written to before the backward, which is to find what the forward had: whether a copy
    # is needed for that is seen in the joint graph.
    return match.call(torch.clone, taken)


@rule(
    call(
        (torch.cat, torch.stack),
        ListOf(call(operator.getitem, Arg("whole"), Arg("part"), users=ANY), least=2),
        users=ANY,
    ),
    any_size=True,
)
def join_of_parts(match: Match) -> Any:
    """All parts of a tensor, joined again in order: the tensor itself."""
    parted = match["whole"][0]
    if any(whole is not parted for whole in match["whole"]) or parted.target not in _JOINS[match.root.target]:
        return None
    if list(match["part"]) != list(range(len(parted.meta.get("val") or ()))) or _dim(parted) != _dim(match.root):
        return None
    if _dim(parted) is None:
        return None
    return _tensor(match, parted.args[0], parted)


@rule(
    call(
        operator.getitem,
        call((torch.split, torch.chunk, torch.unbind), name="parted", users=ANY),
        Arg("part"),
        users=ANY,
    ),
    any_size=True,
)
def part_of_joined(match: Match) -> Any:
    """A part that is exactly one of the tensors that were joined."""
    parted = match["parted"]
    joined = parted.args[0]
    if not isinstance(joined, fx.Node) or joined.target is not _PARTINGS[parted.target]:
        return None
    dim, xs = _dim(joined), joined.args[0]
    if dim is None or dim != _dim(parted) or not isinstance(xs, (list, tuple)) or not isinstance(match["part"], int):
        return None
    values = [x.meta.get("val") for x in xs]  # type: ignore[union-attr]
    parts = parted.meta.get("val") or ()
    if len(parts) != len(values) or any(not isinstance(v, torch.Tensor) for v in values):
        return None
    wanted, found = [sizes(v.shape) for v in values], [sizes(p.shape) for p in parts]
    if wanted != found or values[match["part"]].dtype != match.root.meta["val"].dtype:
        return match.miss(f"the parts are {found}, what was joined is {wanted}")
    others = (value for position, value in enumerate(values) if position != match["part"])
    if any(value.requires_grad for value in others) and not _learn_together(parted, len(xs)):
        # The joint graph goes the same way in the forward.
        return match.miss("what it was joined with may have a gradient of zeros by it")
    if looked_around(match.root):
        return match.miss("what it was joined with is read around it in memory")
    return _tensor(match, xs[match["part"]], joined)


def _learn_together(parted: fx.Node, parts: int) -> bool:
    """Whether each result that has a gradient for one part has one for all."""
    taken = {user.args[1]: _results(user) for user in parted.users if user.target is operator.getitem}
    return len(taken) == parts and len(set(taken.values())) == 1


def _results(node: fx.Node) -> frozenset[int]:
    """The results of the graph, by place, that the node has a gradient from."""
    todo, seen, found = [node], {node}, set()
    while todo:
        used = todo.pop()
        for user in used.users:
            if user.op == "output":
                flat = tree_leaves(user.args[0])
                found |= {place for place, result in enumerate(flat) if result is used}
            elif user not in seen and any(_learns(value) for value in tree_leaves(user.meta.get("val"))):
                seen.add(user)
                todo.append(user)
    return frozenset(found)


def _learns(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


@rule(call(torch.cat, Arg("xs"), Arg("dim"), users=ANY), any_size=True)
def cat_of_joined(match: Match) -> Any:
    """Nested concatenations along one dimension."""
    dim, flat = _dim(match.root), []
    if dim is None or not isinstance(match["xs"], (list, tuple)):
        return None
    rank = match.root.meta["val"].dim()
    for x in match["xs"]:
        inner = x.target is torch.cat and set(x.users) == {match.root} and _dim(x) == dim
        parts = x.args[0] if inner and isinstance(x.args[0], (list, tuple)) else ()
        # What it joins was rounded to its type first.
        alike = {getattr(part.meta.get("val"), "dtype", None) for part in parts} == {x.meta["val"].dtype}
        if alike and disturbed(x, match.root, ()) is None:
            flat += list(parts)
        else:
            flat.append(x)
    values = [x.meta.get("val") for x in flat]
    if len(flat) == len(match["xs"]) or any(not isinstance(v, torch.Tensor) or v.dim() != rank for v in values):
        return None
    return match.call(torch.cat, flat, dim)


SPLIT_CAT_PRE_GRAD: Rules = (join_of_parts, part_of_joined, cat_of_joined)
