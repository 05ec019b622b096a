"""Operators that tracing takes apart into others, which have lowerings.

In: torch's table of decompositions. Out: the part of it that Litz wants: operators without a lowering of their own
whose parts are generated, in as good a precision (the operator sweep says so). Heavy operators stay whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from litz.ops.refused import is_refused
from litz.ops.registry import LOWERINGS

_NAMES = (
    "_chunk_cat", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "addr", "affine_grid_generator",
    "as_strided_copy", "as_strided_scatter", "binary_cross_entropy", "binary_cross_entropy_with_logits", "block_diag",
    "bucketize", "col2im", "dist", "im2col", "isin", "linalg_cross", "max_unpool2d", "max_unpool3d",
    "multi_margin_loss", "mvlgamma", "nll_loss2d_forward", "norm",
    "renorm", "rot90", "soft_margin_loss", "special_entr", "special_log_ndtr", "special_xlog1py", "trace",
    "upsample_bicubic2d",
)  # fmt: skip


# Calls of which torch's parts make something of another type than eager does.
_LEFT_WHOLE: dict[str, Callable[..., bool]] = {
    "bucketize": lambda x, boundaries, *rest, **options: 0 in boundaries.shape,
}


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Built anew where torch's table has changed."""
    return _in_use(tuple(taken_from_torch()))


@lru_cache(maxsize=2)
def _in_use(
    taken: tuple[tuple[torch._ops.OpOverload, Callable[..., Any]], ...],
) -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    return {op: _as_eager(op, function) for op, function in taken if op not in LOWERINGS}


def taken_from_torch() -> list[tuple[torch._ops.OpOverload, Callable[..., Any]]]:
    """Operators and their decompositions, as they stand in torch's table now."""
    from torch._decomp import decomposition_table

    return [(operator, decomposition_table[operator]) for operator in _named() if operator in decomposition_table]


@lru_cache(maxsize=1)
def _named() -> tuple[torch._ops.OpOverload, ...]:
    packets = [packet for name in _NAMES if (packet := getattr(torch.ops.aten, name, None)) is not None]
    return tuple(getattr(packet, name) for packet in packets for name in packet.overloads() if "out" not in name)


def _as_eager(operator: torch._ops.OpOverload, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Bytes go to the operator itself: eager interpolates images in whole numbers, and rounds in a way of its own.
    So do types that eager refuses, which the parts might take."""
    left_whole = _LEFT_WHOLE.get(operator.overloadpacket.__name__, lambda *args, **kwargs: False)

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        first = next((a for a in args if isinstance(a, torch.Tensor)), None)
        if first is not None and first.dtype is torch.uint8:
            return NotImplemented
        if left_whole(*args, **kwargs) or is_refused(operator, args, kwargs, None):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decomposed
