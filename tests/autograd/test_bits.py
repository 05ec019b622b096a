"""Tensors conjugated or negated by a bit, and memory read as another type: arguments, results and in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.autograd.both import Route, agrees, both


def numbers(*shape: int, needs_grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64, requires_grad=needs_grad)


INSIDE: dict[str, Callable[[torch.Tensor], Any]] = {
    "twice": lambda z: z * z.conj().conj().exp(),
    "through a view": lambda z: (z.conj().t()[1:].conj() * 2).exp(),
    "imaginary part": lambda z: z.conj().imag * z.real,
    "product": lambda z: z.conj() @ z.mH,
    "expanded": lambda z: z[:1].conj().expand(3, 3) * z,
    "written to": lambda z: (z * 2).conj().mul_(1j),
    "base written to": lambda z: _written_behind(z * 2),
    "negated part": lambda z: (z.conj().imag + 1).exp() + z.conj().imag.t(),
    "number": lambda z: (z * 2j).conj().abs(),
}


def _written_behind(z: torch.Tensor) -> torch.Tensor:
    seen = z.conj()
    z.add_(1j)
    return seen * 2


@both
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", INSIDE)
def test_inside(name: str, needs_grad: bool, route: Route) -> None:
    agrees(route, INSIDE[name], lambda: [numbers(3, 3, needs_grad=needs_grad)])


RESULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "conjugated": lambda z: (z * 2).conj(),
    "of the argument": lambda z: z.conj(),
    "transposed": lambda z: z.mH,
    "negated": lambda z: (z.exp()).conj().imag,
    "negated, of the argument": lambda z: z.conj().imag,
    "both of one": lambda z: (lambda y: (y, y.conj()))(z * 2),
    "parts of one": lambda z: (lambda y: (y.real, y.imag))(z * 2),
    "real": lambda z: torch.view_as_real(z),
    "parts of the argument": lambda z: (z.real, z.imag[1:]),
}


@both
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str, needs_grad: bool, route: Route) -> None:
    make = lambda: [numbers(3, 3, needs_grad=needs_grad)]  # noqa: E731
    fast = agrees(route, RESULTS[name], make)
    z = make()[0]
    got, want = fast(z), RESULTS[name](z)
    for mine, theirs in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
        assert (mine.is_conj(), mine.is_neg()) == (theirs.is_conj(), theirs.is_neg())


@both
def test_other_types(route: Route) -> None:
    agrees(route, lambda x: (x.view(torch.int32), x[1:].view(torch.int16)), lambda: [torch.randn(4, 4)])


ARGUMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conjugated": torch.conj,
    "negated": lambda z: z.conj().imag,
    "negated and cut": lambda z: z.conj().imag[1:, ::2],
}


@both
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str, needs_grad: bool, route: Route) -> None:
    def make() -> list[Any]:
        z = numbers(4, 4, needs_grad=needs_grad)
        return [ARGUMENTS[name](z), {"leaves": [z]}]

    agrees(route, lambda x: (x * 2, x.t(), x + x.sum(), x.conj()), make)


@both
def test_an_argument_that_has_a_bit_later(route: Route) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    fast = route(function)
    z = numbers(4)
    for x in (z.imag, z.conj().imag, z.imag):
        torch.testing.assert_close(fast(x), function(x))


@both
def test_gradients_that_arrive_negated(route: Route) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    fast = route(function)
    found = []
    for run in (function, fast):
        x = torch.arange(3.0, requires_grad=True)
        run(x).backward(torch.tensor([1j, 2j, 3j]).conj().imag)
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


@both
def test_writes_to_arguments_with_a_bit(route: Route) -> None:
    agrees(route, lambda x: x.mul_(2), lambda: [numbers(3).conj().imag], compiled=False)
