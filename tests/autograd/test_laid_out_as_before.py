"""What was written to in place lies as it did: views of it, and draws in the order of its memory, are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "masked_fill_": lambda y: y.masked_fill_(y > 0.5, 0.125),
    "scatter_": lambda y: y.scatter_(0, torch.zeros(1, y.shape[1], dtype=torch.long), 0.5),
    "tril_": lambda y: y.tril_(),
    "index_add_": lambda y: y.index_add_(0, torch.tensor([0]), torch.ones(1, y.shape[1])),
    "cumsum_": lambda y: y.cumsum_(0),
    "a part": lambda y: y[1:].masked_fill_(y[1:] > 0.5, 0.125),
}
LOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a view of its memory is written to": lambda y: y.t().reshape(-1).mul_(3),
    "contiguous the other way round": lambda y: y.t().contiguous().add_(10),
    "dropout": lambda y: functional.dropout(y, 0.4, True),
    "draws like it": lambda y: torch.empty_like(y).normal_(),
    "a window": lambda y: y.as_strided((4,), (1,)) * 1,
}


@pytest.mark.parametrize("given", [False, True], ids=["own", "given"])
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("write", WRITES)
def test_as_eager(write: str, look: str, given: bool) -> None:
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        y = x if given else x * 1
        WRITES[write](y)
        return LOOKS[look](y) * 1, y * 1, torch.rand(3)

    torch._dynamo.reset()
    found = []
    for function in (program, torch.compile(program, backend="litz")):
        torch.manual_seed(0)
        found.append(function(torch.randn(6, 4).t()))
    for want, got in zip(*found, strict=True):
        assert torch.equal(got, want)
