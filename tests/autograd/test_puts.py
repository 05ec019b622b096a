"""What goes from place to place in a tensor must not be given any of that tensor to read: eager raises, or does it in
turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

LINES = torch.tensor([3, 2, 1, 0])
PLACES = LINES[:, None].expand(4, 3)
WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "index_put_": lambda x: x.index_put_((LINES,), x),
    "index_put_, by views": lambda x: x.view(2, 6).index_put_((LINES[2:],), x.view(2, 6)),
    "index_copy_": lambda x: x.index_copy_(0, LINES, x),
    "index_copy_ of a part": lambda x: x.index_copy_(0, LINES[:1], x[2:3]),
    "index_add_": lambda x: x.index_add_(0, LINES, x),
    "scatter_": lambda x: x.scatter_(0, PLACES, x),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, PLACES, x, "sum"),
    "put_": lambda x: x.put_(LINES, x.view(-1)[:4]),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 0, x),
    "add_": lambda x: x.add_(x),
    "index_put_ of what was indexed": lambda x: x.index_put_((LINES,), x[LINES]),
}


@pytest.mark.parametrize("name", WRITES)
def test_as_eager(name: str) -> None:
    torch._dynamo.reset()
    found = []
    for write in (WRITES[name], torch.compile(WRITES[name], backend="litz")):
        x = torch.linspace(-1, 1, 12).view(4, 3).clone()
        try:
            write(x)
        except RuntimeError as error:
            found.append((type(error).__name__, x))
        else:
            found.append(("", x))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])
