"""Tiles of accumulators: windows and products of few rows, with edges, rests and all that follows the sum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from litz.codegen.llvm.tiling import tiling
from litz.loop.ir import Kernel
from litz.target import detect
from tests.codegen.compiled import agrees
from tests.ops.lowering import lowered

torch.manual_seed(4)
WINDOWS = {
    "three": (3, 1, 1, 1),
    "five, strided": (5, 2, 2, 1),
    "five, strided, no edge": (5, 2, 0, 1),
    "dilated": (3, 1, 2, 2),
    "wide edge": (3, 1, 4, 1),
    "nine": (9, 1, 4, 1),
}


@pytest.mark.parametrize("channels", [16, 40, 7])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str, channels: int) -> None:
    size, stride, padding, dilation = WINDOWS[name]
    x = torch.randn(2, channels, 17, 13).contiguous(memory_format=torch.channels_last)
    w, b = torch.randn(channels, 1, size, size), torch.randn(channels)
    agrees(lambda x, w, b: F.conv2d(x, w, b, stride, padding, dilation, channels), x, w, b, rtol=1e-4, atol=1e-4)
    agrees(lambda x, w: F.silu(F.conv2d(x, w, None, stride, padding, dilation, channels)), x, w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 13])
@pytest.mark.parametrize("columns, depth", [(48, 100), (7, 300), (130, 16), (33, 3)])
def test_products_of_few_rows(rows: int, columns: int, depth: int) -> None:
    x, b = torch.randn(rows, depth), torch.randn(columns)
    for y in (torch.randn(columns, depth).t(), torch.randn(depth, columns)):
        agrees(lambda x, y, b: torch.addmm(b, x, y), x, y, b, rtol=1e-4, atol=1e-4, matmul="generate")
        agrees(lambda x, y, b: F.gelu(x @ y) * b, x, y, b, rtol=1e-4, atol=1e-4, matmul="generate")
        agrees(lambda x, y: x.double() @ y.double(), x, y, matmul="generate")


def test_lanes_past_the_end_add_nothing() -> None:
    """A number that all lanes share is not multiplied by the zeros that dead ones hold: infinity would be none."""
    x, y = torch.randn(2, 21), torch.randn(5, 21)
    x[0, 20] = y[3, 20] = float("inf")
    agrees(lambda x, y: x @ y.t(), x, y, matmul="generate")


def test_neighbours_share_what_they_read() -> None:
    x = torch.randn(2, 32, 16, 16).contiguous(memory_format=torch.channels_last)
    made, _ = lowered(lambda x, w: F.conv2d(x, w, padding=2, groups=32), (x, torch.randn(32, 1, 5, 5)))
    windows = [s for s in made.program.steps if isinstance(s, Kernel) and s.reduced]
    assert len(windows) == 1
    plan = tiling(windows[0], detect(threads=2))
    assert plan is not None and plan.tile and plan.unrolled
    ((axis, step),) = plan.tile
    assert step > 1 and axis is windows[0].axes[2], "a line's neighbours"


def test_sums_that_share_nothing_are_no_tiles() -> None:
    made, _ = lowered(lambda x, y: (x * y).sum(-1), (torch.randn(64, 500), torch.randn(64, 500)))
    kernels = [s for s in made.program.steps if isinstance(s, Kernel) and s.reduced]
    assert all(tiling(k, detect(threads=2)) is None for k in kernels)


@pytest.mark.parametrize("last", [False, True])
def test_convolutions_of_pooled_features_are_generated(last: bool) -> None:
    """As squeeze-and-excite networks have them: a library's call costs more than all their work."""
    x = torch.randn(2, 96, 9, 9)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    narrow, wide, b = torch.randn(4, 96, 1, 1), torch.randn(96, 4, 1, 1), torch.randn(96)

    def excite(x: torch.Tensor, narrow: torch.Tensor, wide: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return x * F.conv2d(F.silu(F.conv2d(x.mean((2, 3), keepdim=True), narrow)), wide, b).sigmoid()

    assert not agrees(excite, x, narrow, wide, b).calls


@pytest.mark.parametrize("divide", [torch.remainder, torch.fmod, torch.floor_divide], ids=lambda f: f.__name__)
def test_what_branches_inside_a_tile(divide: Callable) -> None:
    x, y, w = torch.randn(16, 1000), torch.rand(16, 1000) + 0.5, torch.randn(16, 1000)
    x[3, 5], y[3, 5] = 1e30, 1e-3  # a quotient of many bits, which takes a loop
    for dim in (0, 1):
        agrees(lambda x, y, w, dim=dim: (divide(x, y) * w).sum(dim), x, y, w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(5, 1), (1, 7), (1, 1)])
def test_sums_that_are_the_same_in_every_lane(shape: tuple[int, int], dim: int) -> None:
    x = torch.randn(shape)
    agrees(lambda x: x.expand(5, 7).norm(dim=dim), x)

    def bell(x: torch.Tensor) -> torch.Tensor:
        wide = x.expand(5, 7)
        return torch.exp(-(wide * wide).sum(dim, keepdim=True)) * wide

    agrees(bell, x)
    agrees(bell, x.half(), rtol=2e-3, atol=2e-3)
