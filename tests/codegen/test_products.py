"""Generated matrix products and convolutions against eager, in shapes that leave tails on every side."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch
from torch.nn import functional as F

from litz.context import Report
from tests.codegen.compiled import agrees, compiled, outputs


def generated(function, *inputs: torch.Tensor, **options) -> Report:
    depth = inputs[0].numel()
    report = agrees(function, *inputs, rtol=1e-4, atol=1e-4 * depth**0.25, matmul="generate", **options)
    assert not report.calls, f"called instead of generated: {report.calls}"
    return report


@pytest.mark.parametrize("rows", [1, 3, 13, 14, 15, 29, 57])
def test_shapes(rows: int) -> None:
    for columns, depth in product((1, 15, 31, 32, 33, 70), (1, 7, 16, 17, 40)):
        generated(torch.mm, torch.randn(rows, depth), torch.randn(depth, columns))


@pytest.mark.parametrize("columns", [1, 17, 32, 48, 65])
def test_transposed_and_strided(columns: int) -> None:
    for rows, depth in product((5, 14, 30), (9, 16, 32)):
        x, y = torch.randn(rows, depth), torch.randn(depth, columns)
        generated(lambda x, y: x.t() @ y, x.t().contiguous(), y)
        generated(lambda x, y: x @ y.t(), x, y.t().contiguous())
        generated(lambda x, y: x.t() @ y.t(), x.t().contiguous(), y.t().contiguous())
        generated(lambda x, y: x[:, ::2] @ y[::2], torch.randn(rows, 2 * depth), torch.randn(2 * depth, columns))
        generated(lambda x, y: x[1:] @ y[:, 1:], torch.randn(rows + 1, depth), torch.randn(depth, columns + 1))


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_batches(batch: int) -> None:
    for rows, columns, depth in ((3, 5, 7), (14, 32, 16), (17, 33, 19)):
        generated(torch.bmm, torch.randn(batch, rows, depth), torch.randn(batch, depth, columns))
        generated(
            lambda x, y: x @ y.transpose(1, 2), torch.randn(batch, rows, depth), torch.randn(batch, columns, depth)
        )


def test_what_follows_the_sum() -> None:
    for rows, columns, depth in ((3, 5, 7), (29, 47, 33)):
        x, w, b = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(columns)
        r = torch.randn(rows, columns)
        generated(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b)
        generated(lambda x, w, b, r: (F.linear(x, w, b).relu() + r, r * 2), x, w, b, r)
        generated(lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5, alpha=2.0), x, w, b)
        generated(lambda x, w, b: torch.addmm(b, x, w.t(), beta=0), x, w, torch.full_like(b, torch.nan))
        generated(lambda x, w, b: F.linear(x, w, b).unsqueeze(-1).transpose(0, 1).contiguous(), x, w, b)
        generated(lambda x, w, b: F.linear(x, w, b).softmax(-1), x, w, b)


def test_several_blocks_of_columns() -> None:
    """More columns than one block holds, and more rows than one group."""
    generated(torch.mm, torch.randn(130, 700), torch.randn(700, 1100))


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_shares_of_the_rows(threads: int) -> None:
    from litz.target import detect

    for rows in (1, 20, 100):
        generated(torch.mm, torch.randn(rows, 65), torch.randn(65, 130), target=detect(threads=threads))


def test_products_written_by_hand() -> None:
    x, y = torch.randn(3, 5, 19), torch.randn(7, 4, 19)

    def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x[:, :, None, None, :] * y[None, None, :, :, :]).sum(-1)

    generated(outer, x, y)
    # Columns that no one axis counts.
    generated(lambda x, y: outer(x, y.transpose(0, 1)), x, y)
    generated(lambda x, y: outer(x.transpose(0, 1), y[::2]), x, y)
    generated(lambda x, i, y: (x[i][:, None, :] * y[None]).sum(-1), x[0], torch.tensor([0, 2, 1, -1]), y[0])
    generated(lambda x: (x[:, None, :] * x[None]).sum(-1), x[0])


CONVOLUTIONS = {
    "plain": ((2, 32, 9, 11), (48, 32, 3, 3), {}),
    "padded": ((2, 32, 9, 11), (48, 32, 3, 3), {"padding": 1}),
    "strided": ((2, 16, 17, 19), (17, 16, 3, 3), {"stride": 2, "padding": 1}),
    "dilated": ((1, 16, 17, 19), (32, 16, 3, 3), {"dilation": 2, "padding": 2}),
    "uneven": ((3, 16, 8, 7), (5, 16, 3, 2), {"stride": (1, 2), "padding": (2, 1), "dilation": (1, 2)}),
    "point": ((2, 64, 5, 7), (33, 64, 1, 1), {}),
    "patches": ((2, 3, 64, 48), (40, 3, 16, 16), {"stride": 16}),
    "line": ((2, 32, 17), (48, 32, 3), {"padding": 1}),
    "image": ((2, 3, 37, 41), (40, 3, 7, 7), {"stride": 2, "padding": 3}),
    "few channels": ((2, 20, 9, 11), (48, 20, 3, 3), {"padding": 1}),
    "few channels, one point": ((2, 20, 9, 11), (48, 20, 1, 1), {}),
    "few channels, uneven": ((3, 7, 8, 9), (5, 7, 2, 5), {"stride": (2, 1), "padding": (1, 3), "dilation": (2, 1)}),
    "few channels, wider than the image": ((2, 3, 4, 5), (16, 3, 9, 9), {"padding": 4}),
    "line of few channels": ((2, 5, 33), (48, 5, 9), {"padding": 4, "stride": 3}),
    "volume of few channels": ((1, 3, 5, 6, 7), (16, 3, 3, 3, 7), {"padding": (1, 0, 3)}),
    "volume": ((1, 16, 5, 6, 7), (16, 16, 3, 3, 3), {"padding": 1}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_convolutions(name: str, layout: str) -> None:
    shape, kernel, options = CONVOLUTIONS[name]
    convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(shape)]
    x, w, b = torch.randn(shape), torch.randn(kernel) / 8, torch.randn(kernel[0])
    if layout == "channels_last":
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    agrees(lambda x, w, b: F.relu(convolve(x, w, b, **options)), x, w, b, rtol=1e-4, atol=1e-3, matmul="generate")
    # The other order of the axes in memory, as a transformer takes its patches.
    rows = lambda x, w: convolve(x, w, **options).flatten(2).transpose(1, 2)  # noqa: E731
    agrees(rows, x, w, rtol=1e-4, atol=1e-3, matmul="generate")


@pytest.mark.parametrize("name", ["image", "few channels"])
def test_convolutions_of_few_channels_are_generated(name: str) -> None:
    """Their lines are whole stretches of memory, channels last; elsewhere they are the library's."""
    shape, kernel, options = CONVOLUTIONS[name]
    x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    generated(partial(F.conv2d, **options), x, torch.randn(kernel) / 8)


@pytest.mark.parametrize("depth", [64, 300, 4096])
def test_rounding_errors_do_not_pile_up(depth: int) -> None:
    """Random products summed one by one are off by 0.15 eps times the root of their number."""
    x, y = torch.randn(64, depth), torch.randn(depth, 64)
    exact = x.double() @ y.double()
    multiply, report = compiled(torch.mm, (x, y), matmul="generate")
    assert not report.calls
    error = (outputs(multiply(x, y))[0] - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < 0.13 * torch.finfo(torch.float32).eps * depth**0.5


@pytest.mark.parametrize("channels", [16, 24, 32])
def test_depthwise(channels: int) -> None:
    for size, options in ((7, {"padding": 3}), (3, {"stride": 2}), (3, {"dilation": 2, "padding": 1}), (1, {})):
        x = torch.randn(2, channels, 11, 13).contiguous(memory_format=torch.channels_last)
        w = torch.randn(channels, 1, size, size)
        agrees(partial(F.conv2d, groups=channels, **options), x, w, rtol=1e-4, atol=1e-4)


def test_total_spread_over_its_row_again() -> None:
    """A sum of products whose kernel walks the row a second time is no matrix product."""
    a, b, c = torch.randn(3, 5), torch.randn(4, 5), torch.randn(3, 4, 5)
    agrees(lambda a, b, c: (a[:, None] * b).sum(-1, keepdim=True) + c, a, b, c)
