"""Where no result has a gradient, none is recorded by the operators that the program calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a detached inverse": lambda a: torch.linalg.inv(a).detach(),
    "detached sorted numbers": lambda a: a.sort()[0].detach(),
    "a determinant of what is detached": lambda a: a.detach().det(),
    "whole numbers drawn": lambda a: torch.randint_like(a, 7),
    "places, of what was called": lambda a: torch.linalg.inv(a).argmax(1),
    "a detached spectrum": lambda a: torch.fft.fft(a).abs().detach(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_result_without_gradient_has_none(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    a = torch.randn(4, 4, requires_grad=True)
    found = torch.compile(PROGRAMS[name], backend="litz", dynamic=dynamic)(a)
    assert not found.requires_grad and found.grad_fn is None
    assert torch.is_grad_enabled()


def test_the_mode_is_as_it_was_after_an_error() -> None:
    compiled = torch.compile(lambda a: torch.linalg.inv(a).detach(), backend="litz")
    compiled(torch.eye(3, requires_grad=True))
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(torch.zeros(3, 3, requires_grad=True))
    assert torch.is_grad_enabled()
