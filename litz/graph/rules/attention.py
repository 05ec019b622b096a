"""Attention: `softmax(q @ k^T * scale + mask) @ v` becomes one fused operator.

In: a functional ATen graph. Out: the same with `scaled_dot_product_attention`, which never builds the
matrix of scores. A mask that is proved to hide nothing is dropped, and one that is proved to be exactly
causal becomes `is_causal`; with either, the fused operator also skips work.

A row whose every key is masked by minus infinity is NaN in eager and zero here: the fused operator's own
convention.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from litz.graph.match import Miss
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, is_symbolic, rule
from litz.graph.rules.attention_read import Attention, Mask, NoAttention, operand, read, shape
from litz.graph.sizes import as_given, is_dense, size_of
from litz.graph.uniform import is_causal

aten = torch.ops.aten

FLASH_CPU = aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_CPU_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
Arguments = tuple[fx.Node, fx.Node, fx.Node, "fx.Node | None", bool, float]
# A score this far down contributes nothing, and swallows what it is added to.
_HIDDEN = -1e9


def fused(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)


@rule(call((aten.bmm.default, aten.mm.default), Arg("p"), Arg("v"), users=ANY), any_size=True)
def attention(match: Match) -> Any:
    if not isinstance(match["p"], fx.Node) or not isinstance(match["v"], fx.Node):
        return None
    try:
        found = read(match.root, match.uniform)
    except NoAttention as no:
        if no.matched:
            match.declined = Miss(no.node, no.why, no.matched + 1)
        return None
    return _fuse(match, found)


def _fuse(match: Match, found: Attention) -> Any:
    arguments = arguments_of(match, found)
    if arguments is None:
        return None
    q, k, v, total, causal, scale = arguments
    if is_symbolic(q.meta["val"]) or is_symbolic(k.meta["val"]):
        return _for_all_sizes(match, arguments)
    graph = match.trace(fused, [q, k, v, total, causal, scale])
    if not any("_scaled_dot_product_" in str(n.target) for n in graph.graph.nodes):
        return match.miss("no fused attention takes these shapes, types and layouts", found.softmax)
    out = match.replace_by_example(fused, [q, k, v, total, causal, scale])
    return _as_result(match, out)


def _for_all_sizes(match: Match, arguments: Arguments) -> Any:
    """The fused operator itself: tracing would ask the sizes questions to choose it."""
    q, k, v, total, causal, scale = arguments
    if q.meta["val"].device.type != "cpu":
        return match.miss("its sizes are symbolic")
    both = match.call(FLASH_CPU, q, k, v, 0.0, causal, attn_mask=total, scale=scale)
    return _as_result(match, match.call(operator.getitem, both, 0))


def arguments_of(match: Match, found: Attention) -> Arguments | None:
    """Queries, keys, values and mask as the fused operator takes them, whether it is causal, and the scale; None if
    declined."""
    lead = batch_and_heads(match, found)
    scale = found.scale
    nodes = []
    for name, flipped in (("q", False), ("k", True), ("v", False)):
        node, factor = _as_matrix(match, getattr(found, name), lead, flipped, unscaled=name == "v")
        scale *= factor
        nodes.append(node)
    q, k, v = nodes
    why = unfit(q, k, v)
    if why is not None:
        match.miss(why, found.softmax)
        return None
    chosen = choose_mask(match, found.masks, lead, shape(q)[-2], shape(k)[-2], q)
    return None if chosen is None else (q, k, v, chosen[1], chosen[0], scale)


def batch_and_heads(match: Match, found: Attention) -> tuple[int, int]:
    longest = max((*found.leads, shape(match.root)[:-2]), key=len)
    if len(longest) < 2:
        # A batch of heads in one dimension: perhaps it was two before.
        count = longest[0] if longest else 1
        before = [
            _grouped(node, count, flipped, match)
            for node, flipped in ((found.q, False), (found.k, True), (found.v, False))
        ]
        return next((lead for lead in before if lead is not None), (1, count))
    return longest[0], math.prod(longest[1:])


def _grouped(node: fx.Node, count: int, flipped: bool, match: Match) -> tuple[int, int] | None:
    """Batch and heads of a factor before they were made one dimension, if it can be taken from there."""
    source: Any = node
    for _ in range(12):
        if not isinstance(source, fx.Node) or source.op != "call_function":
            break
        size = shape(source) if isinstance(source.meta.get("val"), torch.Tensor) else ()
        if len(size) == 4 and size[0] * size[1] == count:
            lead = size[0], size[1]
            taken = not math.isnan(operand(node, lead, flipped, match.uniform)[2])
            return lead if taken else None
        source = source.args[0] if source.args else None
    return None


def _as_matrix(
    match: Match, node: fx.Node, lead: tuple[int, int], flipped: bool, unscaled: bool
) -> tuple[fx.Node, float]:
    """The factor as (batch, heads, rows, size), from where it was so already if possible; and its scale."""
    uniform = (lambda _: None) if unscaled else match.uniform
    source, still, factor = operand(node, lead, flipped, uniform)
    if math.isnan(factor):
        source, still, factor = match.call(aten.view.default, node, as_given((*lead, *shape(node)[-2:]))), flipped, 1.0
    if still:
        source = match.call(aten.transpose.int, source, -1, -2)
    return _contiguous_rows(match, source), factor


def _contiguous_rows(match: Match, node: fx.Node) -> fx.Node:
    value = node.meta["val"]
    if size_of(value.stride(-1)) == 1 or shape(node)[-1] == 1:
        return node
    return match.call(aten.clone.default, node, memory_format=torch.contiguous_format)


def unfit(q: fx.Node, k: fx.Node, v: fx.Node) -> str | None:
    """Why no fused attention takes them, or None. The size of a head is the last of `q` and `v`."""
    types = {n.meta["val"].dtype for n in (q, k, v)}
    if len(types) != 1:
        return f"queries, keys and values have different types: {sorted(str(t) for t in types)}"
    if next(iter(types)) not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        return f"no fused attention for {next(iter(types))}"
    if shape(q)[-1] != shape(v)[-1]:
        return f"the heads of queries and values have different sizes: {shape(q)[-1]} and {shape(v)[-1]}"
    return None


# -- masks ------------------------------------------------------------------------------------------
def choose_mask(
    match: Match, masks: list[Mask], lead: tuple[int, int], queries: int, keys: int, like: fx.Node
) -> tuple[bool, fx.Node | None] | None:
    """Whether attention is causal, and what else to add to the scores, of the type of `like`; None if declined."""
    causal, terms = False, []
    for mask in masks:
        kind = known_mask(match, mask, queries, keys, like)
        if kind == "causal" and not causal:
            causal = True
        elif kind != "nothing":
            terms.append(mask)
    if causal and terms:
        # The fused operator takes one or the other.
        causal, terms = False, list(masks)
    total = None
    for mask in terms:
        term = _additive(match, mask, lead, like)
        if term is None:
            match.miss(f"a score of {mask.fill} does not hide a key", mask.node)
            return None
        total = term if total is None else match.call(aten.add.Tensor, total, term)
    return causal, total if total is None else _contiguous_rows(match, total)


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
        proofs[key] = _proved(compact, mask, queries, keys, dtype)
    return proofs[key]


def _proved(compact: torch.Tensor, mask: Mask, queries: int, keys: int, dtype: torch.dtype) -> str:
    if mask.fill is not None:
        visible = compact.logical_not() if mask.inverted else compact.to(torch.bool)
        hidden = mask.fill <= _HIDDEN or (mask.fill <= -65504 and dtype == torch.float16)
    else:
        visible = compact == 0
        if bool(visible.all()):
            return "nothing"
        highest = compact.masked_fill(visible, float("-inf")) if mask.factor > 0 else compact
        hidden = mask.factor > 0 and highest.max().item() * mask.factor <= max(_HIDDEN, torch.finfo(dtype).min)
    if bool(visible.all()):
        return "nothing"
    return "causal" if hidden and is_causal(visible, queries, keys) else "some"


def _additive(match: Match, mask: Mask, lead: tuple[int, int], q: fx.Node) -> fx.Node | None:
    """The mask as a tensor to add to the scores, four-dimensional and of the queries' type; None if it is not one."""
    dtype, device = q.meta["val"].dtype, q.meta["val"].device
    node = mask.node
    if mask.fill is not None:
        if mask.fill > _HIDDEN:
            return None
        kept = match.full([], 0.0, dtype, device)
        hidden = match.full(
            [], max(mask.fill, torch.finfo(dtype).min) if mask.fill != float("-inf") else mask.fill, dtype, device
        )
        node = match.call(aten.where.self, node, *((hidden, kept) if mask.inverted else (kept, hidden)))
    else:
        if mask.factor != 1.0:
            node = match.call(aten.mul.Tensor, node, mask.factor)
        if node.meta["val"].dtype != dtype:
            node = match.call(aten._to_copy.default, node, dtype=dtype)
    return _four_dimensional(match, node, mask.lead, lead)


def _four_dimensional(match: Match, node: fx.Node, applied: tuple[int, ...], lead: tuple[int, int]) -> fx.Node:
    size = shape(node)
    missing = len(applied) + 2 - len(size)
    own = (1,) * missing + size
    if applied == lead or all(s == 1 for s in own[:-2]):
        wanted = own if applied == lead else (1, 1, *own[-2:])
        return (
            node
            if size == wanted
            else match.call(aten.view.default, node, as_given(wanted))
            if _viewable(node)
            else _copied(match, node, wanted)
        )
    whole = match.call(aten.expand.default, node, as_given((*applied, *own[-2:])))
    return _copied(match, whole, (*lead, *own[-2:]))


def _viewable(node: fx.Node) -> bool:
    return is_dense(node.meta["val"])


def _copied(match: Match, node: fx.Node, size: tuple[int, ...]) -> fx.Node:
    copy = match.call(aten.clone.default, node, memory_format=torch.contiguous_format)
    return match.call(aten.view.default, copy, as_given(size))


def _as_result(match: Match, out: fx.Node) -> fx.Node:
    """`out` for the root, or for the view right after it that already has the fused operator's shape."""
    root = match.root
    if shape(out) == shape(root):
        return out
    users = list(root.users)
    if (
        len(users) == 1
        and users[0].target in (aten.view.default, aten._unsafe_view.default)
        and shape(users[0]) == shape(out)
    ):
        match.stand_for(users[0])
        return out
    copy = match.call(aten.clone.default, out, memory_format=torch.contiguous_format)
    return match.call(aten._unsafe_view.default, copy, as_given(shape(root)))


# -- attention that is fused already ----------------------------------------------------------------
@rule(
    call(
        FLASH_CPU,
        Arg("q"),
        Arg("k"),
        Arg("v"),
        Arg("dropout"),
        False,
        attn_mask=Arg("mask"),
        scale=Arg("scale"),
        users=ANY,
    ),
    extra_check=lambda match: isinstance(match["mask"], fx.Node),
    any_size=True,
)
def attention_mask(match: Match) -> Any:
    """A mask given to the fused operator, if it hides nothing or exactly the future."""
    q, k, v = match["q"], match["k"], match["v"]
    kind = known_mask(match, Mask(match["mask"], 1.0, shape(q)[:2]), shape(q)[-2], shape(k)[-2], q)
    if kind == "some":
        return None
    return match.call(FLASH_CPU, q, k, v, match["dropout"], kind == "causal", scale=match["scale"])


@rule(
    call(
        _FLASH_CPU_BACKWARD,
        *(Arg(name) for name in ("grad", "q", "k", "v", "out", "logsumexp", "dropout")),
        False,
        attn_mask=Arg("mask"),
        scale=Arg("scale"),
        users=ANY,
    ),
    extra_check=lambda match: isinstance(match["mask"], fx.Node),
    any_size=True,
)
def attention_mask_backward(match: Match) -> Any:
    """The same mask in the backward: the proof does not depend on which side asks."""
    q, k = match["q"], match["k"]
    kind = known_mask(match, Mask(match["mask"], 1.0, shape(q)[:2]), shape(q)[-2], shape(k)[-2], q)
    if kind == "some":
        return None
    given = [match[name] for name in ("grad", "q", "k", "v", "out", "logsumexp", "dropout")]
    return match.call(_FLASH_CPU_BACKWARD, *given, kind == "causal", scale=match["scale"])


ATTENTION: Rules = (attention, attention_mask, attention_mask_backward)
