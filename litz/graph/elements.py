"""What each element of a tensor is, as a formula of where it stands: for sizes known only at run time.

In: a graph module of ATen operators. Out: for a node, an element: a whole number, a comparison that holds or not, or
one of two numbers; or None where it is no such formula.

Where sizes are known, `uniform.py` evaluates a mask and looks at it. A causal mask over any length cannot be evaluated,
but it can be read: `arange` is the position, a view moves positions, and `k <= q` stays `q - k >= 0` to the end. What
holds at every position, as far as the sizes' ranges tell, is dropped on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

import torch
from torch import fx

from litz.loop.expr import ONE, ZERO, Axis, Expr, expr, is_below, is_nonnegative
from litz.ops.sizes import size_if_spelled

aten = torch.ops.aten
Place = Sequence[Expr]  # one position a dimension


@dataclass(frozen=True)
class Whole:
    number: Expr

    def at(self, moved: Mapping[Any, Any]) -> Whole:
        return Whole(self.number.substitute(moved))


@dataclass(frozen=True)
class Truth:
    """Holds where none of these is negative."""

    terms: frozenset[Expr] = frozenset()

    def at(self, moved: Mapping[Any, Any]) -> Truth:
        return truth(term.substitute(moved) for term in self.terms)

    @property
    def known(self) -> bool | None:
        return True if not self.terms else False if self == NEVER else None


@dataclass(frozen=True)
class Choice:
    """One number where something holds, and another where it does not."""

    when: Truth
    this: float
    other: float

    def at(self, moved: Mapping[Any, Any]) -> Choice:
        return replace(self, when=self.when.at(moved))


Element = Union[Whole, Truth, Choice]
ALWAYS, NEVER = Truth(), Truth(frozenset({expr(-1)}))


def truth(terms: Any) -> Truth:
    """All of them together, without those that always hold."""
    left = [term for term in terms if not holds(term)]
    return NEVER if any(holds(-term - 1) for term in left) else Truth(frozenset(left))


def holds(term: Expr) -> bool:
    """Whether it is never negative, as far as can be proved."""
    if is_nonnegative(term):
        return True
    less, more = ZERO, ZERO
    for monomial, factor in term.terms:
        product = expr(abs(factor))
        for atom in monomial:
            product = product * atom
        less, more = (less + product, more) if factor < 0 else (less, more + product)
    return is_below(less, more + 1)


class Elements:
    def __init__(self, graph_module: fx.GraphModule):
        self._known: dict[fx.Node, Element | None] = {}

    def of(self, node: fx.Node) -> Element | None:
        if node not in self._known:
            self._known[node] = None  # should it ask for itself
            self._known[node] = self._read(node)
        return self._known[node]

    def _read(self, node: fx.Node) -> Element | None:
        value = node.meta.get("val")
        reader = _READERS.get(node.target) if node.op == "call_function" else None
        if reader is None or not isinstance(value, torch.Tensor):
            return None
        place = positions(value)
        return None if place is None else reader(self, node, place)

    # -- operands -----------------------------------------------------------------------------------
    def at(self, node: Any, place: Place) -> Element | None:
        """The operand's element that stands at a place of the result, which it may be broadcast to."""
        if isinstance(node, (bool, int, float, torch.SymInt)):
            return _of_number(node)
        own = positions(node.meta["val"]) if isinstance(node, fx.Node) else None
        found = self.of(node) if own is not None else None
        if found is None or own is None or len(own) > len(place):
            return None
        last = place[len(place) - len(own) :]
        return found.at({_axis(p): q for p, q in zip(own, last, strict=True) if p is not ZERO})

    def whole(self, node: Any, place: Place) -> Expr | None:
        found = self.at(node, place)
        if isinstance(found, Truth) and found.known is not None:
            return expr(int(found.known))
        return found.number if isinstance(found, Whole) else None

    def is_true(self, node: Any, place: Place) -> Truth | None:
        found = self.at(node, place)
        if isinstance(found, Whole) and found.number.is_int:
            return ALWAYS if found.number.int else NEVER
        return found if isinstance(found, Truth) else None


def positions(tensor: torch.Tensor) -> list[Expr] | None:
    """Where an element stands: a variable a dimension, none in those of one element."""
    found = []
    for dim, size in enumerate(tensor.shape):
        known = size_if_spelled(size)
        if known is None:
            return None
        found.append(ZERO if known is ONE else expr(Axis(f"p{dim}", known)))
    return found


def _axis(position: Expr) -> Axis:
    (axis,) = position.axes()
    return axis


def _of_number(number: Any) -> Element | None:
    if isinstance(number, bool):
        return ALWAYS if number else NEVER
    if isinstance(number, float):
        return Whole(expr(int(number))) if number.is_integer() else None
    known = size_if_spelled(number)
    return None if known is None else Whole(known)


# -- operators --------------------------------------------------------------------------------------
Reader = Callable[[Elements, fx.Node, Place], "Element | None"]
_READERS: dict[Any, Reader] = {}


def _reads(*targets: Any) -> Callable[[Reader], Reader]:
    def register(reader: Reader) -> Reader:
        _READERS.update(dict.fromkeys(targets, reader))
        return reader

    return register


@_reads(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(known: Elements, node: fx.Node, place: Place) -> Element | None:
    start: Any = node.args[0] if len(node.args) > 1 else 0
    step: Any = node.args[2] if len(node.args) > 2 else 1
    first, by = size_if_spelled(start), size_if_spelled(step)
    return None if first is None or by is None else Whole(first + place[0] * by)


# What is filled with a number: where it is among the arguments, or which it is.
_FILLED: dict[Any, int] = {
    aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2, aten.scalar_tensor.default: 0,
}  # fmt: skip
_OF_ONE = dict.fromkeys((aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default), 0) | dict.fromkeys(
    (aten.ones.default, aten.ones_like.default, aten.new_ones.default), 1
)


@_reads(*_FILLED, *_OF_ONE)
def _filled(known: Elements, node: fx.Node, place: Place) -> Element | None:
    return _of_number(_number_of(node))


def _number_of(node: Any) -> Any:
    """The number that a tensor is filled with; None where it is no such tensor."""
    target = getattr(node, "target", None)
    return node.args[_FILLED[target]] if target in _FILLED else _OF_ONE.get(target)


@_reads(aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar, aten.mul.Tensor, aten.mul.Scalar)
def _arithmetic(known: Elements, node: fx.Node, place: Place) -> Element | None:
    a, b = (known.whole(arg, place) for arg in node.args[:2])
    if a is None or b is None or node.kwargs or node.meta["val"].dtype.is_floating_point:
        return None
    name = str(node.target)
    return Whole(a + b if ".add." in name else a - b if ".sub." in name else a * b)


def _compared(form: Callable[[Expr], Truth | None]) -> Reader:
    def reader(known: Elements, node: fx.Node, place: Place) -> Element | None:
        a, b = (known.whole(arg, place) for arg in node.args[:2])
        return None if a is None or b is None else form(a - b)

    return reader


def _equal(apart: Expr) -> Truth | None:
    return ALWAYS if apart is ZERO else NEVER if holds(apart - 1) or holds(-apart - 1) else None


def negated(found: Truth | None) -> Truth | None:
    """Where it does not hold, if that is a formula too."""
    if found is None or found.known is not None:
        return None if found is None else NEVER if found.known else ALWAYS
    return truth(-term - 1 for term in found.terms) if len(found.terms) == 1 else None


for _name, _form in (
    ("le", lambda apart: truth([-apart])), ("lt", lambda apart: truth([-apart - 1])),
    ("ge", lambda apart: truth([apart])), ("gt", lambda apart: truth([apart - 1])),
    ("eq", _equal), ("ne", lambda apart: negated(_equal(apart))),
):  # fmt: skip
    _reads(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_compared(_form))


@_reads(aten.bitwise_and.Tensor, aten.logical_and.default)
def _and(known: Elements, node: fx.Node, place: Place) -> Element | None:
    a, b = (known.is_true(arg, place) for arg in node.args[:2])
    if node.meta["val"].dtype != torch.bool or NEVER in (a, b):
        return NEVER if node.meta["val"].dtype == torch.bool else None
    return None if a is None or b is None else truth(a.terms | b.terms)


@_reads(aten.bitwise_or.Tensor, aten.logical_or.default)
def _or(known: Elements, node: fx.Node, place: Place) -> Element | None:
    a, b = (known.is_true(arg, place) for arg in node.args[:2])
    if node.meta["val"].dtype != torch.bool:
        return None
    if ALWAYS in (a, b):
        return ALWAYS
    return b if a in (NEVER, b) else a if b == NEVER else None


@_reads(aten.bitwise_not.default, aten.logical_not.default)
def _not(known: Elements, node: fx.Node, place: Place) -> Element | None:
    return negated(known.is_true(node.args[0], place)) if node.meta["val"].dtype == torch.bool else None


@_reads(aten.where.self)
def _where(known: Elements, node: fx.Node, place: Place) -> Element | None:
    when, this, other = node.args
    found = known.is_true(when, place)
    if found is None or found.known is not None:
        return None if found is None else known.at(this if found.known else other, place)
    numbers = [_number_of(arg) for arg in (this, other)]
    return Choice(found, *map(float, numbers)) if all(isinstance(n, (int, float)) for n in numbers) else None


@_reads(aten.masked_fill.Scalar)
def _masked_fill(known: Elements, node: fx.Node, place: Place) -> Element | None:
    source, mask, value = node.args
    found, rest = known.is_true(mask, place), _number_of(source)
    if found is None or not isinstance(rest, (int, float)) or not isinstance(value, (int, float)):
        return None
    return Choice(found, float(value), float(rest))


@_reads(aten._to_copy.default)
def _cast(known: Elements, node: fx.Node, place: Place) -> Element | None:
    found = known.at(node.args[0], place)
    if node.meta["val"].dtype == torch.bool or isinstance(found, Truth):
        return known.is_true(node.args[0], place) if node.meta["val"].dtype == torch.bool else None
    return found


@_reads(aten.cumsum.default)
def _cumsum(known: Elements, node: fx.Node, place: Place) -> Element | None:
    return Whole(ZERO) if known.whole(node.args[0], place) is ZERO else None


@_reads(aten.cat.default)
def _cat(known: Elements, node: fx.Node, place: Place) -> Element | None:
    """Parts that are one formula, as the numbers from zero behind minus one."""
    parts, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
    first, second = parts if isinstance(parts, (list, tuple)) and len(parts) == 2 else (None, None)
    if not isinstance(first, fx.Node) or not isinstance(second, fx.Node) or not isinstance(dim, int):
        return None
    dim %= len(place)
    shifted = [p - 1 if d == dim else p for d, p in enumerate(place)]
    whole, start = known.at(second, shifted), known.at(first, place)
    here = {_axis(place[dim]): ZERO} if place[dim] is not ZERO else {}
    is_one = size_if_spelled(first.meta["val"].shape[dim]) is ONE
    return whole if is_one and whole is not None and start is not None and whole.at(here) == start.at(here) else None


@_reads(aten.index.Tensor)
def _index(known: Elements, node: fx.Node, place: Place) -> Element | None:
    """Read where other tensors say, if that is inside."""
    source, indices = node.args
    own = positions(source.meta["val"]) if isinstance(source, fx.Node) else None
    if own is None or not isinstance(indices, (list, tuple)) or len(indices) != len(own):
        return None
    places = [None if index is None else known.whole(index, place) for index in indices]
    inside: list[Expr] = []
    for found, size in zip(places, source.meta["val"].shape, strict=True):  # type: ignore[union-attr]
        limit = size_if_spelled(size)
        if found is None or limit is None or not holds(found) or not holds(limit - 1 - found):
            return None
        inside.append(found)
    return known.at(source, inside)


# -- views ------------------------------------------------------------------------------------------
@_reads(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.expand.default)
def _same(known: Elements, node: fx.Node, place: Place) -> Element | None:
    return known.at(node.args[0], place)


@_reads(aten.unsqueeze.default)
def _unsqueeze(known: Elements, node: fx.Node, place: Place) -> Element | None:
    dim = int(node.args[1]) % len(place)  # type: ignore[call-overload]
    return known.at(node.args[0], [p for d, p in enumerate(place) if d != dim])


@_reads(aten.view.default, aten._unsafe_view.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _view(known: Elements, node: fx.Node, place: Place) -> Element | None:
    """Dimensions of one element come and go; all others stay."""
    source = node.args[0]
    own = positions(source.meta["val"]) if isinstance(source, fx.Node) else None
    if own is None:
        return None
    real = [p for p in place if p is not ZERO]
    if [_axis(p).size for p in own if p is not ZERO] != [_axis(p).size for p in real]:
        return None
    rest = iter(real)
    return known.at(source, [ZERO if p is ZERO else next(rest) for p in own])


@_reads(aten.permute.default, aten.transpose.int, aten.t.default)
def _permute(known: Elements, node: fx.Node, place: Place) -> Element | None:
    order = list(range(len(place)))
    if node.target is aten.permute.default:
        order = [int(d) % len(place) for d in node.args[1]]  # type: ignore[union-attr, arg-type]
    elif len(place) > 1:
        i, j = (int(d) % len(place) for d in (node.args[1:3] or (0, 1)))  # type: ignore[arg-type]
        order[i], order[j] = order[j], order[i]
    return known.at(node.args[0], [place[order.index(d)] for d in range(len(place))])


@_reads(aten.slice.Tensor)
def _slice(known: Elements, node: fx.Node, place: Place) -> Element | None:
    given: tuple[Any, ...] = (*node.args[1:], *(0, 0, None, 1)[len(node.args) - 1 :])
    dim, start, _, step = given
    first, by = size_if_spelled(start or 0), size_if_spelled(step)
    if first is None or by is None or not isinstance(dim, int) or not first.is_int or first.int < 0:
        return None
    return known.at(node.args[0], [first + p * by if d == dim % len(place) else p for d, p in enumerate(place)])


@_reads(aten.select.int)
def _select(known: Elements, node: fx.Node, place: Place) -> Element | None:
    dim, index = node.args[1:]
    first = size_if_spelled(index)
    if first is None or not first.is_int or first.int < 0 or not isinstance(dim, int):
        return None
    own = list(place)
    own.insert(dim % (len(place) + 1), first)
    return known.at(node.args[0], own)


__all__ = ["ALWAYS", "Choice", "Element", "Elements", "Truth", "Whole", "negated", "positions"]
