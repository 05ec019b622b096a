"""Inputs that share memory of which something is written: one synthetic base instead, of which they are windows.

In: the inputs of a trace. Out: the `Base`s it needs, each an input in place of its members; at run time, the bases of
the arguments that have come, if these lie as those of the trace did.

A base is the tensor that all members are views of, so that autograd sees what is written through it; or, where there
is none and autograd has nothing to see, the flat stretch of memory from the first element of any member to the last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from litz.errors import CaptureError
from litz.graph.signature import Base, Window


def bases_for(inputs: Sequence[Any], mutated: Collection[int], training: bool) -> tuple[Base, ...]:
    """A base for every group of overlapping inputs of which one is written to."""
    written = {_storage(inputs[i]) for i in mutated}
    groups: dict[int, list[int]] = {}
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and _storage(value) in written:
            groups.setdefault(_storage(value), []).append(position)
    found = []
    for group in groups.values():
        for members in _entangled({i: inputs[i] for i in group}, training):
            if len(members) > 1 and any(i in mutated for i in members):
                found.append(_base({i: inputs[i] for i in members}, training))
    return tuple(found)


def entangled(a: torch.Tensor, b: torch.Tensor, training: bool) -> bool:
    """Whether a write to one changes the other, for tensors of one storage: they overlap from first to last element;
    or a backward is to come, which may find it saved, and they count their versions together."""
    (a_first, a_end), (b_first, b_end) = _bytes(a), _bytes(b)
    return (a_first < b_end and b_first < a_end) or (training and _root(a) is _root(b))


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether they lie in the same memory, of whatever storage, from first to last element."""
    (first, end), (other_first, other_end) = ((t.data_ptr(), t.data_ptr() + length(t)) for t in (a, b))
    return first < other_end and other_first < end


def in_place_of_members(args: Sequence[Any], bases: Sequence[Base]) -> list[Any] | None:
    """The arguments that are no members, then the bases; None where members do not lie as those of the trace did."""
    found = [_behind(base, args) for base in bases]
    if any(base is None for base in found):
        return None
    members = {place for base in bases for place, _ in base.members}
    return [*(arg for place, arg in enumerate(args) if place not in members), *found]


def members_restored(inputs: Sequence[Any], bases: Sequence[Base]) -> list[Any]:
    """The reverse: every argument, the members as views of their bases."""
    members: dict[int, Any] = {}
    for base, tensor in zip(bases, inputs[len(inputs) - len(bases) :], strict=True):
        for place, window in base.members:
            whole = (window.sizes, window.strides, window.offset) == (base.sizes, base.strides, 0)
            start = tensor.storage_offset() + window.offset
            members[place] = tensor if whole else tensor.as_strided(window.sizes, window.strides, start)
    others = iter(inputs)
    count = len(inputs) - len(bases) + len(members)
    return [members[place] if place in members else next(others) for place in range(count)]


def _behind(base: Base, args: Sequence[Any]) -> torch.Tensor | None:
    """The base of these arguments, if they lie on it as those of the trace did."""
    members = [args[place] for place, _ in base.members]
    if base.own:
        root = _root(members[0])
        if (tuple(root.shape), root.stride(), root.dtype) != (base.sizes, base.strides, members[0].dtype):
            return None
    else:
        root = _flat(members[0], members[0].storage_offset() - base.members[0][1].offset, base.sizes)
        if root is None:
            return None
    for member, (_, window) in zip(members, base.members, strict=True):
        if base.own and _root(member) is not root:
            return None
        if _storage(member) != _storage(root) or _window(member, root.storage_offset()) != window:
            return None
    return root


def _base(members: dict[int, torch.Tensor], training: bool) -> Base:
    tensors = list(members.values())
    if any(isinstance(s, torch.SymInt) for t in tensors for s in (*t.shape, *t.stride(), t.storage_offset())):
        raise CaptureError("inputs overlap, one is written to, and their sizes are known only at run time")
    if any(t.is_conj() or t.is_neg() for t in tensors):
        raise CaptureError("inputs overlap, one is written to, and one is conjugated or negated by a bit")
    if len({t.dtype for t in tensors}) > 1:
        raise CaptureError("inputs of several types overlap, and one is written to")
    root = _root(tensors[0])
    if training and all(_root(t) is root for t in tensors) and root.dtype == tensors[0].dtype:
        windows = tuple((i, _window(t, root.storage_offset())) for i, t in members.items())
        return Base(windows, tuple(root.shape), root.stride(), own=True)
    if any(t.requires_grad for t in tensors) and training:
        raise CaptureError("inputs overlap in a way autograd does not know of, and one is written to")
    first = min(t.storage_offset() for t in tensors)
    size = max(t.storage_offset() + _extent(t) for t in tensors) - first
    return Base(tuple((i, _window(t, first)) for i, t in members.items()), (size,), (1,))


def _entangled(members: dict[int, torch.Tensor], training: bool) -> list[list[int]]:
    """Groups of those that are entangled, directly or through others."""
    groups: list[list[int]] = []
    for position, tensor in members.items():
        linked = [g for g in groups if any(entangled(tensor, members[i], training) for i in g)]
        groups = [g for g in groups if g not in linked] + [sorted([position, *(i for g in linked for i in g)])]
    return groups


def _flat(member: torch.Tensor, first: int, sizes: tuple[int, ...]) -> torch.Tensor | None:
    stored = member.untyped_storage().nbytes() // member.element_size()
    return member.detach().as_strided(sizes, (1,), first) if 0 <= first <= stored - sizes[0] else None


def _root(tensor: torch.Tensor) -> torch.Tensor:
    base = tensor._base if tensor._is_view() else None
    return tensor if base is None else base


def _window(tensor: torch.Tensor, first: int) -> Window:
    return Window(tuple(tensor.shape), tensor.stride(), tensor.storage_offset() - first)


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last, both included."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _bytes(tensor: torch.Tensor) -> tuple[Any, Any]:
    first = tensor.storage_offset() * tensor.element_size()
    return first, first + length(tensor)


def length(tensor: torch.Tensor) -> Any:
    """Bytes from the first element to the last, both included."""
    return _extent(tensor) * tensor.element_size()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
