"""Random draws that stand beside what a rule rewrites: each takes the numbers it takes in eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import litz


def drop(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_erf(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def attention(q: torch.Tensor) -> torch.Tensor:
    return ((q @ q.mT) / 4).softmax(-1) @ q


def masked(q: torch.Tensor) -> torch.Tensor:
    hidden = torch.full((8, 8), -1e9).triu(1)
    return ((q @ q.mT) / 4 + hidden).softmax(-1) @ q


def norm(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)


# What is drawn beside it, and whether a rule writes it anew.
FORMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "gelu_tanh": (gelu_tanh, True),
    "gelu_erf": (gelu_erf, True),
    "attention": (attention, True),
    "masked": (masked, True),
    "norm": (norm, False),
    "silu": (lambda x: x * torch.sigmoid(x), False),
}
PLACES: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "behind": lambda form, x, h: (drop(form(x)), drop(h)),
    "before": lambda form, x, h: (drop(h), drop(form(x))),
    "around": lambda form, x, h: (torch.rand(3), form(x) * torch.rand(()), drop(h), torch.randn(2)),
    "twice": lambda form, x, h: (drop(form(drop(form(x)))), drop(h)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FORMS)
def test_draws_are_eagers(name: str, place: str, training: bool) -> None:
    form, rewritten = FORMS[name]

    def function(x: torch.Tensor, h: torch.Tensor) -> Any:
        return PLACES[place](form, x, h)

    x = torch.randn(2, 4, 8, 16, requires_grad=training)
    h = torch.randn(64)
    torch._dynamo.reset()
    found = []
    for run in (torch.compile(function, backend="litz"), function):
        torch.manual_seed(0)
        results = run(x, h)
        grads = torch.autograd.grad(sum(r.sum() for r in results), x) if training else ()
        found.append((*results, *grads, torch.random.get_rng_state()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
    assert bool(report.firings) or not (rewritten and training)
