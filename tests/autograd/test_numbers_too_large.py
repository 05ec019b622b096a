"""Numbers that a type does not hold: refused where eager refuses them, infinite where eager makes them so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda x: x.masked_fill(x > 0, -1e300),
    "where": lambda x: torch.where(x > 0, x, 1e39),
    "full": lambda x: torch.full((2,), 1e39) + x[0],
    "full of halves": lambda x: torch.full((2,), 1e9, dtype=torch.half) + x[0],
    "clamp": lambda x: x.clamp(-1e300, 1e300),
    "pad": lambda x: functional.pad(x, (1, 1), value=1e39),
    "fill_": lambda x: x.clone().fill_(1e39),
}
TAKEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "infinite": lambda x: x.masked_fill(x > 0, float("-inf")),
    "beside a tensor": lambda x: x + 1e39,
    "many halves": lambda x: torch.full((70_000,), 1.0, dtype=torch.half)[:3] + x,
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:.*left to eager")
def test_refused(name: str) -> None:
    torch._dynamo.reset()
    for function in (REFUSED[name], torch.compile(REFUSED[name], backend="litz")):
        with pytest.raises(RuntimeError, match="without overflow"):
            function(torch.tensor([-2.5, 0.0, 3.0]))


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    torch._dynamo.reset()
    x = torch.tensor([-2.5, 0.0, 3.0])
    assert torch.equal(torch.compile(TAKEN[name], backend="litz", fullgraph=True)(x), TAKEN[name](x))
