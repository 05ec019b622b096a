"""Masks of an attention, as the fused operator takes them, and rows that they hide whole.

In: the masks read between the product of queries and keys and the softmax. Out: `Masking`: whether attention is
causal, what to add to the scores, and what to do about rows in which no key is left.

The fused operator knows such rows only by what is added to their scores, and is wrong about them in three ways: it
gives zero where a softmax gives NaN; a finite number that replaced the scores does not swallow what it is added to;
and its backward makes the weights again from the logarithm of their sum, in which a large number leaves no room for
the sum. So, unless a mask is proved to leave a key in every row, the rows are found at run time, on the mask alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from litz.graph.rewrite import Match
from litz.graph.rules.attention_read import Mask, shape
from litz.graph.sizes import as_given, is_dense, size_of
from litz.graph.uniform import is_causal

aten = torch.ops.aten

# A score this far down contributes nothing beside a visible one.
_HIDDEN = -1e9
# This far from zero, a logarithm of a sum that is added to a score is lost in rounding, and so are scores of a usual
# size. Nearer than that, and out of the usual range, some of it is.
_FAR = {torch.float64: 2.0**58}
_FAR_OF_FLOATS = 2.0**29
_USUAL = 1e3


@dataclass(frozen=True)
class Masking:
    """Nodes are four-dimensional, and broadcast over the scores (`bias`) or over their rows (all others)."""

    causal: bool = False
    bias: fx.Node | None = None  # added to the scores
    alike: fx.Node | None = None  # where every score is a number of its own, whatever queries and keys are
    lost: fx.Node | None = None  # where nothing is left, and the mask does not say so itself: a training step
    weight: fx.Node | None = None  # of the row's tangent, where the fused backward makes weights that do not sum to 1

    sure: bool = True  # whether every row is proved to keep a key

    def parts(self) -> dict[str, fx.Node]:
        return {name: node for name in ("bias", "alike", "lost", "weight") if (node := getattr(self, name)) is not None}


def choose_mask(
    match: Match,
    masks: list[Mask],
    lead: tuple[int, int],
    queries: int,
    keys: int,
    like: fx.Node,
    scale: float,
    *,
    safe: bool,
    learns: bool,
) -> Masking | None:
    """What the masks come to, for queries of the type of `like`, and scores of that scale; None if declined.

    `safe`: the softmax gives zeros where no key is left. `learns`: there will be a backward.
    """
    causal, terms = False, []
    for mask in masks:
        kind = known_mask(match, mask, queries, keys, like)
        if kind == "causal" and not causal and may_be_causal(scale):
            causal = True
        elif kind != "nothing":
            terms.append(mask)
    if causal and terms:
        # The fused operator takes one or the other.
        causal, terms = False, list(masks)
    if not terms:
        return Masking(causal)
    unfit = next((m for m in terms if m.fill is not None and m.fill > _HIDDEN), None)
    if unfit is not None:
        match.miss(f"a score of {unfit.fill} does not hide a key", unfit.node)
        return None
    lifting = next((m for m in terms if learns and m.fill is None and lifts_a_row(match, m)), None)
    if lifting is not None:
        match.miss("a score is lifted so far that its backward would lose the sum of weights", lifting.node)
        return None
    return _Chosen(match, terms, lead, keys, like, safe, learns).masking()


class _Chosen:
    """Masks that are to be applied, the last one applied first in the list."""

    def __init__(
        self, match: Match, terms: list[Mask], lead: tuple[int, int], keys: Any, like: fx.Node, safe: bool, learns: bool
    ):
        self.match, self.terms, self.lead, self.keys = match, terms, lead, keys
        self.safe, self.learns = safe, learns
        self.dtype, self.device = like.meta["val"].dtype, like.meta["val"].device

    def masking(self) -> Masking:
        if self.is_filled_once() and not self.learns and self.dtype != torch.float16:
            # So far down that any score is lost in it: a row of nothing else is alike by itself.
            low = self.number(torch.finfo(self.dtype).min / 2)
            bias = self.call(aten.where.self, self.kept(self.terms[0]), self.number(0.0), low)
            return Masking(bias=self.rows_in_memory(bias), sure=leaves_a_key(self.match, self.terms[0]))
        bias = self.total()
        if len(self.terms) == 1 and leaves_a_key(self.match, self.terms[0]):
            return Masking(bias=self.rows_in_memory(bias))
        alike, lost = None, None
        if any(mask.fill is not None for mask in self.terms):
            bias, alike, lost = self.without_filled_rows(bias)
        weight = None
        if any(mask.fill is None for mask in self.terms):
            top = self.call(aten.amax.default, bias, [-1], True)
            if not self.safe:
                # A softmax over nothing but minus infinity.
                nothing = self.call(aten.eq.Scalar, top, float("-inf"))
                bias = self.call(aten.where.self, nothing, self.number(float("nan")), bias)
            if self.learns:
                weight = self.weight(bias, top)
        return Masking(False, self.rows_in_memory(bias), alike, lost, weight, sure=False)

    def is_filled_once(self) -> bool:
        return len(self.terms) == 1 and self.terms[0].fill not in (None, float("-inf"))

    def total(self) -> fx.Node:
        """All masks in one, applied in the order in which they are to the scores."""
        total: fx.Node | None = None
        for mask in reversed(self.terms):
            if mask.fill is not None:
                fill = self.number(mask.fill)
                total = self.call(aten.where.self, self.kept(mask), self.number(0.0) if total is None else total, fill)
            else:
                term = self.added(mask)
                total = term if total is None else self.call(aten.add.Tensor, total, term)
        assert total is not None
        return total

    def without_filled_rows(self, bias: fx.Node) -> tuple[fx.Node, fx.Node | None, fx.Node | None]:
        """The bias, the rows whose scores are all replaced by finite numbers, and those by minus infinity.

        The scores themselves are of no account there: with queries of zero, the bias alone decides.
        """
        filled = self.filled()
        whole = self.call(aten.all.dim, filled, -1, True)
        fills = {mask.fill for mask in self.terms}
        if fills == {float("-inf")}:
            if not self.learns:
                emptied = bias if self.safe else self.call(aten.where.self, whole, self.number(float("nan")), bias)
                return emptied, None, None
            return self.call(aten.where.self, whole, self.number(0.0), bias), None, whole
        if len(fills) == 1:
            return self.call(aten.where.self, whole, self.number(0.0), bias), whole, None
        top = self.call(aten.amax.default, bias, [-1], True)
        lost = self.call(aten.logical_and.default, whole, self.call(aten.eq.Scalar, top, float("-inf")))
        own = self.call(aten.where.self, whole, self.call(aten.sub.Tensor, bias, top), bias)
        if self.learns or self.safe:
            nothing = 0.0 if self.learns else float("-inf")
            own = self.call(aten.where.self, lost, self.number(nothing), own)
        return own, whole, lost if self.learns else None

    def filled(self) -> fx.Node:
        hidden: fx.Node | None = None
        for mask in self.terms:
            if mask.fill is not None:
                own = self.call(aten.logical_not.default, self.kept(mask))
                hidden = own if hidden is None else self.call(aten.logical_or.default, hidden, own)
        assert hidden is not None
        return hidden

    def weight(self, bias: fx.Node, top: fx.Node) -> fx.Node:
        """One, and in rows where the mask swallows scores, one part for each key that is left."""
        far = self.call(aten.ge.Scalar, self.call(aten.abs.default, top), _FAR.get(self.dtype, _FAR_OF_FLOATS))
        if shape(bias)[-1] != size_of(self.keys):
            bias = self.call(aten.expand.default, bias, as_given((*shape(bias)[:-1], self.keys)))
        level = self.call(aten.eq.Tensor, bias, top)
        count = self.call(aten.sum.dim_IntList, level, [-1], True, dtype=self.dtype)
        return self.call(aten.where.self, far, self.call(aten.reciprocal.default, count), self.number(1.0))

    # -- one mask -----------------------------------------------------------------------------------
    def kept(self, mask: Mask) -> fx.Node:
        """Where scores are kept, four-dimensional."""
        node = mask.node
        if node.meta["val"].dtype != torch.bool:
            node = self.call(aten._to_copy.default, node, dtype=torch.bool)
        if mask.inverted:
            node = self.call(aten.logical_not.default, node)
        return self.four_dimensional(node, mask.lead)

    def added(self, mask: Mask) -> fx.Node:
        """What is added to the scores, four-dimensional and of the queries' type."""
        node = mask.node
        if mask.factor != 1.0:
            node = self.call(aten.mul.Tensor, node, mask.factor)
        if node.meta["val"].dtype != self.dtype:
            node = self.call(aten._to_copy.default, node, dtype=self.dtype)
        return self.four_dimensional(node, mask.lead)

    def four_dimensional(self, node: fx.Node, applied: tuple[int, ...]) -> fx.Node:
        size = shape(node)
        missing = len(applied) + 2 - len(size)
        own = (1,) * missing + size
        if applied == self.lead or all(s == 1 for s in own[:-2]):
            wanted = own if applied == self.lead else (1, 1, *own[-2:])
            if size == wanted:
                return node
            if is_dense(node.meta["val"]):
                return self.call(aten.view.default, node, as_given(wanted))
            return self.copied(node, wanted)
        whole = self.call(aten.expand.default, node, as_given((*applied, *own[-2:])))
        return self.copied(whole, (*self.lead, *own[-2:]))

    def copied(self, node: fx.Node, size: tuple[int, ...]) -> fx.Node:
        copy = self.call(aten.clone.default, node, memory_format=torch.contiguous_format)
        return self.call(aten.view.default, copy, as_given(size))

    # -- nodes --------------------------------------------------------------------------------------
    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return self.match.call(target, *args, **kwargs)

    def number(self, value: float) -> fx.Node:
        """As a tensor; a finite one stays finite in a narrower type."""
        if value == value and value != float("-inf"):
            value = max(value, torch.finfo(self.dtype).min)
        return self.match.full([], value, self.dtype, self.device)

    def rows_in_memory(self, node: fx.Node) -> fx.Node:
        return contiguous_rows(self.match, node)


def contiguous_rows(match: Match, node: fx.Node) -> fx.Node:
    value = node.meta["val"]
    if size_of(value.stride(-1)) == 1 or shape(node)[-1] == 1:
        return node
    return match.call(aten.clone.default, node, memory_format=torch.contiguous_format)


# -- what rows get ----------------------------------------------------------------------------------
def zero_where(q: Any, rows: Any) -> Any:
    """Queries of zero in some rows."""
    return torch.where(rows, torch.zeros((), dtype=q.dtype, device=q.device), q)


def lost_where(out: Any, v: Any, rows: Any, safe: bool) -> Any:
    """The result where nothing is left to look at: NaN, to the values' gradient too, or zero for a safe softmax."""
    if safe:
        return torch.where(rows, torch.zeros((), dtype=out.dtype, device=out.device), out)
    bad = torch.where(rows.any(-2, keepdim=True), float("nan"), 0.0).to(v.dtype)
    return torch.where(rows, (v * bad).sum(-2, keepdim=True), out)


class Weighted(torch.autograd.Function):
    """Does nothing to a result, and multiplies its tangent."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        (weight,) = ctx.saved_tensors
        return tangent * weight, None


# -- what is known ----------------------------------------------------------------------------------
def known_mask(match: Match, mask: Mask, queries: int, keys: int, like: fx.Node) -> str:
    """'nothing' if the mask hides nothing, 'causal' if exactly the future, 'some' otherwise."""
    compact = match.constants.compact(mask.node)
    if compact is None:
        return "some"
    dtype = like.meta["val"].dtype
    # Every layer asks about the same mask.
    key = (mask, queries, keys, dtype)
    proofs = match.constants.proofs
    if key not in proofs:
        proofs[key] = proved(compact, mask, queries, keys, dtype)
    return proofs[key]


def proved(compact: torch.Tensor, mask: Mask, queries: int, keys: int, dtype: torch.dtype) -> str:
    """The same of a mask whose elements are known."""
    if mask.fill is not None:
        visible = compact.logical_not() if mask.inverted else compact.to(torch.bool)
        hidden = hides(mask.fill, dtype)
    else:
        visible = compact == 0
        if bool(visible.all()):
            return "nothing"
        highest = compact.masked_fill(visible, float("-inf")) if mask.factor > 0 else compact
        hidden = mask.factor > 0 and highest.max().item() * mask.factor <= max(_HIDDEN, torch.finfo(dtype).min)
    if bool(visible.all()):
        return "nothing"
    return "causal" if hidden and is_causal(visible, queries, keys) else "some"


def may_be_causal(scale: Any) -> bool:
    """Whether a mask may be named to the fused operator for scores of that scale: it hides first, and multiplies then,
    by which what is hidden must stay so."""
    return scale is None or (isinstance(scale, (int, float)) and scale > 0)


def hides(fill: float, dtype: torch.dtype) -> bool:
    """Whether such a score leaves nothing of a key."""
    return fill <= _HIDDEN or (fill <= -65504 and dtype == torch.float16)


def lifts_a_row(match: Match, mask: Mask) -> bool:
    """Whether the mask is known to lift a score of some row far above the usual."""
    compact = match.constants.compact(mask.node)
    if compact is None or not compact.dim():
        return False
    proofs, key = match.constants.proofs, (mask, "lifts a row")
    if key not in proofs:
        proofs[key] = bool(((compact * mask.factor).amax(-1) > _USUAL).any())
    return proofs[key]


def leaves_a_key(match: Match, mask: Mask) -> bool:
    """Whether the mask is proved to leave a key in every row whose score it does not push out of a usual range."""
    compact = match.constants.compact(mask.node)
    if compact is None or not compact.dim():
        return False
    proofs, key = match.constants.proofs, (mask, "leaves a key")
    if key not in proofs:
        if mask.fill is not None:
            visible = compact.logical_not() if mask.inverted else compact.to(torch.bool)
        else:
            visible = (compact * mask.factor).abs() < _USUAL
        proofs[key] = bool(visible.any(-1).all())
    return proofs[key]
