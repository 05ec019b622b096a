"""Memory between the elements of a tensor, which a functional graph does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import litz


def through(x: torch.Tensor) -> Any:
    window = torch.as_strided(x, (2, 2), (5, 2))
    return window.div_(window) + 0


def seen_after(x: torch.Tensor) -> Any:
    window = torch.as_strided(x, (2, 2), (5, 2))
    x.add_(1)
    return window * 2, x.relu()


def opened_after(x: torch.Tensor) -> Any:
    x.add_(1)
    return torch.as_strided(x, (2, 2), (5, 2)) * 2, x.relu()


def made_here(x: torch.Tensor) -> Any:
    own = torch.empty_strided((4,), (3,)).copy_(x[:4])
    window = torch.as_strided(own, (2,), (6,))
    own.mul_(2)
    return window * 1, own + 1


def only_read(x: torch.Tensor) -> Any:
    return torch.as_strided(x, (2, 2), (5, 2)) * 2, x.relu()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [through, seen_after, opened_after, made_here, only_read])
def test_what_lies_between_elements_is_as_in_eager(function: Callable[..., Any], dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz", dynamic=dynamic)
    for length in (9, 12):
        mine, eager = (torch.linspace(1, 2, 3 * length + 1) for _ in range(2))
        torch.testing.assert_close(compiled(mine[1::3]), function(eager[1::3]))
        torch.testing.assert_close(mine, eager, rtol=0, atol=0)


@pytest.mark.parametrize("function", [only_read, lambda x: torch.as_strided(x.add_(1), (3,), (2,)) * 2])
def test_is_compiled_where_nothing_lies_between_or_nothing_is_written(function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    x = torch.linspace(1, 2, 28)[1::3] if function is only_read else torch.linspace(1, 2, 9)
    torch.testing.assert_close(torch.compile(function, backend="litz")(x.clone()), function(x.clone()))
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
