"""Rules that pay on GPUs only; each checks the device of the tensors it would touch.

In: a functional ATen graph. Out: the same with linear layers whose result is transposed at once computed transposed.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule

aten = torch.ops.aten


def on_gpu(match: Match) -> bool:
    return match.root.meta["val"].device.type == "cuda"


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


GPU: Rules = (linear_permute,)
