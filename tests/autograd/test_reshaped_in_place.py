"""Tensors that are reshaped in place, and written to through views: gradients as eager's, compiled or left to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import litz

PROGRAMS: dict[str, tuple[bool, Callable[[Any], Any]]] = {  # whether they are compiled
    "through a view from before": (False, lambda x: (y := x[1:], x.unsqueeze_(0), y.mul_(3), x)[-1]),
    "through one, turned": (False, lambda x: (y := x[1:], x.t_(), y.mul_(3), x * 1)[-1]),
    "through itself": (True, lambda x: (y := x[1:], x.unsqueeze_(0), x.mul_(3), y.sum() * 1, x)[-1]),
    "through a view from then on": (True, lambda x: (x.unsqueeze_(0), y := x[0, 1:], y.mul_(3), x)[-1]),
    "a view is reshaped": (True, lambda x: (y := x[1:], z := x[:2], z.t_(), y.mul_(3), x * 1)[-1]),
    "alone": (True, lambda x: (x.t_(), x.mul_(3), x)[-1]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*left to eager")
def test_gradients(name: str) -> None:
    is_compiled, program = PROGRAMS[name]

    def function(x: torch.Tensor) -> torch.Tensor:
        return program(x * 2)

    torch._dynamo.reset()
    found = []
    for run in (function, torch.compile(function, backend="litz")):
        x = torch.arange(12.0).view(3, 4).requires_grad_()
        result = run(x)
        (result * torch.arange(result.numel()).view(result.shape)).sum().backward()
        found += [result.detach(), x.grad]
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
    report = litz.last_report()
    assert report is not None and (report.left_to_eager is None) == is_compiled
