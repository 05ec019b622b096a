"""Bags of rows: empty ones, and offsets in no order, of which eager makes something all the same."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("offsets", [[0, 3, 0], [0, 3, 3], [0, 0, 3], [0, 2, 6], [0, 5, 2]])
@pytest.mark.parametrize("mode", ["max"])
def test_bags_are_filled_as_in_eager(mode: str, offsets: list[int], last: bool) -> None:
    torch._dynamo.reset()
    weight, indices = torch.randn(11, 6), torch.tensor([0, 1, 2, 0, 1, 2])

    def function(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(indices, weight, offsets, mode=mode, include_last_offset=last)

    given = (weight, indices, torch.tensor(offsets))
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(function, backend="litz")(*given), function(*given), rtol=0, atol=0)
