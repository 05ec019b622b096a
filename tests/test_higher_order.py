"""Operators that take functions, results whose size depends on data, and the user's own operators, in inference."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import litz
from litz.report import HISTORY

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def agrees(function: Callable[..., Any], *calls: Sequence[Any], notes: bool = False) -> None:
    """Eager's results for every call, in one graph of Dynamo's, some of it compiled and nothing left to eager."""
    torch._dynamo.reset()
    HISTORY.clear()
    compiled = torch.compile(function, backend="litz", fullgraph=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eager's own flex_attention says that it is slow
        for args in calls:
            torch.testing.assert_close(
                compiled(*[a.clone() for a in args]), function(*[a.clone() for a in args]), rtol=1e-5, atol=1e-6
            )
    report = litz.last_report()
    assert report is not None and report.kernels > 0 and not report.notes


def test_cond() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x * 2,)).relu()

    agrees(function, [X.abs()], [-X.abs()], [X.abs()])


def test_cond_inside_cond() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.max() > 3, lambda x: x.exp(), lambda x: x - 1, (x + 1,))

        return torch.cond(x.sum() > 0, inner, lambda x: x.cos() * 2, (x * 2,)).relu()

    agrees(function, [X.abs()], [-X.abs()], [X.abs() / 100])


def test_while_loop() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        steps = torch.zeros((), dtype=torch.int64)
        _, x = while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.1 + 0.1), (steps, x + 1))
        return x.sin()

    agrees(function, [X])


def test_scan() -> None:
    def function(x: torch.Tensor) -> Any:
        last, all_ = scan(lambda c, x: (c + x, (c * x).sin()), torch.zeros(8), x * 2, dim=0)
        return last.exp(), all_

    agrees(function, [X])


def test_associative_scan() -> None:
    agrees(lambda x: associative_scan(lambda a, b: a + b, x * 2, dim=0, combine_mode="generic"), [X])


def test_map() -> None:
    agrees(lambda x: map_over(lambda row, y: (row + y).sin().sum(), x * 2, x[0]), [X])


TABLE = torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["bias by table", "causal mask", "grouped queries", "a mask that hides whole rows"])
def test_flex_attention(kind: str) -> None:
    q, k, v = (torch.randn(2, 4, 16, 8, generator=torch.Generator().manual_seed(s)) for s in range(3))
    if kind == "bias by table":
        agrees(lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + TABLE[h, i, j] / 2), [q, k, v])
    elif kind == "causal mask":
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu")
        agrees(lambda q, k, v: flex_attention(q + 1, k, v, block_mask=mask, return_lse=True), [q, k, v])
    elif kind == "grouped queries":
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
        agrees(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True), [q, k[:, :2], v[:, :2]])
    else:
        mask = create_block_mask(lambda b, h, i, j: (i > 3) & (j > 1), None, None, 16, 16, device="cpu")
        agrees(lambda q, k, v: flex_attention(q, k, v, block_mask=mask, return_lse=True), [q, k, v])


@pytest.fixture
def sizes_from_data() -> Any:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


def varied(make: Callable[[], torch.Tensor]) -> list[list[torch.Tensor]]:
    torch.manual_seed(3)
    return [[make()] for _ in range(6)]


@pytest.mark.usefixtures("sizes_from_data")
@pytest.mark.parametrize("threshold", [-10.0, 0.0, 0.9, 1.5, 10.0])
def test_nonzero(threshold: float) -> None:
    """From all elements to none."""
    agrees(
        lambda x: (((x > threshold) * 1.0).nonzero() * 3 + 1, x.relu()),
        *varied(lambda: torch.randn(5, 6)),
    )


@pytest.mark.usefixtures("sizes_from_data")
def test_boolean_mask() -> None:
    agrees(lambda x: (x[x > 0] * 2).exp().sum(), *varied(lambda: torch.randn(5, 6)))


@pytest.mark.usefixtures("sizes_from_data")
def test_unique() -> None:
    agrees(lambda x: torch.unique(x * 2) + 1, *varied(lambda: torch.randint(0, 9, (20,))))


@pytest.mark.usefixtures("sizes_from_data")
def test_sizes_from_data_compile_once() -> None:
    compiled = []

    def counting(stage: Any) -> None:
        compiled.append(stage)

    function = litz.compile(lambda x: (x[x > 0] * 2).exp(), before={"lower": counting})
    torch._dynamo.reset()
    with torch.no_grad():
        for size in range(10, 20):
            x = torch.arange(-5.0, size)
            torch.testing.assert_close(function(x), (x[x > 0] * 2).exp())
    assert len(compiled) <= 4, "the piece after the mask was compiled for the sizes it met"


@pytest.mark.usefixtures("sizes_from_data")
def test_a_number_out_of_a_tensor() -> None:
    agrees(lambda x: (x.abs() * 2) * x.abs().sum().item(), [X], [X + 1], [X - 1])
    agrees(lambda x: torch.ones(int(x.max().item())) + 2, *[[torch.tensor([3, n])] for n in (5, 6, 7)])


@torch.library.custom_op("litz_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("litz_tests::bump", mutates_args=("x",))
def bump(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


def test_own_operator() -> None:
    agrees(lambda x: twice(x.sin()) + 1, [X])


def test_own_operator_that_writes() -> None:
    def function(x: torch.Tensor) -> Any:
        z = x.sin()
        window = z[1:]
        bump(z, x)
        bump(x, z)
        return z + 1, window * 2, x

    agrees(function, [X])


@torch.library.custom_op("litz_tests::parts", mutates_args=())
def parts(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return x + 1, [x * 2, x[:1] * 3]


@parts.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return torch.empty_like(x), [torch.empty_like(x), torch.empty_like(x[:1])]


def test_own_operator_with_a_list_among_its_results() -> None:
    agrees(lambda x: parts(x.sin()), [X])
    agrees(lambda x: parts(x.sin())[0] + 1, [X])
    agrees(lambda x: parts(x.sin())[1][1] + 1, [X])


def test_a_transform_beside_a_size_that_depends_on_data() -> None:
    """The graph is cut at the size; the transform stays whole, on either side of it."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = torch.func.vmap(torch.func.grad(lambda row: (row * row).sum()))(x)
        places = torch.nonzero(x > 0)
        after = torch.func.jacfwd(lambda rows: rows.sin() * rows.sum())(x)
        return before + 1, places, after * 2

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, backend="litz")
        for seed in range(2):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(compiled(x), function(x))
