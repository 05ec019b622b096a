"""Activations written out: each becomes the one operator that computes it, in inference and in training.

In: a functional ATen graph. Out: the same with `gelu` and `silu`. These rules are traced from examples; their
patterns are kept in `serialized.py`, so that loading them traces nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from litz.graph.replacement import forward_only, joint, register_replacement
from litz.graph.rewrite import Match, Rule, Rules
from litz.graph.rules.serialized import PATTERNS


def gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_tanh_fused(x: Any) -> Any:
    return functional.gelu(x, approximate="tanh")


def gelu_erf(x: Any) -> Any:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_erf_fused(x: Any) -> Any:
    return functional.gelu(x)


def silu(x: Any) -> Any:
    return x * torch.sigmoid(x)


def silu_fused(x: Any) -> Any:
    return functional.silu(x)


PAIRS: tuple[tuple[Callable[..., Any], Callable[..., Any]], ...] = (
    (gelu_tanh, gelu_tanh_fused),
    (gelu_erf, gelu_erf_fused),
    (silu, silu_fused),
)


def example() -> torch.Tensor:
    return torch.empty(4, 8, device="meta")


def _is_real(match: Match) -> bool:
    return not match.root.meta["val"].is_complex()


def build(patterns: dict[str, Any]) -> Rules:
    """The rules, with patterns from `patterns` where it has them."""
    made: list[Rule] = []
    for search, replace in PAIRS:
        # The joint form first: where there is a backward, the forward alone must not match.
        for trace, name in ((joint, f"{search.__name__}_training"), (forward_only, search.__name__)):
            made.append(
                register_replacement(
                    search, replace, [example()], trace, name=name, extra_check=_is_real, pattern=patterns.get(name)
                )
            )
    return tuple(made)


ACTIVATION: Rules = build(PATTERNS)
