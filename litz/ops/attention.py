"""Attention on a CPU, where the library's is slower: of halves, and of a single query over a cache.

In: queries, keys and values. Of halves: two generated products, and what makes weights of the scores between them,
where the scores are few enough to lie in memory. Scores are float32, as in the library's kernel, and so are the sums;
weights are rounded to the type of the values before they are multiplied, and divided by their sum after it, as there.

A single query, as a token at a time has, is bound by the memory that keys and values are read from: its scores are sums
along keys, its result sums down values, and each of them is read once, in one stream, as it lies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.loop.expr import ONE, ZERO
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Space, Val, broadcast, numel, wants
from litz.ops.matmul import pays_in_batch, product, product_into, wide
from litz.ops.norm import over, split_point
from litz.ops.registry import lowers

aten = torch.ops.aten

_TYPES = ("bf16", "f16")
_MOST_SCORES = 1 << 22  # more of them are not worth their memory


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention(
    b: Builder, node: fx.Node, query: View, key: View, value: View, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: View | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    args, kwargs = (query, key, value, dropout_p, is_causal), {"attn_mask": attn_mask, "scale": scale}
    factor = query.sizes[-1].int ** -0.5 if scale is None and query.sizes[-1].is_int else scale
    is_single = query.sizes[-2] is ONE and not (dropout_p or is_causal or wants(node, 1) or factor is None)
    if is_single and _pays_single(b, query, key) and b.ctx.spend(f"attention at {node.name}"):
        assert factor is not None
        return _of_single_query(b, node, query, key, value, attn_mask, factor), None
    if dropout_p or attn_mask is not None or wants(node, 1) or not _pays(b, query, key, value):
        return b.library(node, args, kwargs)
    if not b.ctx.spend(f"attention at {node.name}"):
        return b.library(node, args, kwargs)
    assert factor is not None

    def scaled(body: Body, point: Point, total: Val) -> Val:
        return total * factor

    scores = b.scratch((*query.sizes[:-1], key.sizes[-2]), "f32")
    product_into(b, scores, query, _turned(key), scaled)
    weights, inverse = _weights(b, scores, is_causal, value.dtype)

    def divided(body: Body, point: Point, total: Val) -> Val:
        return total * body.load(inverse, point[:-1])

    return product(b, node.meta["val"][0], weights, value, divided), None


def _pays(b: Builder, query: View, key: View, value: View) -> bool:
    few = numel((*query.sizes[:-1], key.sizes[-2])).hint <= _MOST_SCORES
    sizes = (query.sizes[-2], key.sizes[-2], query.sizes[-1], value.sizes[-1])
    if query.dtype not in _TYPES or not few or not all(size.is_int and size.int > 1 for size in sizes):
        return False
    rows, columns, depth, width = sizes
    return pays_in_batch(b, query.dtype, rows, columns, depth) and pays_in_batch(b, query.dtype, rows, width, columns)


def _pays_single(b: Builder, query: View, key: View) -> bool:
    is_generated = b.ctx.target.generates_products and b.ctx.options.matmul != "library"
    return is_generated and query.dtype in ("f32", *_TYPES) and query.dtype == key.dtype and key.sizes[-2] is not ZERO


def _of_single_query(
    b: Builder, node: fx.Node, query: View, key: View, value: View, mask: View | None, factor: float
) -> View:
    """The three steps, each a walk over rows: scores of keys, their weights, and what those make of the values."""
    group = query.sizes[1] // key.sizes[1]  # of heads that share keys and values
    scores = b.scratch((*query.sizes[:2], key.sizes[-2]), "f32")
    space, body = Space(), Body()
    n, head, at = space.over(scores.sizes)
    d = space.reduce_over(query.sizes[-1])
    factors = (body.load(query, (n, head, ZERO, d)), body.load(key, (n, head // group, at, d)))
    score = over(space, body, "sum", wide(body, factors[0]) * wide(body, factors[1])) * factor
    if mask is not None:
        score = _masked(body, score, body.load(mask, broadcast(mask, (n, head, ZERO, at))))
    body.store(scores, (n, head, at), score)
    b.emit(space, body)
    weights, inverse = b.scratch(scores.sizes, "f32"), b.scratch(scores.sizes[:-1], "f32")
    space, body = Space(), Body()
    point = split_point(space, weights, [2])
    score = body.load(scores, point)
    none = body.const(float("-inf"), "f32")
    most = over(space, body, "max", score)
    weight = body.apply("exp", score - body.where(most.eq(none), 0.0, most))
    total = over(space, body, "sum", weight)
    body.store(weights, point, weight)
    body.store(inverse, point[:-1], body.const(1, "f32") / body.where(total.eq(0), 1.0, total))  # zero, not NaN
    b.emit(space, body)
    out = b.allocate(node.meta["val"][0])
    space, body = Space(), Body()
    n, head, one, d = space.over(out.sizes, out.strides)
    at = space.reduce_over(key.sizes[-2])
    seen = wide(body, body.load(value, (n, head // group, at, d)))
    total = over(space, body, "sum", body.load(weights, (n, head, at)) * seen)
    if at is ZERO:
        total = total + 0.0  # libraries begin sums with a zero, of one key too: −0.0 comes out as 0.0
    body.store(out, (n, head, one, d), total * body.load(inverse, (n, head)))
    b.emit(space, body)
    return out


def _masked(body: Body, score: Val, mask: Val) -> Val:
    if mask.dtype == "b1":
        return body.where(mask, score, body.const(float("-inf"), "f32"))
    return score + body.cast(mask, "f32")


def _turned(view: View) -> View:
    return replace(
        view, sizes=(*view.sizes[:-2], view.sizes[-1], view.sizes[-2]),
        strides=(*view.strides[:-2], view.strides[-1], view.strides[-2]),
    )  # fmt: skip


def _weights(b: Builder, scores: View, is_causal: bool, dtype: str) -> tuple[View, View]:
    """What each value counts, before they are divided by their sum, and one by that sum."""
    weights, inverse = b.scratch(scores.sizes, dtype), b.scratch(scores.sizes[:-1], "f32")
    space, body = Space(), Body()
    point = split_point(space, weights, [len(scores.sizes) - 1])
    score = body.load(scores, point)
    if is_causal:
        seen = body.index(point[-1]) <= body.index(point[-2])
        score = body.where(seen, score, body.const(float("-inf"), "f32"))
    weight = body.apply("exp", score - over(space, body, "max", score))
    total = over(space, body, "sum", weight)
    body.store(weights, point, weight)
    body.store(inverse, point[:-1], body.const(1, "f32") / total)
    b.emit(space, body)
    return weights, inverse


__all__ = ["flash_attention"]
