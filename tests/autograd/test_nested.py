"""Jagged nested tensors as arguments and results, and made on the way: taken apart, compiled, and as in eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import litz
from litz.report import HISTORY

LENGTHS = [(3, 5, 2), (4, 1, 6), (2, 7, 3, 1)]
Outcome = tuple[list[Any], list[Any], list[bool]]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    HISTORY.clear()
    yield


def nested(lengths: tuple[int, ...], needs_grad: bool) -> torch.Tensor:
    rows = [torch.randn(n, 8) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=needs_grad)


def jagged(lengths: tuple[int, ...], needs_grad: bool) -> list[torch.Tensor]:
    values = torch.randn(sum(lengths), 8, requires_grad=needs_grad)
    return [values, torch.tensor([0, *itertools.accumulate(lengths)])]


def flat(tensor: Any) -> Any:
    return tensor.values() if isinstance(tensor, torch.Tensor) and tensor.is_nested else tensor


def outcome(function: Callable[..., Any], args: list[Any]) -> Outcome:
    """Results, gradients, and which results have the ragged size of the first argument."""
    results = function(*args)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    differentiable = [flat(r) for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    gradients: list[Any] = []
    if differentiable:
        total = sum(d.square().sum() for d in differentiable)
        leaves = [a for a in args if a.requires_grad]
        gradients = [flat(g) for g in torch.autograd.grad(total, leaves, allow_unused=True)]
    ragged = [r for r in results if isinstance(r, torch.Tensor) and r.is_nested and args[0].is_nested]
    same_size = [r.size(r._ragged_idx) == args[0].size(args[0]._ragged_idx) for r in ragged]
    return [flat(r) for r in results], gradients, same_size


def agrees(function: Callable[..., Any], make: Callable[..., list[Any]], needs_grad: bool) -> None:
    compiled = torch.compile(function, backend="litz")
    for seed, lengths in enumerate(LENGTHS):
        outcomes = []
        for run in (function, compiled):
            torch.manual_seed(seed)
            outcomes.append(outcome(run, make(lengths, needs_grad)))
        torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-4, atol=1e-4)
    for report in litz.reports():
        assert report.left_to_eager is None
        assert not any("combination of sizes" in note for note in report.notes)


def attention(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    q = F.linear(x, weight).unflatten(-1, (2, 4)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x + F.linear(F.gelu(F.linear(x, weight)), weight), (8,)).to_padded_tensor(0.0)


ARGUMENTS: dict[str, Callable[..., Any]] = {
    "pointwise": lambda x: (x * 2).sin() + 1,
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "softmax": lambda x: x.softmax(-1),
    "softmax over the ragged dimension": lambda x: x.softmax(1),
    "padded": lambda x: (x * 2).to_padded_tensor(-1.0).relu(),
    "values": lambda x: x.values() * 2,
    "itself, and one of its size": lambda x: (x, x * 2, x.values()),
    "unbound": lambda x: [row * 2 for row in x.unbind()],
    "turned": lambda x: x.transpose(1, 2) * 2,
    "sizes": lambda x: (x * x.shape[0], x.size(2)),
    "made anew": lambda x: torch.nested.nested_tensor_from_jagged(x.values() + 1, x.offsets()),
}


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument(name: str, needs_grad: bool) -> None:
    agrees(ARGUMENTS[name], lambda lengths, grad: [nested(lengths, grad)], needs_grad)


@pytest.mark.parametrize("function", [F.linear, attention, block])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_beside_a_weight(function: Callable[..., Any], needs_grad: bool) -> None:
    agrees(function, lambda lengths, grad: [nested(lengths, grad), torch.randn(8, 8, requires_grad=grad)], needs_grad)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_two_of_the_same_size(needs_grad: bool) -> None:
    def make(lengths: tuple[int, ...], grad: bool) -> list[torch.Tensor]:
        x = nested(lengths, grad)
        return [x, torch.nested.nested_tensor_from_jagged(torch.randn(sum(lengths), 8), x.offsets())]

    agrees(lambda x, y: x * y + x, make, needs_grad)


@pytest.mark.parametrize("over", [1, -1])
def test_sums(over: int) -> None:
    agrees(lambda x: x.sum(over), lambda lengths, grad: [nested(lengths, grad)], False)


def test_a_gradient_that_eager_does_not_have() -> None:
    """It is the backward that raises, as in eager; the forward runs."""
    for function in (lambda x: x.sum(1), torch.compile(lambda x: x.sum(1), backend="litz")):
        x = nested(LENGTHS[0], True)
        found = function(x)
        torch.testing.assert_close(found, torch.stack([row.sum(0) for row in x.unbind()]))
        with pytest.raises(NotImplementedError):
            found.sum().backward()


def test_written_to() -> None:
    agrees(lambda x: x.mul_(2), lambda lengths, grad: [nested(lengths, grad)], False)
    x = nested(LENGTHS[0], False)
    expected = x.values() * 2
    torch.compile(lambda x: x.mul_(2), backend="litz")(x)
    torch.testing.assert_close(x.values(), expected)


MADE: dict[str, Callable[..., Any]] = {
    "and taken apart": lambda v, o: torch.nested.nested_tensor_from_jagged(v * 2, o).sin().values(),
    "and returned": lambda v, o: torch.nested.nested_tensor_from_jagged(v * 2, o) + 1,
    "and padded": lambda v, o: torch.nested.nested_tensor_from_jagged(v * 2, o).to_padded_tensor(1.0),
}


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_made_on_the_way(name: str, needs_grad: bool) -> None:
    agrees(MADE[name], jagged, needs_grad)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_made_of_a_list(needs_grad: bool) -> None:
    def make(lengths: tuple[int, ...], grad: bool) -> list[torch.Tensor]:
        return [torch.randn(n, 8, requires_grad=grad) for n in lengths[:2]]

    agrees(lambda a, b: torch.nested.as_nested_tensor([a, b], layout=torch.jagged) * 2, make, needs_grad)
