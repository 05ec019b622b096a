"""The same sample at other sizes, for programs over symbolic ones.

In: a `Case`. Out: two more of it, as eager accepts them, or none where no change of its sizes is consistent.

A change maps every size to another wherever it occurs, so that what had to agree still does. What is added to a
tensor along a dimension repeats what is there, slightly scaled: indices stay in range, domains are kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import torch

from tests.opinfo.samples import Case

ELEMENTS = 200_000  # of all tensors of a grown case: beyond that eager, too, takes its time
# Matrices that must stay invertible are grown by ones on the diagonal, instead of rows like those they have.
_INVERTED = ("linalg.", "cholesky", "inverse", "logdet", "lu", "svd", "qr", "triangular_solve", "pca", "ormqr")
# Of values put in one place, eager keeps that of the thread which comes last.
_PUT_ONCE = {f"nn.functional.max_unpool{n}d": n for n in (1, 2, 3)}  # and the dimensions of a channel
_SEGMENTS = "_segment_reduce.offsets"  # which eager does not check, and reads outside its memory
Change = Callable[[int], int]


def variants(case: Case) -> list[Case]:
    """Two further cases, each with other sizes; fewer where eager refuses."""
    best: list[Case] = []
    for number, pair in enumerate(_changes(case)):
        found = [made for change in pair if (made := _changed(case, *change)) is not None and _runs(made)]
        if len(found) > len(best):
            best = found
        if len(best) == 2 or number > 24:
            break
    return [replace(made, label=f"{case.label}+{number}") for number, made in enumerate(best, 1)]


def _changes(case: Case) -> Iterator[tuple[tuple[Change, bool], tuple[Change, bool]]]:
    """Pairs of changes of one kind; with each, whether whole-number arguments that are sizes change as well."""
    sizes = sorted({n for t in case.tensors for n in t.shape if n > 1})
    if not sizes:
        return
    for with_numbers in (False, True):
        yield ((lambda n: n + 1, with_numbers), (lambda n: 2 * n + 3, with_numbers))
    for with_numbers in (False, True):  # what must be a multiple of another stays one
        yield ((lambda n: 2 * n, with_numbers), (lambda n: 3 * n, with_numbers))
    for only in sizes:
        for with_numbers in (False, True):
            yield (
                (lambda n, only=only: n + 1 if n == only else n, with_numbers),
                (lambda n, only=only: 2 * n + 3 if n == only else n, with_numbers),
            )
            yield (
                (lambda n, only=only: 2 * n if n == only else n, with_numbers),
                (lambda n, only=only: 3 * n if n == only else n, with_numbers),
            )
    for place in range(len(case.positions)):  # one dimension of one tensor
        for dim, size in enumerate(case.tensors[place].shape):
            if size > 1:
                yield ((_At(place, dim, 1), False), (_At(place, dim, size + 3), False))


class _At:
    """A change at one place only."""

    def __init__(self, place: int, dim: int, more: int):
        self.place, self.dim, self.more = place, dim, more

    def shape(self, place: int, shape: torch.Size) -> tuple[int, ...]:
        return tuple(n + self.more * (place == self.place and dim == self.dim) for dim, n in enumerate(shape))

    def __call__(self, size: int) -> int:
        return size


def _changed(case: Case, change: Change, with_numbers: bool) -> Case | None:
    sizes = {n for t in case.tensors for n in t.shape if n > 1}
    leaves = list(case.leaves)
    shapes = [_shape(change, place, leaves[position]) for place, position in enumerate(case.positions)]
    if sum(map(prod, shapes)) > ELEMENTS:
        return None
    for position, shape in zip(case.positions, shapes, strict=True):
        leaves[position] = _grown(leaves[position], shape, case.operator.startswith(_INVERTED))
    if with_numbers:
        leaves = [change(x) if type(x) is int and x in sizes else x for x in leaves]
    made = replace(case, leaves=leaves)
    window = _PUT_ONCE.get(case.operator.removesuffix(".grad"))
    if window is not None and any(_names_a_place_twice(t, window) for t in made.tensors):
        return None
    if case.operator.startswith(_SEGMENTS) and (with_numbers or not _are_segments(*made.tensors)):
        return None
    return None if with_numbers and _equal_numbers(case, made) else made


def _shape(change: Change, place: int, tensor: torch.Tensor) -> tuple[int, ...]:
    if isinstance(change, _At):
        return change.shape(place, tensor.shape)
    return tuple(change(n) if n > 1 else n for n in tensor.shape)


def _names_a_place_twice(indices: torch.Tensor, dims: int) -> bool:
    """In one channel, which so many dimensions, the last, are."""
    if indices.is_floating_point():
        return False
    channels = indices.flatten(-dims).reshape(-1, indices.shape[-dims:].numel())
    return any(len(set(places)) < len(places) for places in channels.tolist())


def _are_segments(data: torch.Tensor, offsets: torch.Tensor) -> bool:
    axis = offsets.dim() - 1
    in_order = bool((offsets.diff() >= 0).all()) and int(offsets.max()) <= data.shape[axis]
    return in_order and data.shape[:axis] == offsets.shape[:axis]


def _equal_numbers(a: Case, b: Case) -> bool:
    return [x for x in a.leaves if type(x) is int] == [x for x in b.leaves if type(x) is int]


def _grown(tensor: torch.Tensor, shape: tuple[int, ...], inverted: bool) -> torch.Tensor:
    """The tensor with more of the same along its dimensions, laid out the same way."""
    if tuple(tensor.shape) == shape:
        return tensor
    found = tensor.detach()
    for dim, size in enumerate(shape):
        found = found.index_select(dim, torch.arange(size) % tensor.shape[dim])
    if found.is_floating_point() or found.is_complex():
        generator = torch.Generator().manual_seed(len(shape))
        scale = 1 - torch.rand(shape, generator=generator, dtype=torch.float64) / 4
        inside = torch.ones(shape, dtype=torch.bool)
        for dim, size in enumerate(tensor.shape):
            ahead = torch.arange(shape[dim]) < size
            inside &= ahead.view([-1 if d == dim else 1 for d in range(len(shape))])
        if inverted and len(shape) > 1 and tensor.shape[-1] == tensor.shape[-2]:
            identity = torch.eye(shape[-1], dtype=found.dtype).expand(shape)
            same_block = inside.any(-1, keepdim=True) & inside.any(-2, keepdim=True)
            found = torch.where(same_block, found, identity)
        else:
            found = (found * torch.where(inside, 1.0, scale)).to(found.dtype)
    return _laid_out(found, tensor)


def _laid_out(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`values` with dimensions in memory in the order of `like`, and its gap between neighbours."""
    moving = [d for d in range(like.dim()) if like.shape[d] > 1 and like.stride(d)]
    strides = [0] * like.dim()
    step = min((like.stride(d) for d in moving), default=1)
    for dim in sorted(range(like.dim()), key=lambda d: (like.stride(d), -d)):
        if like.stride(dim) or like.shape[dim] <= 1:
            strides[dim] = step
            step *= max(values.shape[dim], 1)
    offset = like.storage_offset()
    room = 1 + offset + sum(max(n - 1, 0) * s for n, s in zip(values.shape, strides, strict=True))
    memory = torch.zeros(room, dtype=values.dtype).as_strided(values.shape, strides, offset)
    if not any(s == 0 and n > 1 for n, s in zip(values.shape, strides, strict=True)):
        return memory.copy_(values)
    first = tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)
    memory[first].copy_(values[first])
    return memory


def _runs(case: Case) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            case.function(*case.tensors)
    except Exception:
        return False
    return True


__all__ = ["variants"]
