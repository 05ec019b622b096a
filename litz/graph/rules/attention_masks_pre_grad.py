"""Masks of `scaled_dot_product_attention` on GPUs, before autograd: dropped, named, or laid out.

In: a torch-level graph. Out: the same, where a mask that hides nothing is gone, one that hides exactly the future is
`is_causal`, and any other has rows in memory. GPUs have several fused attentions, and which one is called is decided
while the graph is traced, as eager does; all of them refuse a mask that is repeated along its rows, as those of
`transformers` are, and what is left then builds all the scores in float32.

What a mask is made of is traced by itself, and its elements are known where they depend on sizes alone: by evaluating
them, or, where sizes vary, as a formula.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.nn import functional

from litz.graph.elements import ALWAYS, Choice, Element, Elements, Truth, negated, positions
from litz.graph.mutation import mutates
from litz.graph.pattern import ANY, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.rules.attention_mask import hides, may_be_causal, proved
from litz.graph.rules.attention_read import Mask, shape
from litz.graph.rules.gpu import on_gpu
from litz.graph.trace_example import trace_example
from litz.graph.uniform import Constants

_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@rule(call(functional.scaled_dot_product_attention, users=ANY), any_size=True, extra_check=on_gpu)
def attention_with_known_mask(match: Match) -> Any:
    given = dict(zip(_PARAMETERS, match.root.args, strict=False)) | dict(match.root.kwargs)
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    if not isinstance(mask, fx.Node) or given.get("is_causal") or mask.meta["val"].requires_grad:
        return None
    kind = _kind(match, mask, query, key)
    if kind == "some" or (kind == "causal" and not may_be_causal(given.get("scale"))):
        step = mask.meta["val"].stride(-1)
        if isinstance(step, int) and step == 1:
            return None
        given["attn_mask"] = match.call(torch.clone, mask, memory_format=torch.contiguous_format)
    else:
        given |= {"attn_mask": None, "is_causal": kind == "causal"}
    return match.call(match.root.target, given.pop("query"), given.pop("key"), given.pop("value"), **given)


def _kind(match: Match, mask: fx.Node, query: fx.Node, key: fx.Node) -> str:
    """As of `known_mask`. Every layer asks about the same mask."""
    known, proofs = (mask, shape(query)[-2], shape(key)[-2], query.meta["val"].dtype), match.constants.proofs
    if known not in proofs:
        traced, result = _traced(match, mask) or (None, None)
        compact = None if traced is None or result is None else Constants(traced).compact(result)
        if compact is not None:
            boolean = mask.meta["val"].dtype == torch.bool
            read = Mask(mask, 1.0, shape(query)[:2], fill=float("-inf") if boolean else None)
            proofs[known] = proved(compact, read, *known[1:])
        else:
            proofs[known] = "some" if traced is None or result is None else _read(traced, result, known[-1])
    return proofs[known]


def _read(traced: fx.GraphModule, mask: fx.Node, dtype: torch.dtype) -> str:
    """The same of a mask over sizes known only at run time, by the formula of its elements."""
    element: Element | None = Elements(traced).of(mask)
    place = positions(mask.meta["val"])
    if isinstance(element, Choice):
        added = (element.this, element.other)
        if 0.0 not in added or not hides(min(added), dtype):
            return "some"
        element = element.when if element.this == 0 else negated(element.when)
    if not isinstance(element, Truth) or place is None or len(place) < 2:
        return "some"
    if element == ALWAYS:
        return "nothing"
    return "causal" if element == Truth(frozenset({place[-2] - place[-1]})) else "some"


def _traced(match: Match, mask: fx.Node) -> tuple[fx.GraphModule, fx.Node] | None:
    """What the mask is made of, as a graph of its own, and the mask there."""
    own = _ancestors(mask)
    if any(mutates(node) or any(mutates(user) for user in node.users) for node in own):
        return None
    inputs = [n for n in own if n.op in ("placeholder", "get_attr")]
    made = [n for n in own if n not in inputs]
    if any(n.op not in ("call_function", "call_method") for n in made):
        return None

    def function(*values: Any) -> Any:
        env = dict(zip(inputs, values, strict=True))
        for node in made:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
            if node.op == "call_method":
                env[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                env[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return env[mask]

    traced = trace_example(function, [node.meta.get("val") for node in inputs], match.editor.mode)
    (output,) = (n for n in traced.graph.nodes if n.op == "output")
    result: Any = output.args[0]
    return (traced, result) if isinstance(result, fx.Node) else None


def _ancestors(node: fx.Node) -> list[fx.Node]:
    """The node and all that it is made of, in their order."""
    found, todo = {node}, [node]
    while todo:
        new = [above for above in todo.pop().all_input_nodes if above not in found]
        found.update(new)
        todo += new
    return sorted(found)


ATTENTION_MASKS_PRE_GRAD: Rules = (attention_with_known_mask,)
