"""The emulated GPU itself: what a GPU would not survive is found."""

from __future__ import annotations

import pytest
import torch

from litz.codegen.llvm import gpu
from litz.codegen.llvm.writer import Module
from litz.loop.ir import Kernel
from tests.codegen.emulate import Emulated, WrongOnGpu
from tests.codegen.test_gpu_code import softmax

SHUFFLE = "@llvm.nvvm.shfl.sync.bfly.i32(i32"
BARRIER = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n"


def code(rows: int, columns: int) -> tuple[str, gpu.Grid]:
    program = softmax(rows, columns, "f32")
    (kernel,) = program.steps
    assert isinstance(kernel, Kernel)
    module = Module(gpu.DIALECT)
    grid = gpu.render(kernel, program.buffers, module, "kernel")
    return module.text(), grid


def run(text: str, grid: gpu.Grid, x: torch.Tensor, shift: int = 0) -> torch.Tensor:
    """With `shift`, the buffers lie so many elements behind an aligned place."""
    room = torch.empty(2, x.numel() + 64)
    firsts = [-part.data_ptr() // 4 % 16 + shift for part in room]
    given, made = (part[first : first + x.numel()] for part, first in zip(room, firsts, strict=True))
    given.copy_(x.flatten())
    Emulated(text).run(grid.blocks.int, grid.threads, [given, made], [])
    return made.reshape(x.shape)


def test_a_kernel_as_it_is() -> None:
    text, grid = code(3, 4096)
    x = torch.randn(3, 4096)
    for shift in (0, 4):
        torch.testing.assert_close(run(text, grid, x, shift), x.softmax(1))


def test_a_buffer_that_is_not_aligned() -> None:
    with pytest.raises(WrongOnGpu, match=r"not aligned.*align 16"):
        run(*code(3, 4096), torch.randn(3, 4096), shift=2)


@pytest.mark.parametrize("columns", [7, 64, 4096])
def test_an_access_outside(columns: int) -> None:
    text, grid = code(3, columns)
    with pytest.raises(WrongOnGpu, match=r"is outside, at byte .*: .* = load"):
        run(text, grid, torch.randn(2, columns))


def test_a_shuffle_that_some_stay_away_from() -> None:
    """Of teams of 8, the last of the warp has no row; the others may not wait for it."""
    text, grid = code(3, 7)
    assert "shl i32 255," in text
    with pytest.raises(WrongOnGpu, match=r"no thread .*from 24: ended"):
        run(text.replace("shl i32 255,", "or i32 -1,"), grid, torch.randn(3, 7))


def test_a_shuffle_with_one_that_takes_no_part() -> None:
    text, grid = code(3, 7)
    with pytest.raises(WrongOnGpu, match="does not take part"):
        run(text.replace("i32 4, i32 31)", "i32 8, i32 31)"), grid, torch.randn(3, 7))


def test_a_barrier_that_some_stay_away_from() -> None:
    text, grid = code(3, 4096)
    assert text.count(BARRIER) == 2
    some = (
        f"  %some = icmp slt i32 %x1, 64\n  br i1 %some, label %meet, label %go\nmeet:\n{BARRIER}  br label %go\ngo:\n"
    )
    with pytest.raises(WrongOnGpu, match="no thread of the block can go on"):
        run(text.replace(BARRIER, some, 1), grid, torch.randn(3, 4096))


def test_a_barrier_that_is_missing() -> None:
    text, grid = code(3, 4096)
    x = torch.randn(3, 4096)
    found = run(text.replace(BARRIER, "", 1), grid, x)
    assert not torch.allclose(found, x.softmax(1))


def test_what_is_not_known() -> None:
    text, grid = code(3, 64)
    with pytest.raises(AssertionError, match="no CPU can run"):
        run(text.replace("ptx.sreg.tid", "ptx.sreg.laneid"), grid, torch.randn(3, 64))
