"""Attention of halves on a CPU: two generated products, and what makes weights of the scores between them.

In: queries, keys and values. Out: their attention, where the scores are few enough to lie in memory; else the
library's. Scores are float32, as in the library's kernel, and so are the sums; weights are rounded to the type of the
values before they are multiplied, and divided by their sum after it, as there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Point, Space, Val, numel, wants
from litz.ops.matmul import pays_in_batch, product, product_into
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
    if dropout_p or attn_mask is not None or wants(node, 1) or not _pays(b, query, key, value):
        return b.library(node, args, kwargs)
    if not b.ctx.spend(f"attention at {node.name}"):
        return b.library(node, args, kwargs)
    factor = query.sizes[-1].int ** -0.5 if scale is None else scale

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
