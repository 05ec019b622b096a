"""Where eager and tracing themselves disagree, without Litz: when one of these fails, `known.py` has a stale entry."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def _double(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float64)


OUT = {
    "aminmax": lambda: torch.aminmax(torch.ones(5, 6), dim=0, out=(_double(6), _double(6))),
    "complex": lambda: torch.complex(_double(6), _double(6), out=torch.ones(6, dtype=torch.complex64)),
    "multinomial": lambda: torch.multinomial(torch.ones(6), 2, out=_double(2)),
}


@pytest.mark.parametrize("name", OUT)
def test_an_out_of_another_type_is_accepted_when_traced(name: str) -> None:
    with pytest.raises(RuntimeError):
        OUT[name]()
    with FakeTensorMode():
        OUT[name]()


def test_dynamo_raises_its_own_error_whatever_the_backend() -> None:
    """A sample that fake tensors refuse never reaches a backend."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([], dim=1) + x

    with pytest.raises(ValueError):
        run(torch.ones(3))
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError):
        torch.compile(run, backend="eager")(torch.ones(3))


def test_the_sign_of_what_softshrink_shrinks_to_nothing_depends_on_its_place() -> None:
    signs = torch.signbit(torch.nn.functional.softshrink(torch.full((37,), -0.3), 0.5))
    assert not signs[0] and signs[-1]


def test_the_tangent_of_a_product_with_a_number_is_float64_where_there_are_no_dimensions() -> None:
    x = torch.tensor(0.5)

    def tangent(x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(lambda x: torch.addcdiv(x, x, x, value=3.14), (x,), (x,))[1]

    assert torch.func.jvp(lambda x: x * 3.14, (x,), (x,))[1].dtype == torch.float64
    assert tangent(x).dtype == torch.float32
    assert torch.compile(tangent, backend="eager")(x).dtype == torch.float64
