"""Attention: `softmax(q @ k^T * scale + mask) @ v` becomes one fused operator.

In: a functional ATen graph. Out: the same with `scaled_dot_product_attention`, which never builds the
matrix of scores. A mask that is proved to hide nothing is dropped, and one that is proved to be exactly
causal becomes `is_causal`; with either, the fused operator also skips work.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from litz.graph.eager_strides import FLASH_CPU
from litz.graph.match import Miss
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, is_symbolic, rule
from litz.graph.rules.attention_mask import Masking, choose_mask, contiguous_rows, known_mask, may_be_causal, zero_where
from litz.graph.rules.attention_read import Attention, Mask, NoAttention, operand, read, shape
from litz.graph.sizes import as_given, may_be_under, size_of

aten = torch.ops.aten

# With fewer scores than fill a vector the operator does not see that all of a row are NaN, and has zeros for it, as if
# there were no keys.
LANES = 16
FLASH_GPU = aten._scaled_dot_product_flash_attention.default
_FLASH_CPU_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@dataclass(frozen=True)
class Arguments:
    """What the fused operator is given."""

    q: fx.Node
    k: fx.Node
    v: fx.Node
    masking: Masking
    scale: float


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
    q, k, masking = arguments.q, arguments.k, arguments.masking
    if masking.alike is not None:
        q = match.replace_by_example(zero_where, [q, masking.alike])
    given = [q, k, arguments.v, masking.bias, masking.causal, arguments.scale]
    if is_symbolic(q.meta["val"]) or is_symbolic(k.meta["val"]):
        return _for_all_sizes(match, given)
    graph = match.trace(fused, given)
    if not any("_scaled_dot_product_" in str(n.target) for n in graph.graph.nodes):
        return match.miss("no fused attention takes these shapes, types and layouts", found.softmax)
    return _of_numbers(match, match.replace_by_example(fused, given), q, k)


def _for_all_sizes(match: Match, given: list[Any]) -> Any:
    """The fused operator itself: tracing would ask the sizes questions to choose it."""
    q, k, v, total, causal, scale = given
    why = why_not_for_all_sizes(q.meta["val"], total)
    if why is not None:
        return match.miss(why)
    if q.meta["val"].device.type == "cpu":
        several = match.call(FLASH_CPU, q, k, v, 0.0, causal, attn_mask=total, scale=scale)
    else:
        several = match.call(FLASH_GPU, q, k, v, 0.0, causal, False, scale=scale)
    return _of_numbers(match, match.call(operator.getitem, several, 0), q, k)


def why_not_for_all_sizes(q: torch.Tensor, mask: Any) -> str | None:
    """What stands in the way of calling a fused operator without asking sizes which one; None if nothing does."""
    if q.device.type == "cpu":
        return None
    if mask is not None:
        return "its sizes are symbolic, and it has a mask"
    head = size_of(q.shape[-1])
    if q.dtype not in (torch.bfloat16, torch.float16) or not isinstance(head, int) or head % 8 or head > 256:
        return "its sizes are symbolic, and flash attention may not take its type or its heads"
    usable = torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.is_flash_attention_available()
    return None if usable else "its sizes are symbolic, and there is no flash attention"


def _of_numbers(match: Match, out: fx.Node, q: fx.Node, k: fx.Node) -> Any:
    few = may_be_under(LANES, shape(k)[-2])
    return _as_result(match, match.replace_by_example(nan_for, [q, out]) if few else out)


def arguments_of(match: Match, found: Attention) -> Arguments | None:
    """Queries, keys, values and masks as the fused operator takes them, and the scale; None if declined."""
    lead = batch_and_heads(match, found)
    scale = found.scale
    nodes = []
    for name, flipped in (("q", False), ("k", True), ("v", False)):
        node, factor = _as_matrix(match, getattr(found, name), lead, flipped, unscaled=name == "v")
        scale *= factor
        nodes.append(node)
    q, k, v = nodes
    why = unfit(q, k, v) or perhaps_empty(lead, shape(q)[-2], shape(k)[-2])
    if why is not None:
        match.miss(why, found.softmax)
        return None
    sizes = lead, shape(q)[-2], shape(k)[-2]
    masking = choose_mask(match, found.masks, *sizes, q, scale, safe=found.is_safe, learns=False)
    return None if masking is None else Arguments(q, k, v, masking, scale)


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
    source, still, factor = operand(node, lead, flipped, None if unscaled else match.uniform)
    if math.isnan(factor):
        source, still, factor = match.call(aten.view.default, node, as_given((*lead, *shape(node)[-2:]))), flipped, 1.0
    if still:
        source = match.call(aten.transpose.int, source, -1, -2)
    return contiguous_rows(match, source), factor


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


def perhaps_empty(lead: tuple[Any, ...], queries: Any, keys: Any) -> str | None:
    """Which of the sizes may be none, or None: the fused operator divides by them."""
    for name, size in (("heads", lead[-1]), ("queries", queries), ("keys", keys)):
        if may_be_under(1, size):
            return f"the number of {name} may be zero: {size}"
    return None


def nan_for(q: Any, out: Any) -> Any:
    """The result of few keys: NaN, to gradients too, for a query that is infinite or NaN."""
    lost = (q.detach() * 0).sum(-1, keepdim=True).isnan()
    return out * torch.where(lost, math.nan, 1.0).to(out.dtype)


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
    if kind == "some" or (kind == "causal" and not may_be_causal(match["scale"])):
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
    if kind == "some" or (kind == "causal" and not may_be_causal(match["scale"])):
        return None
    given = [match[name] for name in ("grad", "q", "k", "v", "out", "logsumexp", "dropout")]
    return match.call(_FLASH_CPU_BACKWARD, *given, kind == "causal", scale=match["scale"])


ATTENTION: Rules = (attention, attention_mask, attention_mask_backward)
