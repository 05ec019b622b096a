"""Rules that pay on GPUs only; each checks the device of the tensors it would touch.

In: a functional ATen graph. Out: the same with matrix products of odd sizes padded to what tensor cores
take, and linear layers whose result is transposed at once computed transposed.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule

aten = torch.ops.aten

_MULTIPLE = {torch.float16: 8, torch.bfloat16: 8, torch.float32: 4}
_LEAST_WORK = 1 << 24  # multiplications below which padding costs more than it saves


def on_gpu(match: Match) -> bool:
    return match.root.meta["val"].device.type == "cuda"


def _padding(match: Match, a: Any, b: Any) -> tuple[int, int, int] | None:
    """What to add to rows, inner size and columns, or None if nothing or not worth it."""
    x, y = a.meta["val"], b.meta["val"]
    m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
    multiple = _MULTIPLE.get(x.dtype)
    if multiple is None or m * k * n < _LEAST_WORK:
        return None
    missing = tuple(-size % multiple for size in (m, k, n))
    return missing if any(missing) else None  # type: ignore[return-value]


def _padded(match: Match, node: Any, rows: int, columns: int) -> Any:
    return (
        node if not rows and not columns else match.call(aten.constant_pad_nd.default, node, [0, columns, 0, rows], 0)
    )


def _cut(match: Match, node: Any, rows: int, columns: int) -> Any:
    rank = node.meta["val"].dim()
    for dim, extra in ((rank - 2, rows), (rank - 1, columns)):
        if extra:
            node = match.call(aten.slice.Tensor, node, dim, 0, node.meta["val"].shape[dim] - extra)
    return match.call(aten.clone.default, node, memory_format=torch.contiguous_format) if rows or columns else node


@rule(call((aten.mm.default, aten.bmm.default), Arg("a"), Arg("b"), users=ANY), extra_check=on_gpu)
def pad_mm(match: Match) -> Any:
    missing = _padding(match, match["a"], match["b"])
    if missing is None:
        return None
    m, k, n = missing
    product = match.call(match.root.target, _padded(match, match["a"], m, k), _padded(match, match["b"], k, n))
    return _cut(match, product, m, n)


@rule(call(aten.addmm.default, Arg("bias"), Arg("a"), Arg("b"), users=ANY), extra_check=on_gpu)
def pad_addmm(match: Match) -> Any:
    missing = _padding(match, match["a"], match["b"])
    bias = match["bias"].meta["val"]
    if missing is None or bias.dim() != 1:
        return None
    m, k, n = missing
    longer = match.call(aten.constant_pad_nd.default, match["bias"], [0, n], 0) if n else match["bias"]
    product = match.call(aten.addmm.default, longer, _padded(match, match["a"], m, k), _padded(match, match["b"], k, n))
    return _cut(match, product, m, n)


_LINEAR = call(
    aten.addmm.default,
    Arg("bias"),
    call(aten.view.default, Arg("x"), ..., users=ANY),
    call(aten.t.default, Arg("w"), users=ANY),
)


@rule(
    call(
        aten.clone.default,
        call((aten.transpose.int, aten.permute.default), call(aten.view.default, _LINEAR, ...), ..., name="turn"),
        ...,
        users=ANY,
    ),
    extra_check=on_gpu,
)
def linear_permute(match: Match) -> Any:
    """`linear(x)` turned and copied: `w @ x^T`, which is laid out so from the start."""
    x, turn = match["x"], match["turn"]
    value = x.meta["val"]
    if value.dim() != 3 or tuple(match.root.meta["val"].shape) != (
        value.shape[0],
        match["w"].meta["val"].shape[0],
        value.shape[1],
    ):
        return None
    if turn.meta["val"].stride(-1) == 1 or not match.root.meta["val"].is_contiguous():
        return None
    turned = match.call(aten.transpose.int, x, 1, 2)
    w = match.call(
        aten.expand.default,
        match.call(aten.unsqueeze.default, match["w"], 0),
        [value.shape[0], *match["w"].meta["val"].shape],
    )
    bias = match.call(aten.unsqueeze.default, match["bias"], -1)
    return match.call(aten.baddbmm.default, bias, w, turned)


GPU: Rules = (pad_mm, pad_addmm, linear_permute)
