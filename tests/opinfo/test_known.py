"""Where eager and tracing themselves disagree, without Litz: when one of these fails, `known.py` has a stale entry."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def test_aminmax_takes_an_out_of_another_type_when_traced() -> None:
    def run() -> None:
        torch.aminmax(
            torch.ones(5, 6), dim=0, out=(torch.empty(6, dtype=torch.double), torch.empty(6, dtype=torch.double))
        )

    with pytest.raises(RuntimeError, match="dtype float"):
        run()
    with FakeTensorMode():
        run()


def test_dynamo_raises_its_own_error_whatever_the_backend() -> None:
    """A sample that fake tensors refuse never reaches a backend."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([], dim=1) + x

    with pytest.raises(ValueError):
        run(torch.ones(3))
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError):
        torch.compile(run, backend="eager")(torch.ones(3))
