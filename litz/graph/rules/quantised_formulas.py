"""What quantises and dequantises, as arithmetic: operators of `quantized_decomposed` that no product has taken in.

In: a graph. Out: rules for such operators of it, each of which becomes ATen's operators in their order and types, which
fuse like any others. The namespace exists only once torch's quantisation has been imported, and so do the rules.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from litz.graph.pattern import ANY, Arg, Wild, bind, call
from litz.graph.rewrite import Match, Rule, Rules, rule

aten = torch.ops.aten

NAMESPACE = "quantized_decomposed"


def quantised_formulas(graph: fx.Graph) -> Rules:
    return _rules() if any(getattr(node.target, "namespace", None) == NAMESPACE for node in graph.nodes) else ()


@lru_cache(maxsize=1)
def _rules() -> Rules:
    made = _pools()
    for name, formula in _FORMULAS.items():
        target = _operator(name)
        if target is not None:
            named = name.partition(".")[0]
            made.append(rule(call(target, ..., users=ANY), name=named, any_size=True)(formula))
    choice = _operator("choose_qparams.tensor")
    if choice is not None:
        one = call(operator.getitem, call(choice, ..., name="choice", users=ANY), Wild(), users=ANY)
        made.append(rule(one, name="choose_qparams", any_size=True)(_chosen))
    return tuple(made)


def _pools() -> list[Rule]:
    """What is dequantised, pooled by its maximum and quantised as it was, is pooled as it is: scales are positive."""
    back, there = _operator("dequantize_per_tensor"), _operator("quantize_per_tensor")
    how = [Arg(name) for name in ("scale", "zero", "low", "high", "dtype")]
    pool = call(aten.max_pool2d_with_indices.default, call(back, Arg("x"), *how, ..., users=ANY), ..., name="pool")
    largest = call(there, call(operator.getitem, pool, 0), *how, users=ANY)
    return [rule(largest, name="quantised_max_pool", any_size=True)(_pooled)]


def _pooled(match: Match) -> Any:
    pool = match["pool"]
    if match["x"].meta["val"].dtype is not match["dtype"] or pool.args[0].meta["val"].dtype is not torch.float32:
        return match.miss("it is quantised to another type")
    pooled = match.call(pool.target, match["x"], *pool.args[1:], **pool.kwargs)
    return match.call(operator.getitem, pooled, 0)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.quantized_decomposed, packet, None)
    return None if found is None else getattr(found, overload or "default", None)


def _quantise(match: Match) -> fx.Node:
    """Clamped, and half a step rounded to even, in float32 whatever the tensor's type."""
    x, scale, zero, low, high, dtype = _arguments(match)
    if isinstance(scale, fx.Node):
        wide = cast(match, _number(match, scale), torch.float64)
        inverse: Any = cast(match, match.call(aten.reciprocal.default, wide), torch.float32)
    else:
        inverse = 1.0 / scale
    return _rounded(match, x, inverse, _number(match, zero), low, high, dtype)


def _quantise_channels(match: Match) -> fx.Node:
    x, scales, zeros, axis, low, high, dtype = _arguments(match)
    inverse = match.call(aten.reciprocal.default, _along(match, x, scales, axis))
    return _rounded(match, x, inverse, _along(match, x, zeros, axis), low, high, dtype)


def _rounded(match: Match, x: fx.Node, inverse: Any, zero: Any, low: int, high: int, dtype: torch.dtype) -> fx.Node:
    steps = match.call(aten.round.default, match.call(aten.mul.Tensor, cast(match, x, torch.float32), inverse))
    moved = steps if _is_none(zero) else match.call(aten.add.Tensor, steps, zero)
    return cast(match, match.call(aten.clamp.default, moved, low, high), dtype)


def _dequantise(match: Match) -> fx.Node:
    x, scale, zero, _, _, _, dtype = _arguments(match)
    moved = cast(match, x, dtype or torch.float32)
    if not _is_none(zero):
        moved = match.call(aten.sub.Tensor, moved, _number(match, zero))
    # A tensor that is one number has the type of its scale by now.
    return cast(match, match.call(aten.mul.Tensor, moved, _number(match, scale)), dtype or torch.float32)


def _dequantise_channels(match: Match) -> fx.Node:
    x, scales, zeros, axis, _, _, _, dtype = _arguments(match)
    moved = x if zeros is None else match.call(aten.sub.Tensor, x, _along(match, x, zeros, axis))
    return cast(match, match.call(aten.mul.Tensor, moved, _along(match, x, scales, axis)), dtype or torch.float32)


def _chosen(match: Match) -> fx.Node:
    """The scale, or the zero point, of all numbers of a tensor. One that is not a number, which eager refuses, makes
    the scale none."""
    choice = match["choice"]
    x, low, high, eps, _ = bind(choice.target, choice.args, choice.kwargs).values()
    return match.replace_by_example(_choose, [match.root.args[1], x, low, high, eps])


def _choose(which: int, x: torch.Tensor, low: int, high: int, eps: float) -> torch.Tensor:
    least, most = (extreme.float() for extreme in torch.aminmax(x))
    least, most = torch.clamp(least, max=0), torch.clamp(most, min=0)
    scale = torch.clamp((most - least) / float(high - low), min=eps)
    if which == 0:
        return scale.reshape(1).double()
    zero = low - torch.round(least / scale).to(torch.int32)
    return torch.clamp(zero, low, high).reshape(1).to(torch.int64)


# -- parts ------------------------------------------------------------------------------------------
def _arguments(match: Match) -> tuple[Any, ...]:
    return tuple(bind(match.root.target, match.root.args, match.root.kwargs).values())


def cast(match: Match, x: fx.Node, dtype: torch.dtype) -> fx.Node:
    return x if x.meta["val"].dtype is dtype else match.call(aten._to_copy.default, x, dtype=dtype)


def _number(match: Match, value: Any) -> Any:
    """A tensor of one element as one number, which has no type of its own."""
    return match.call(aten.view.default, value, []) if isinstance(value, fx.Node) else value


def _is_none(zero: Any) -> bool:
    return not isinstance(zero, fx.Node) and zero == 0


def _along(match: Match, x: fx.Node, numbers: fx.Node, axis: int) -> fx.Node:
    return match.call(aten.view.default, numbers, [-1 if d == axis else 1 for d in range(x.meta["val"].dim())])


_FORMULAS: dict[str, Callable[[Match], fx.Node]] = {
    "quantize_per_tensor": _quantise, "quantize_per_tensor.tensor": _quantise,
    "dequantize_per_tensor": _dequantise, "dequantize_per_tensor.tensor": _dequantise,
    "quantize_per_channel": _quantise_channels, "dequantize_per_channel": _dequantise_channels,
}  # fmt: skip

__all__ = ["NAMESPACE", "cast", "quantised_formulas"]
