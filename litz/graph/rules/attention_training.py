"""Attention in training: the forward and its backward together become the fused operator and its own backward.

In: a joint graph, as traced. Out: the same, where the scores are neither built nor kept for the backward.

The forward is read as in inference, in any spelling. Autograd is deterministic, so the backward of what was
read is found by making it again: the nodes of the forward, run as a function and differentiated, give the
exact pattern of forward and backward together. It must match at the same place, and nothing of it may be used
elsewhere. So this rule runs before all others, while the graph is still as autograd left it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from litz.graph.match import Matcher, Miss
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, identity, is_symbolic, metadata, rule
from litz.graph.rules.attention import (
    FLASH_CPU,
    FLASH_GPU,
    LANES,
    batch_and_heads,
    nan_for,
    perhaps_empty,
    unfit,
    why_not_for_all_sizes,
)
from litz.graph.rules.attention_mask import Weighted, choose_mask, lost_where, zero_where
from litz.graph.rules.attention_read import Attention, NoAttention, read, shape
from litz.graph.sizes import as_given, may_be_under
from litz.graph.trace_example import joint
from litz.graph.trace_pattern import pattern_of

aten = torch.ops.aten

# A head with fewer scores keeps them for less than fusing costs in accuracy: the fused backward makes the weights
# again from the logarithm of their sum.
_LEAST_SCORES = 24


@rule(call((aten.bmm.default, aten.mm.default), Arg("p"), Arg("v"), users=ANY), any_size=True)
def attention_training(match: Match) -> Any:
    try:
        found = read(match.root, match.uniform, shared=True)
    except NoAttention as no:
        if no.matched:
            match.declined = Miss(no.node, no.why, no.matched + 1)
        return None
    fused = _fused(match, found)
    if fused is None:
        return None
    function, inputs = fused
    both = _as_written(match, found)
    if isinstance(both, Miss):
        match.declined = both
        return None
    values = [node.meta["val"] for node in inputs]
    key = ("attention_training", identity(function), *(metadata(v) for v in values))
    traced = match.editor.example(key, lambda: joint(function, values, match.editor.mode, only=3))
    if not any("_scaled_dot_product_" in str(n.target) for n in traced.graph.nodes):
        return match.miss("no fused attention takes these shapes, types and layouts", found.softmax)
    match.found = both
    return match.editor.inline(traced, [*inputs, match["tangent_0"]], max(match.outputs), match.root)


def _as_written(match: Match, found: Attention) -> Any:
    """Forward and backward as they are in the graph, or the `Miss` that tells where the backward differs."""
    own = sorted({*found.passed, match.root})
    inside = set(own)
    first = [found.q, found.k, found.v]
    others = [i for node in own for i in node.all_input_nodes if i not in inside and i not in first]
    inputs = [*first, *dict.fromkeys(others)]

    def forward(*given: Any) -> Any:
        env = dict(zip(inputs, given, strict=True))
        for node in own:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return env[match.root]

    values = [node.meta["val"] for node in inputs]
    # Each layer of a model is written alike: traced once.
    number = {node: position for position, node in enumerate([*inputs, *own])}
    form = tuple(f"{n.target}{fx.node.map_arg((n.args, n.kwargs), lambda i: slice(number[i]))}" for n in own)
    key = ("as written", form, *(metadata(v) for v in values))
    traced = match.editor.example(key, lambda: joint(forward, values, match.editor.mode, only=3))
    names = [f"input_{i}" for i in range(len(inputs))] + ["tangent_0"]
    both = Matcher().match(pattern_of(traced, names, {}, exact=True), match.root)
    if isinstance(both, Miss):
        return both._replace(why=f"in the backward: {both.why}")
    if any(both.bindings[name] is not node for name, node in zip(names, inputs)):
        return Miss(match.root, "the backward belongs to another attention", len(both.nodes))
    return both


def _fused(match: Match, found: Attention) -> tuple[Callable[..., Any], list[fx.Node]] | None:
    """The fused attention as a function of the products' factors, and its inputs; None if declined."""
    inputs = [found.q, found.k, found.v]
    lead = batch_and_heads(match, found)
    queries, size, keys = *shape(found.q)[-2:], shape(found.k)[-1]
    why = unfit(*inputs) if len(set(inputs)) == 3 else "two of queries, keys and values are the same tensor"
    why = why or perhaps_empty(lead, queries, keys)
    if why is not None:
        match.miss(why, found.softmax)
        return None
    if isinstance(queries, int) and isinstance(keys, int) and queries * keys < _LEAST_SCORES:
        match.miss(f"{queries} by {keys} scores are too few to gain from not keeping them", found.softmax)
        return None
    sizes, scale = (lead, queries, keys), found.scale
    masking = choose_mask(match, found.masks, *sizes, found.q, scale, safe=found.is_safe, learns=True)
    if masking is None:
        return None
    parts = masking.parts()
    causal, names, safe = masking.causal, tuple(parts), found.is_safe
    result = shape(match.root)
    any_size = is_symbolic(found.q.meta["val"]) or is_symbolic(found.k.meta["val"])
    why = why_not_for_all_sizes(found.q.meta["val"], parts.get("bias")) if any_size else None
    if why is not None:
        match.miss(why, found.softmax)
        return None

    def function(q: Any, k: Any, v: Any, *given: Any) -> Any:
        mask = dict(zip(names, given, strict=True))
        q = _in_rows(q.reshape(as_given((*lead, queries, size))))
        k = k.transpose(-1, -2).reshape(as_given((*lead, keys, size))).contiguous()
        v = _in_rows(v.reshape(as_given((*lead, keys, size))))
        if "alike" in mask:
            q = zero_where(q, mask["alike"])
        if any_size and q.device.type != "cpu":
            out = FLASH_GPU(q, k, v, 0.0, causal, False, scale=scale)[0]
        elif any_size:  # the operator itself: choosing it would ask the sizes questions
            out, _ = FLASH_CPU(q, k, v, 0.0, causal, attn_mask=mask.get("bias"), scale=scale)
        else:
            attend = torch.nn.functional.scaled_dot_product_attention
            out = attend(q, k, v, attn_mask=mask.get("bias"), is_causal=causal, scale=scale)
        if may_be_under(LANES, keys):
            out = nan_for(q, out)
        if "weight" in mask:
            out = Weighted.apply(out, mask["weight"])
        if "lost" in mask:
            out = lost_where(out, v, mask["lost"], safe)
        return out.reshape(as_given(result))

    return function, [*inputs, *parts.values()]


def _in_rows(x: Any) -> Any:
    """The fused operator reads whole rows of memory, and looks at no stride."""
    step = x.stride(-1)
    return x if isinstance(step, int) and step == 1 else x.contiguous()


ATTENTION_TRAINING: Rules = (attention_training,)
