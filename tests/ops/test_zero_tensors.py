"""Tensors without memory, all zero: forward-mode differentiation makes them where nothing depends on an input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.mark.parametrize(
    "function",
    [
        lambda c: torch.func.jacfwd(lambda c: torch.add(c, c.to(torch.bool), alpha=3))(c),
        lambda c: torch.func.jvp(lambda c: (c.detach() * 2, c.sign() + c), (c,), (c.cos(),)),
        lambda c: torch.func.jvp(lambda c: c * (c > 0), (c,), (c.sin(),)),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_are_zeros(function: Callable[[torch.Tensor], Any], dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz", dynamic=dynamic)
    for rows in (2, 3):
        c = torch.arange(5.0 * rows).reshape(rows, 5) - 4
        torch.testing.assert_close(compiled(c), function(c))


@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_add_nothing_to_a_tangent(shape: tuple[int, ...]) -> None:
    """-0.0 stays what it is: the tangents of the other arguments are none, not 0.0."""

    def tangent(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(lambda a: torch.addcmul(b, c, a, value=0.5), (a,), (-torch.ones_like(a),))[1]

    torch._dynamo.reset()
    arguments = torch.full(shape, 2.5), torch.randn(1, 3, 2), torch.zeros(())
    expected, got = tangent(*arguments), torch.compile(tangent, backend="litz")(*arguments)
    assert expected.signbit().all() and got.signbit().all()


def test_are_copied_where_an_operator_gives_one() -> None:
    """What native code reads must have memory."""

    @torch.library.custom_op("litz_tests::no_memory", mutates_args=())
    def no_memory(x: torch.Tensor) -> torch.Tensor:
        return torch._efficientzerotensor(x.shape, dtype=x.dtype)

    no_memory.register_fake(torch.empty_like)
    torch._dynamo.reset()
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(lambda x: no_memory(x) + x, backend="litz")(x), x)
