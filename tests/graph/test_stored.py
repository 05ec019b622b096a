"""What is stored with the code, a constant computed while compiling, never reaches the user: he may write to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

LIST = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


class Given(torch.autograd.Function):
    """A gradient that is a constant."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return torch.tensor(LIST)[: tangent.shape[0]]


def branches(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: torch.tensor(LIST), (x,))


def after_a_cut(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[x > 0], (torch.arange(6.0) * 2 + 1)[: x.shape[0]]


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a list": lambda x: torch.tensor(LIST),
    "part of a list": lambda x: torch.tensor(LIST).view(2, 3)[1],
    "a list cut to size": lambda x: torch.tensor(LIST)[: x.shape[0]],
    "a list seen twice": lambda x: torch.tensor(LIST).expand(4, 6),
    "a number": lambda x: torch.tensor(3.0),
    "a range cut to size": lambda x: (torch.arange(100.0) * 2 + 1)[: x.shape[0]],
    "a range seen often": lambda x: (torch.arange(3.0) * 2 + 1).expand(200_000, 3),
    "a range turned": lambda x: (torch.arange(6.0).view(2, 3) * 3 + 1).t(),
    "a diagonal": lambda x: (torch.arange(9.0).view(3, 3) * 3 + 1).diagonal(),
    "parts of a range": lambda x: (torch.arange(6.0) * 3 + 1).split(2),
    "used and returned": lambda x: ((y := torch.arange(6.0) * 3 + 1)[: x.shape[0]], x * y, y.sum()),
    "beside a list": lambda x: (x + torch.tensor(LIST), torch.tensor(LIST)),
    "a mask": lambda x: torch.ones(6, 6).tril()[: x.shape[0]],
    "written to": lambda x: torch.tensor(LIST).add_(x),
    "in a branch": branches,
    "after a cut": after_a_cut,
    "under vmap": lambda x: torch.vmap(lambda row: (row * 2, torch.tensor(LIST)))(x.expand(3, 6)),
    "a gradient": Given.apply,
}


def numbers(run: Callable[[torch.Tensor], Any], training: bool) -> list[Any]:
    """Three calls, each result written to after it was looked at."""
    found = []
    for _ in range(3):
        x = torch.tensor([-1.0, 2.0, -3.0, 4.0, -5.0, 1.0], requires_grad=training)
        results = [t for t in torch.utils._pytree.tree_leaves(run(x)) if isinstance(t, torch.Tensor)]
        moving = [t for t in results if t.requires_grad]
        if moving:
            sum(t.sum() for t in moving).backward()
        given = [*results, *([x.grad] if x.grad is not None else [])]
        found.append([t.detach().clone() for t in given])
        with torch.no_grad():
            for t in given:
                t.as_strided((1,), (1,)).add_(100)
    return found


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_write_to_a_result_is_gone_at_the_next_call(name: str, dynamic: bool, training: bool) -> None:
    if training and name == "in a branch":
        pytest.skip("eager has no gradient for a branch that makes none")
    torch._dynamo.reset()
    function = PROGRAMS[name]
    compiled = torch.compile(function, backend="litz", dynamic=dynamic)
    for eager, mine in zip(numbers(function, training), numbers(compiled, training), strict=True):
        torch.testing.assert_close(mine, eager)
