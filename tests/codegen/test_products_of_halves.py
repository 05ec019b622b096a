"""Generated products, convolutions and attention of 16-bit floats, judged by float64 beside eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from litz.context import Report
from tests.codegen.compiled import compiled, outputs

HALVES = (torch.bfloat16, torch.float16)
each_type = pytest.mark.parametrize("dtype", HALVES, ids=("bf16", "f16"))


def judged(function: Callable[..., Any], *inputs: torch.Tensor, dtype: torch.dtype, **options: Any) -> Report:
    """Off by at most twice as much as eager, and half a unit in the last place of the largest result."""
    given = [x.to(dtype) for x in inputs]
    with torch.no_grad():
        exact, eager = function(*(x.double() for x in given)), function(*given)
        run, report = compiled(function, given, **{"matmul": "generate", **options})
        found = outputs(run(*given))[0]
    assert found.dtype == dtype and found.stride() == eager.stride()
    if exact.numel():
        most = 2 * (eager - exact).abs().max() + torch.finfo(dtype).eps / 2 * exact.abs().max()
        assert (found - exact).abs().max() <= most
    return report


def generated(function: Callable[..., Any], *inputs: torch.Tensor, dtype: torch.dtype, **options: Any) -> None:
    report = judged(function, *inputs, dtype=dtype, **options)
    assert not report.calls, f"called instead of generated: {report.calls}"


@each_type
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 40, 33), (15, 7, 70), (29, 31, 32), (57, 64, 1), (28, 1, 5)]
)
def test_shapes(rows: int, depth: int, columns: int, dtype: torch.dtype) -> None:
    x, y = torch.randn(rows, depth), torch.randn(depth, columns)
    generated(torch.mm, x, y, dtype=dtype)
    generated(lambda x, y: x.t() @ y.t(), x.t().contiguous(), y.t().contiguous(), dtype=dtype)


@each_type
def test_strides_and_batches(dtype: torch.dtype) -> None:
    generated(lambda x, y: x[:, ::2] @ y[::2], torch.randn(15, 66), torch.randn(66, 33), dtype=dtype)
    generated(lambda x, y: x[1:] @ y[:, 1:], torch.randn(31, 33), torch.randn(33, 18), dtype=dtype)
    generated(torch.bmm, torch.randn(3, 17, 19), torch.randn(3, 19, 33), dtype=dtype)
    generated(lambda x, y: x @ y.transpose(1, 2), torch.randn(2, 5, 34), torch.randn(2, 20, 34), dtype=dtype)


@each_type
def test_what_follows_the_sum(dtype: torch.dtype) -> None:
    x, w, b, r = torch.randn(29, 33), torch.randn(47, 33), torch.randn(47), torch.randn(29, 47)
    generated(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, dtype=dtype)
    generated(lambda x, w, b, r: F.linear(x, w, b).relu() + r, x, w, b, r, dtype=dtype)
    generated(lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5, alpha=2.0), x, w, b, dtype=dtype)
    generated(lambda x, w, b: torch.addmm(b, x, w.t(), beta=0), x, w, torch.full_like(b, torch.nan), dtype=dtype)


@each_type
def test_nothing_to_add_up(dtype: torch.dtype) -> None:
    for rows, depth, columns in ((0, 5, 4), (4, 0, 5), (4, 5, 0)):
        judged(torch.mm, torch.randn(rows, depth), torch.randn(depth, columns), dtype=dtype)


def test_a_large_one_is_generated_by_itself() -> None:
    x, y = torch.randn(130, 700), torch.randn(700, 300)
    generated(torch.mm, x, y, dtype=torch.bfloat16, matmul="auto")
    assert judged(torch.mm, x, y, dtype=torch.bfloat16, matmul="library").calls


def test_rows_that_vary() -> None:
    import litz

    x = torch.randn(40, 70, dtype=torch.bfloat16)
    layer = torch.nn.Linear(70, 50, dtype=torch.bfloat16)
    run = litz.compile(layer, dynamic=True, matmul="generate")
    with torch.no_grad():
        for rows in (40, 3, 57):
            some = x[:1].expand(rows, -1).contiguous()
            torch.testing.assert_close(run(some), layer(some), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(40, 37, 71), (64, 64, 64), (1, 64, 48)])
def test_frozen_columns(name: str, shape: tuple[int, int, int]) -> None:
    from tests.freeze.freezing import frozen

    dtype, (rows, depth, columns) = getattr(torch, name), shape
    layer = torch.nn.Linear(depth, columns, dtype=dtype).eval()
    x = torch.randn(rows, depth, dtype=dtype)
    run = frozen(layer, matmul="generate", verify=True)
    with torch.no_grad():
        tolerance = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(run(x), layer(x), rtol=tolerance, atol=tolerance)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "padded": ((2, 32, 9, 11), (48, 32, 3, 3), {"padding": 1}),
    "uneven": ((2, 16, 8, 7), (5, 16, 3, 2), {"stride": (1, 2), "padding": (2, 1), "dilation": (1, 2)}),
    "point": ((2, 64, 5, 7), (33, 64, 1, 1), {}),
    "patches": ((2, 3, 64, 48), (40, 3, 16, 16), {"stride": 16}),
    "image": ((1, 3, 17, 21), (40, 3, 7, 7), {"stride": 2, "padding": 3}),
    "few channels": ((2, 20, 9, 11), (48, 20, 3, 3), {"padding": 1}),
}


@each_type
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, dtype: torch.dtype) -> None:
    shape, kernel, options = CONVOLUTIONS[name]
    x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    w, b = torch.randn(kernel) / 8, torch.randn(kernel[0])
    generated(lambda x, w, b: F.relu(F.conv2d(x, w, b, **options)), x, w, b, dtype=dtype)


@each_type
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sizes", [(64, 64, 32, 32), (33, 47, 20, 24)])
def test_attention(sizes: tuple[int, ...], is_causal: bool, dtype: torch.dtype) -> None:
    rows, keys, depth, width = sizes
    if is_causal:
        keys = max(rows, keys)
    shapes = ((rows, depth), (keys, depth), (keys, width))
    q, k, v = (torch.randn(2, n, 3, d).transpose(1, 2) for n, d in shapes)
    attend = partial(F.scaled_dot_product_attention, is_causal=is_causal)
    if depth == width:
        generated(attend, q, k, v, dtype=dtype, matmul="auto")
    else:
        judged(attend, q, k, v, dtype=dtype, matmul="auto")  # the library takes another way


def test_attention_that_stays_the_librarys() -> None:
    q, k, v = (torch.randn(1, 2, 32, 32) for _ in range(3))
    mask = torch.randn(32, 32)
    for options in ({"matmul": "library"}, {"fuel": 0}):
        assert judged(F.scaled_dot_product_attention, q, k, v, dtype=torch.bfloat16, **options).calls
    attend = lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # noqa: E731
    judged(attend, q, k, v, mask, dtype=torch.bfloat16)
