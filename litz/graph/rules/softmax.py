"""Softmax written out: `exp(x - max) / sum` becomes the operator, so that attention is recognised."""

from __future__ import annotations

from typing import Any

import torch

from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule

aten = torch.ops.aten

_SHIFTED = call(aten.sub.Tensor, Arg("x"), call(aten.amax.default, Arg("x"), Arg("dims"), True))
_RAISED = call(aten.exp.default, _SHIFTED, name="raised")


@rule(call(aten.div.Tensor, _RAISED, call(aten.sum.dim_IntList, _RAISED, Arg("dims"), True), users=ANY), any_size=True)
def softmax(match: Match) -> Any:
    dims = match["dims"]
    if len(dims) != 1 or not match["x"].meta["val"].is_floating_point():
        return None
    return match.call(aten._softmax.default, match["x"], dims[0], False)


SOFTMAX: Rules = (softmax,)
