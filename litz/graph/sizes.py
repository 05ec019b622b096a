"""Sizes that may be known only at run time, compared by their form.

In: sizes of fake tensors, and other numbers. Out: numbers and `Extent`s, which compare and multiply without asking for
a value: the answer would tie the program to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Union

import torch
from torch._subclasses.fake_tensor import FakeTensor

from litz.ops.sizes import least, likely_at

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
Symbolic = Union[torch.SymInt, torch.SymFloat, torch.SymBool]


class Extent:
    """A symbolic number. Two are equal if they are written alike; one may be equal to a number and not say so."""

    __slots__ = ("form", "value")

    def __init__(self, value: Symbolic):
        self.value, self.form = value, value.node.expr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extent) and self.form == other.form

    def __hash__(self) -> int:
        return hash(self.form)

    def __mul__(self, other: Any) -> Any:
        return size_of(self.value * (other.value if isinstance(other, Extent) else other))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return str(self.form)


def size_of(size: Any) -> Any:
    if isinstance(size, torch.SymInt):
        number: Any = size.node.maybe_as_int()
    elif isinstance(size, torch.SymFloat):
        number = size.node.maybe_as_float()
    elif isinstance(size, torch.SymBool):
        number = size.node.maybe_as_bool()
    else:
        return size
    return Extent(size) if number is None else number


def sizes(given: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([size if type(size) is int else size_of(size) for size in given])


def as_given(known: Iterable[Any]) -> list[Any]:
    """The sizes as arguments of an operator."""
    return [size.value if isinstance(size, Extent) else size for size in known]


def elements(given: Iterable[Any]) -> Any:
    total: Any = 1
    for size in sizes(given):
        total = total * size
    return total


def likely(size: Any) -> int:
    """The size, or one that it may well have: for choices that any value leaves right."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    known = size.node.maybe_as_int()
    if known is not None:
        return known
    return 64 if size.node.is_nested_int() else likely_at(size.node.expr, size.node.shape_env)


def may_be_under(bound: int, size: Any) -> bool:
    """Whether a number or `Extent` is less in some run, as far as the ranges of its symbols tell."""
    if not isinstance(size, Extent):
        return bool(size < bound)
    node = size.value.node
    known = None if node.is_nested_int() else least(node.expr, node.shape_env)
    return known is None or known < bound


def varies(value: Any) -> bool:
    """Whether a tensor is a fake whose sizes, or the number it holds, are known only at run time."""
    if not isinstance(value, FakeTensor):
        return False
    return value.item_memo is not None or any(isinstance(s, torch.SymInt) for s in (*value.shape, *value.stride()))


@contextmanager
def sizes_as_arguments() -> Iterator[None]:
    """Within it, nodes take sizes as arguments without a warning: fx would have sizes be nodes of their own; here a
    size is a value, which lowering reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def is_dense(tensor: torch.Tensor, order: Iterable[int] | None = None) -> bool:
    """Whether it is contiguous with its dimensions in that order, as far as the form of its sizes tells."""
    shape, strides = sizes(tensor.shape), sizes(tensor.stride())
    expected: Any = 1
    for dim in reversed(range(tensor.dim()) if order is None else list(order)):
        if shape[dim] != 1 and strides[dim] != expected:
            return False
        expected = expected * shape[dim]
    return True
