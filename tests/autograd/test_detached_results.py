"""What is returned detached is no view to autograd, and what is a view is one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

PROGRAMS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "an argument, detached": lambda x: (x.detach(), x * 2),
    "its data": lambda x: (x.data, x * 2),
    "a part of what is detached": lambda x: (x.detach()[1:], x * 2),
    "a part of the argument": lambda x: (x[1:], x * 2),
    "a result and itself detached": lambda x: (lambda y: (y, y.detach(), y[1:]))(x * 2),
}


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_views_are_those_of_eager(name: str, learns: bool) -> None:
    torch._dynamo.reset()
    x = torch.ones(3, requires_grad=learns)
    eager, mine = PROGRAMS[name](x), torch.compile(PROGRAMS[name], backend="litz")(x)
    assert [t._is_view() for t in mine] == [t._is_view() for t in eager]
    for found, wanted in zip(mine, eager, strict=True):
        assert found.requires_grad == wanted.requires_grad
        if not wanted._is_view():
            found.detach_()
