"""Higher-order operators that are plain computations: written out before the trace.

In: Dynamo's graph and those in it, changed in place. A checkpoint becomes the call it means, and so does a region that
is compiled once for many calls; `flex_attention` becomes its formula with the user's functions in it, and a function
with a backward of its own one that any trace can follow. Those that decide at run time are the business of
`segments.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from litz.capture.run_graph import checkpointed


def write_out(graph_module: fx.GraphModule) -> None:
    for module in graph_module.modules():
        if isinstance(module, fx.GraphModule):
            _write_out_one(module)


def _write_out_one(graph_module: fx.GraphModule) -> None:
    operators = torch.ops.higher_order
    changed = False
    for node in graph_module.graph.nodes:
        if node.target is operators.tag_activation_checkpoint:
            # It runs its region twice and leaves it to the compiler to draw the same random numbers both times;
            # a plain call draws once, whoever runs it.
            node.target, node.kwargs, changed = checkpointed, {}, True
        elif node.target is operators.flex_attention:
            node.target, changed = attend, True
        elif node.target is operators.invoke_subgraph:
            node.target, changed = called, True
        elif node.target is operators.autograd_function_apply and "saved_for_backward_idx" in node.kwargs:
            # It marks what it saves in the graph that it takes every trace to write, and knows one kind of.
            node.target, changed = differentiated, True
    if changed:
        graph_module.recompile()


def called(module: fx.GraphModule, name: str, *args: Any) -> Any:
    """A region that is compiled once for many calls: a call like any other."""
    return module(*args)


def differentiated(
    forward: fx.GraphModule, backward: fx.GraphModule, *args: Any, non_differentiable_idx: Sequence[int],
    dirty_idx: Sequence[int] = (), **_: Any,
) -> Any:  # fmt: skip
    """A function with a backward of the user's own, both captured: `forward` also gives what the other needs."""
    saved: Sequence[Any] = ()

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*given: Any) -> Any:
            nonlocal saved
            output, saved = forward(*given)
            return output

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            results = output if isinstance(output, (tuple, list)) else (output,)
            ctx.mark_dirty(*(results[i] for i in dirty_idx))
            ctx.mark_non_differentiable(*(results[i] for i in non_differentiable_idx))

        @staticmethod
        def backward(ctx: Any, *tangents: Any) -> Any:
            return backward(*tangents, *saved)

    return Function.apply(*args)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Callable[..., Any], block_mask: tuple,
    scale: float, kernel_options: Any, score_buffers: Sequence[Any] = (), mask_buffers: Sequence[Any] = (),
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """`flex_attention`: the output, and in base 2 the logarithm of the sum and the maximum of each row's scores."""
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
    positions = [torch.arange(size, device=scores.device) for size in scores.shape]
    with _indexing_by_tensors():
        visible = _over_all(block_mask[-1], 0, len(mask_buffers))(*positions, *mask_buffers)
        changed = _over_all(score_mod, 1, len(score_buffers))(scores, *positions, *score_buffers)
    scores = torch.where(visible, changed.to(wide), -math.inf)
    highest = scores.amax(-1)
    total = torch.where(highest == -math.inf, -math.inf, scores.logsumexp(-1))
    weights = torch.where((highest == -math.inf).unsqueeze(-1), 0.0, scores.softmax(-1))
    out = weights.to(query.dtype) @ value.to(query.dtype)
    return _ordered_as(out, query), total / math.log(2), highest / math.log(2)


def _over_all(function: Callable[..., Any], scores: int, buffers: int) -> Callable[..., Any]:
    """The user's function of one score and its four positions, over all of them."""
    for dim in (3, 2, 1, 0):
        positions = [0 if d == dim else None for d in range(4)]
        function = torch.vmap(function, in_dims=(*[0] * scores, *positions, *[None] * buffers), out_dims=0)
    return function


def _indexing_by_tensors() -> Any:
    """`table[h]` with a position that is a tensor is an index here, as it is in eager's run of these functions."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    return TransformGetItemToIndex()


def _ordered_as(out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """`out` with its dimensions in memory in the order of the query's, the last one innermost."""
    order = sorted(range(out.dim() - 1), key=lambda d: query.stride(d), reverse=True) + [out.dim() - 1]
    back = [order.index(d) for d in range(out.dim())]
    return out.permute(order).contiguous().permute(back)


__all__ = ["write_out"]
