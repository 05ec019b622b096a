"""Writes in place to what has symbolic sizes ask nothing of them: a second length is no reason to compile again."""

from __future__ import annotations

import torch

from litz.report import HISTORY


def test_a_second_length_compiles_nothing() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.transpose(0, 1) * 1
        y.masked_fill_(y > 0.5, 0.125)
        y[1:].add_(1)
        return y.t().reshape(-1) * 2

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="litz", dynamic=True)
    mark = HISTORY.mark()
    for length in (6, 4, 9, 12, 5):
        x = torch.randn(length, 4)
        assert torch.equal(compiled(x), program(x))
    assert len(HISTORY.since(mark)) == 1
