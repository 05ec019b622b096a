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

from litz.graph.pattern import ANY, Wild, bind, call
from litz.graph.rewrite import Match, Rules, rule

NAMESPACE = "quantized_decomposed"


def quantised_formulas(graph: fx.Graph) -> Rules:
    return _rules() if any(getattr(node.target, "namespace", None) == NAMESPACE for node in graph.nodes) else ()


@lru_cache(maxsize=1)
def _rules() -> Rules:
    made = []
    for name, formula in _FORMULAS.items():
        target = _operator(name)
        if target is not None:
            made.append(
                rule(call(target, ..., users=ANY), name=name.partition(".")[0], any_size=True)(_rewrites(formula))
            )
    choice = _operator("choose_qparams.tensor")
    if choice is not None:
        one = call(operator.getitem, call(choice, ..., name="choice", users=ANY), Wild(), users=ANY)
        made.append(rule(one, name="choose_qparams", any_size=True)(_chosen))
    return tuple(made)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.quantized_decomposed, packet, None)
    return None if found is None else getattr(found, overload or "default", None)


def _rewrites(formula: Callable[..., torch.Tensor]) -> Callable[[Match], Any]:
    def rewrite(match: Match) -> Any:
        root = match.root
        given = bind(root.target, root.args, root.kwargs)
        return match.replace_by_example(formula, list(given.values()))

    rewrite.__code__ = rewrite.__code__.replace(co_firstlineno=formula.__code__.co_firstlineno)
    return rewrite


def _quantise(x: torch.Tensor, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    inverse = (1.0 / scale.double().reshape(())).float() if isinstance(scale, torch.Tensor) else 1.0 / scale
    zero = zero.reshape(()) if isinstance(zero, torch.Tensor) else zero
    return torch.clamp(torch.round(x.float() * inverse) + zero, low, high).to(dtype)


def _dequantise(
    x: torch.Tensor, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype, out_dtype: torch.dtype | None
) -> torch.Tensor:
    scale, zero = (v.reshape(()) if isinstance(v, torch.Tensor) else v for v in (scale, zero))
    return (x.to(out_dtype or torch.float32) - zero) * scale


def _quantise_channels(
    x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, axis: int, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    scales, zeros = _along(x, scales, axis), _along(x, zeros, axis)
    return torch.clamp(torch.round(x.float() * (1.0 / scales)) + zeros, low, high).to(dtype)


def _dequantise_channels(
    x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, axis: int, low: int, high: int,
    dtype: torch.dtype, out_dtype: torch.dtype | None,
) -> torch.Tensor:  # fmt: skip
    moved = x if zeros is None else x - _along(x, zeros, axis)
    return (moved * _along(x, scales, axis)).to(out_dtype or torch.float32)


def _along(x: torch.Tensor, numbers: torch.Tensor, axis: int) -> torch.Tensor:
    return numbers.reshape([-1 if d == axis else 1 for d in range(x.dim())])


def _chosen(match: Match) -> Any:
    choice = match["choice"]
    given = bind(choice.target, choice.args, choice.kwargs)
    return match.replace_by_example(_choose, [match.root.args[1], *list(given.values())[:-1]])


def _choose(which: int, x: torch.Tensor, low: int, high: int, eps: float) -> torch.Tensor:
    """The scale, or the zero point, of all numbers of a tensor. One that is not a number, which eager refuses, makes
    all of them so."""
    least, most = (extreme.float() for extreme in torch.aminmax(x))
    least, most = torch.clamp(least, max=0), torch.clamp(most, min=0)
    scale = torch.clamp((most - least) / float(high - low), min=eps)
    if which == 0:
        return scale.reshape(1).double()
    zero = low - torch.round(least / scale).to(torch.int32)
    return torch.clamp(zero, low, high).reshape(1).to(torch.int64)


_FORMULAS: dict[str, Callable[..., torch.Tensor]] = {
    "quantize_per_tensor": _quantise, "quantize_per_tensor.tensor": _quantise,
    "dequantize_per_tensor": _dequantise, "dequantize_per_tensor.tensor": _dequantise,
    "quantize_per_channel": _quantise_channels, "dequantize_per_channel": _dequantise_channels,
}  # fmt: skip

__all__ = ["NAMESPACE", "quantised_formulas"]
