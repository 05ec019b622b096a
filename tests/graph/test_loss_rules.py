"""Rules of the loss over a vocabulary: they hold on a GPU alone, and are right wherever they are applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from litz.graph.rules.loss import LOSS
from tests.graph.rewriting import rewrite

ANYWHERE = tuple(replace(r, extra_check=None) for r in LOSS)
X, Y = torch.randn(6, 11) * 3, torch.tensor([0, 10, 3, -100, 5, 3])
LOSSES: dict[str, Callable[..., Any]] = {
    "mean": lambda x, y: F.cross_entropy(x, y),
    "sum": lambda x, y: F.cross_entropy(x, y, reduction="sum"),
    "each": lambda x, y: F.cross_entropy(x, y, reduction="none"),
    "label 0 ignored": lambda x, y: F.cross_entropy(x, y.clamp(min=0), ignore_index=0),
    "widened": lambda x, y: F.cross_entropy(x.bfloat16().float(), y),
    "narrow": lambda x, y: F.cross_entropy(x.bfloat16(), y).float(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    function, tolerance = LOSSES[name], 5e-2 if name == "narrow" else 1e-5
    done = rewrite(lambda x, y: (function(x, y),), [X, Y], ANYWHERE, tolerance=tolerance)
    assert done.fired["log_softmax_by_rows"] == 1
    assert done.fired.get("nll_loss_of_labels", 0) == (name != "narrow")  # rounded in between, it stays as it is
    done = rewrite(lambda x, y: (function(x, y),), [X, Y], ANYWHERE, tolerance=tolerance, training=True)
    assert done.fired.get("sum_of_one_each", 0) == (name != "narrow")


def test_logarithms_alone() -> None:
    for dim in (0, 1, -1):
        done = rewrite(lambda x, dim=dim: (F.log_softmax(x, dim),), [X], ANYWHERE, training=True)
        assert done.fired["log_softmax_by_rows"] == 1
    narrow = X.bfloat16()
    assert (
        rewrite(lambda x: (F.log_softmax(x, -1),), [narrow], ANYWHERE, tolerance=5e-2).fired["log_softmax_by_rows"] == 1
    )


def test_weighted_losses_stay() -> None:
    weight = torch.rand(11)
    done = rewrite(lambda x, y: (F.cross_entropy(x, y, weight),), [X, Y], ANYWHERE, training=True)
    assert set(done.fired) == {"log_softmax_by_rows"}


def test_nothing_on_the_cpu() -> None:
    assert rewrite(lambda x, y: (F.cross_entropy(x, y),), [X, Y], LOSS).fired == {}


def test_rows_without_an_end() -> None:
    x = torch.tensor([[-torch.inf, 0.0, 1.0], [torch.inf, 0.0, 1.0], [torch.nan, 0.0, 1.0], [-torch.inf] * 3])
    rewrite(lambda x: (F.log_softmax(x, -1),), [x], ANYWHERE)
