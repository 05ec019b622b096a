"""Rows in which a mask leaves no key to look at: a softmax's numbers and gradients, not the fused operator's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

import litz
from litz.graph.rules.attention import ATTENTION
from litz.graph.rules.attention_training import ATTENTION_TRAINING
from tests.graph.rewriting import rewrite
from tests.graph.test_attention import FLASH, B, D, H, S

INF = math.inf
FILLS = {"-1e9": lambda t: -1e9, "least": lambda t: torch.finfo(t).min, "-inf": lambda t: -INF}


def rows() -> torch.Tensor:
    """What is seen: nothing in row 3 of the first batch, a part of the keys elsewhere."""
    torch.manual_seed(2)
    seen = torch.rand(B, 1, S, S) > 0.4
    seen[..., 0] = True
    seen[0, :, 3] = False
    return seen


def added(seen: torch.Tensor, low: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, low)


MASKS = {
    "filled": lambda s, m, low: s.masked_fill(~m, low),
    "chosen": lambda s, m, low: torch.where(m, s, low),
    "added": lambda s, m, low: s + added(m, low, s.dtype),
    "filled for whole queries": lambda s, m, low: s.masked_fill(~m.any(-1, keepdim=True), low),
    "added for whole queries": lambda s, m, low: s + added(m.any(-1, keepdim=True), low, s.dtype),
    "a bias, then filled": lambda s, m, low: (s + m.to(s.dtype) * 2).masked_fill(~m, low),
    "filled, then a bias": lambda s, m, low: s.masked_fill(~m, low) + m.to(s.dtype) * 2,
    "filled twice": lambda s, m, low: s.masked_fill(~m[:1], low).masked_fill(~m[1:], -1e30),
    "filled and added": lambda s, m, low: s.masked_fill(~m[:1], low) + torch.where(m, 0.0, -1e30).to(s.dtype),
}


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(("name", "scale"), [*((name, 0.3) for name in MASKS), ("filled", 30.0), ("chosen", 30.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_rows_hidden_whole(training: bool, dtype: torch.dtype, name: str, scale: float, fill: str) -> None:
    """Large scores only where they are replaced: what is left of one that is added to -1e9 is rounding."""
    low = FILLS[fill](dtype)
    torch.manual_seed(3)
    inputs = [torch.randn(B, H, S, D, dtype=dtype) * factor for factor in (scale, scale, 1.0)]

    def attend(q, k, v, m):
        return (torch.softmax(MASKS[name](q @ k.mT, m, low), -1) @ v,)

    rules = ATTENTION_TRAINING if training else ATTENTION
    done = rewrite(attend, [*inputs, rows()], rules, training=training, tolerance=2e-4 if scale > 1 else 1e-5)
    assert done.count(FLASH) == 1


@pytest.mark.parametrize("lift", [1e5, 1e9])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_rows_lifted_by_a_known_mask(training: bool, lift: float) -> None:
    """In the fused backward the sum of a row's weights would be lost beside such a number."""
    inputs = [torch.randn(B, H, S, D) for _ in range(3)]

    def attend(q, k, v):
        return (torch.softmax(q @ k.mT + torch.full((S, S), lift).triu(1), -1) @ v,)

    done = rewrite(attend, inputs, ATTENTION_TRAINING if training else ATTENTION, training=training, tolerance=1e-5)
    assert done.count(FLASH) == (0 if training else 1)
    assert not training or any("lifted" in miss.why for miss in done.ctx.near_misses)


def test_rows_lifted_out_of_reach_by_an_argument() -> None:
    inputs = [torch.randn(B, H, S, D) for _ in range(3)]
    above = torch.ones(S, S, dtype=torch.bool).triu(1)
    done = rewrite(
        lambda q, k, v, m: (torch.softmax(q @ k.mT + torch.where(m, 1e9, 0.0), -1) @ v,), [*inputs, above],
        ATTENTION_TRAINING, training=True, tolerance=1e-5,
    )  # fmt: skip
    assert done.count(FLASH) == 1


def test_a_mask_that_is_known_costs_nothing() -> None:
    """A window leaves a key in every row, which is proved: no row is looked at."""
    q = torch.randn(B, H, S, D)
    distance = torch.arange(S).unsqueeze(0) - torch.arange(S).unsqueeze(1)
    window = (distance.abs() <= 2).tolist()

    def attend(q, k, v):
        return (torch.softmax((q @ k.mT).masked_fill(~torch.tensor(window), -INF), -1) @ v,)

    done = rewrite(attend, [q, q + 1, q], ATTENTION)
    assert done.count(FLASH) == 1 and done.count(torch.ops.aten.all.dim, torch.ops.aten.amax.default) == 0


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("low", [-INF, -1e9])
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_whole_compiler(low: float, dropout: float, dynamic: bool) -> None:
    def attend(q, k, v, m):
        p = torch.softmax((q @ k.mT / math.sqrt(D)).masked_fill(~m, low), -1)
        return functional.dropout(p, dropout) @ v

    torch._dynamo.reset()
    found = []
    for run in (attend, litz.compile(attend, dynamic=dynamic)):
        torch.manual_seed(4)
        q, k, v = (torch.randn(B, H, S, D, requires_grad=True) for _ in range(3))
        out = run(q, k, v, rows())
        (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
        found.append([out.detach(), q.grad, k.grad, v.grad])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5, equal_nan=True)
