"""What tests of frozen models have in common: a model frozen, and judged by the same model in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

import litz
from litz.report import Report

Model = torch.nn.Module


def frozen(model: Callable[..., Any], how: bool | str = True, *, dynamic: bool | None = None, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="litz", dynamic=dynamic, options={"freeze": how, **options})


def report() -> Report:
    found = litz.last_report()
    assert found is not None
    return found


def fired() -> dict[str, int]:
    return {firing.rule: firing.times for firing in report().firings}


def lively(model: Model, seed: int = 0) -> Model:
    """The model in evaluation, with statistics and affine parameters that are not those it was born with."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point():
            with torch.no_grad():
                tensor.copy_(torch.empty_like(tensor).uniform_(0.5, 1.5, generator=generator))
                if "running_var" not in name:
                    tensor.sub_(1)
    return model.eval()


@torch.no_grad()
def judge(model: Model, given: Any, *inputs: torch.Tensor, ulps: float = 8) -> None:
    """Litz's error against the same model in float64 is at most twice eager's, plus a few units in the last place."""
    wide = copy.deepcopy(model).double()
    exact = wide(*(x.double() if x.is_floating_point() else x for x in inputs))
    eager = model(*inputs)
    assert given.dtype == eager.dtype and given.shape == eager.shape and given.stride() == eager.stride()
    floor = ulps * torch.finfo(eager.dtype).eps * exact.abs().max()
    assert (given - exact).abs().max() <= 2 * (eager - exact).abs().max() + floor
