"""What looks like a new tensor and is not: a write to it is seen elsewhere, whatever is rewritten beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "einsum that turns": lambda x: torch.einsum("ij->ji", x),
    "einsum of a diagonal": lambda x: torch.einsum("ii->i", x),
    "einsum of nothing": lambda x: torch.einsum("...->...", x),
    "silu": lambda x: F.silu(x, inplace=True),
    "relu": lambda x: F.relu(x, inplace=True),
    "gelu, a new one": F.gelu,
    "leaky_relu": lambda x: F.leaky_relu(x, inplace=True),
    "hardswish": lambda x: F.hardswish(x, inplace=True),
    "mish": lambda x: F.mish(x, inplace=True),
    "celu": lambda x: F.celu(x, inplace=True),
    "dropout switched off": lambda x: F.dropout(x, 0.5, training=False),
    "dropout in place": lambda x: F.dropout(x, 0.0, training=True, inplace=True),
    "contiguous": lambda x: x.contiguous(),
    "to": lambda x: x.to(torch.float32),
    "flatten": lambda x: x.flatten(),
    "alpha_dropout switched off": lambda x: F.alpha_dropout(x, 0.5, training=False),
    "threshold": lambda x: F.threshold(x, 0.1, 0.2, inplace=True),
    "identity": torch.nn.Identity(),
}


@pytest.mark.parametrize("inner", [False, True], ids=["an input", "an intermediate"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_write_to_it_is_seen(name: str, inner: bool) -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x * 2 if inner else x
        y = VIEWS[name](x)
        y += 1
        y.mul_(3)
        return x * 1, torch.cat(a.split(2)).sin(), y * 2

    given = [torch.randn(4, 4), torch.randn(4)]
    mine = [t.clone() for t in given]
    want, found = function(*given), torch.compile(function, backend="litz")(*mine)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(mine, given)
