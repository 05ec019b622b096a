"""Graphs cut where something cannot be traced: that runs as it is, the pieces around it are compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F

import litz
from litz.report import HISTORY
from tests.autograd.test_left_as_found import state


@pytest.fixture(autouse=True)
def _sizes_from_data() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


def in_pieces(
    function: Callable[..., Any], inputs: list[torch.Tensor], own: list[torch.Tensor], pieces: int, rtol: float = 1e-4
) -> None:
    """Eager's results and gradients, their layouts, and that many programs compiled."""
    torch._dynamo.reset()
    HISTORY.clear()
    leaves = [*own, *(x for x in inputs if x.requires_grad)]
    fast = torch.compile(function, backend="litz")
    for _ in range(2):
        found = []
        for run in (function, fast):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                torch.manual_seed(0)
                result = run(*inputs)
                total = result.sum()
                found.append((result, torch.autograd.grad(total, leaves) if total.requires_grad else ()))
            assert not [w for w in seen if "eager" in str(w.message)]
        (want, gradients), (got, own_gradients) = found
        torch.testing.assert_close(got, want, rtol=rtol, atol=rtol / 10)
        for mine, theirs in zip(own_gradients, gradients, strict=True):
            assert mine.layout == theirs.layout
            torch.testing.assert_close(mine.to_dense(), theirs.to_dense(), rtol=rtol, atol=rtol / 10)
    assert sum(bool(report.built) for report in litz.reports()) >= pieces
    assert not [report for report in litz.reports() if report.left_to_eager]


def test_sparse_embedding() -> None:
    embed, linear = nn.Embedding(30, 5, sparse=True), nn.Linear(5, 4)

    def function(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return linear(embed(index) * x.exp()).relu()

    in_pieces(function, [torch.randint(0, 30, (6,)), torch.randn(6, 5)], [embed.weight, *linear.parameters()], 1)


def test_sparse_embedding_bag() -> None:
    embed = nn.EmbeddingBag(30, 5, mode="sum", sparse=True)

    def function(index: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (embed(index) @ w.sin()).relu()

    in_pieces(function, [torch.randint(0, 30, (4, 6)), torch.randn(5, 3, requires_grad=True)], [embed.weight], 1)


def _grouped() -> Any:
    @torch.library.custom_op("litz_tests::grouped", mutates_args=())
    def grouped(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return x * 2

    grouped.register_fake(lambda x, ends: torch.empty_like(x))

    def backward(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor, None]:
        assert ctx.ends.tolist() == [1, 4]
        return given * 2, None

    grouped.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "ends", inputs[1])
    )  # fmt: skip
    return grouped


def test_an_operator_whose_gradient_looks_at_data() -> None:
    grouped = _grouped()
    first, second = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    def function(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        y = grouped(F.gelu(x @ first), ends).sin()
        return grouped(y @ second, ends).cos()

    in_pieces(function, [torch.randn(3, 4), torch.tensor([1, 4])], [first, second], 3)


def test_modes_across_a_cut() -> None:
    w = torch.randn(3, 3, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            count = y.nonzero().shape[0]
            z = y @ w
            with torch.no_grad():
                scale = z.abs().max() + z.nonzero().sum()
            return (z / scale + count).float()

    in_pieces(function, [torch.randn(3, 3)], [w], 3, rtol=3e-2)


def test_data_inside_a_transform() -> None:
    """The transform as a whole runs as it is."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = grad(lambda v: (v**2).sum() * v.sum().item())(x.sin().exp())
        return vmap(lambda v: v.square().sum())(y).sin()

    in_pieces(function, [torch.randn(3, 3)], [], 2)


def test_transforms_beside_a_cut() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = vmap(grad(lambda v: (v**3).sum()))(x)
        return vmap(lambda v: v.sum())(y) + y.nonzero().float().sum()

    in_pieces(function, [torch.randn(3, 3)], [], 2)


def test_an_error_between_pieces() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
            z = y[:1].nonzero()
            return (y @ x)[index] + z.sum()

    torch._dynamo.reset()
    fast = torch.compile(function, backend="litz")
    x, before = torch.randn(3, 3), state()
    for _ in range(2):
        with pytest.raises(IndexError):
            fast(x, torch.tensor([7]))
        assert state() == before
