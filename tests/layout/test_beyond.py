"""Windows that as_strided opens on a part of a tensor, beyond the part: values are seen there, gradients are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "of an argument": lambda x: torch.as_strided(x[:, :3], (1, 2), (8, 5)),
    "and used": lambda x: torch.as_strided(x[:, :3], (1, 2), (8, 5)) * 2,
    "of a transposed one": lambda x: torch.as_strided(x.t()[:3], (2, 2), (1, 5)),
    "of an intermediate": lambda x: torch.as_strided((x * 2)[:, :3], (1, 2), (8, 5)),
    "beside the whole": lambda x: (lambda y: (y, torch.as_strided(y[:, :3], (1, 2), (8, 5)), y[1]))(x * 2),
    "of the whole": lambda x: torch.as_strided(x, (1, 2), (8, 5)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_stay_within_the_part(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="litz", dynamic=dynamic)
    for rows in (4, 6):
        found = []
        for run in (compiled, function):
            x = torch.arange(float(rows * 7)).reshape(rows, 7).requires_grad_()
            results = run(x)
            results = results if isinstance(results, tuple) else (results,)
            gradient = torch.autograd.grad(sum((r * (1 + i)).sum() for i, r in enumerate(results)), x)[0]
            found.append((*results, gradient))
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
