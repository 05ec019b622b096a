"""What generated code for GPUs looks like: its text, where no GPU is needed to see that it is right."""

from __future__ import annotations

import re

import pytest

from litz.codegen.llvm import gpu
from litz.codegen.llvm.build import object_of
from litz.codegen.llvm.writer import Module
from litz.loop.expr import Size
from litz.loop.ir import Program
from litz.target import GpuTarget, detect
from tests import golden
from tests.codegen.row_kernels import layer_norm, pointwise, reduction, running_sum, softmax


def llvm_of(program: Program) -> str:
    (kernel,) = program.kernels
    module = Module(gpu.DIALECT)
    atoms = {atom for buffer in program.buffers.values() for atom in buffer.size.atoms()}
    sizes = tuple(sorted(atom.name for atom in atoms if isinstance(atom, Size)))
    gpu.render(kernel, program.buffers, module, "kernel", sizes)
    return f"{gpu.TRIPLE}\n{module.text()}"


def ptx_of(program: Program) -> str:
    return object_of(llvm_of(program), GpuTarget(detect(), "sm_90", "+ptx80", 132)).decode()


def test_text_of_a_layer_norm() -> None:
    golden.check("gpu_layer_norm", llvm_of(layer_norm(800, 1024)))


def test_ptx_of_a_sum_of_two() -> None:
    golden.check("ptx_pointwise", ptx_of(pointwise(1000, "bf16")))


def test_a_layer_norm() -> None:
    ptx = ptx_of(layer_norm(800, 1024))
    assert ".target sm_90" in ptx
    assert "ld.global.v4.b32" in ptx and "st.global.v4.b32" in ptx  # 16 bytes at a time
    accesses = re.findall(r"\b(?:ld|st)\.global\S*", ptx)
    assert set(accesses) == {"ld.global.v4.b32", "st.global.v4.b32"}  # and never otherwise
    assert "shfl.sync.bfly" in ptx


EACH = {
    "a warp": layer_norm(800, 1024),
    "few rows": layer_norm(8, 1024),
    "many warps": layer_norm(8, 8192),
    "part of a warp": softmax(64, 64),
    "long rows": softmax(4, 32000),
    "longer than registers": softmax(4, 100_000),
    "short rows": softmax(1000, 7),
    "sizes known at run time": softmax("s0", "s1"),
    "a position": reduction("argmax", 1600, 1000),
    "columns": reduction("sum", 512, 64, "columns"),
    "flat": pointwise(1 << 20, "bf16"),
    "in order": running_sum(40, 30),
}
SEVERAL_WARPS = ("few rows", "many warps", "long rows", "longer than registers", "sizes known at run time", "columns")


@pytest.mark.parametrize("name", EACH)
def test_each_kind_of_row(name: str) -> None:
    ptx = ptx_of(EACH[name])
    assert ".local" not in ptx  # all is in registers
    assert ".extern .func" not in ptx  # nothing is called that no one has
    # Threads wait for one another only where a team is more than a warp, or shares the steps of a reduction.
    assert bool(re.search(r"\bbar(rier)?\.", ptx)) == (name in SEVERAL_WARPS)
    assert (".shared" in ptx) == (name in SEVERAL_WARPS)


def test_more_rows_than_32_bits_count() -> None:
    assert "mul nuw i32" in llvm_of(reduction("sum", 1 << 20, 4))
    for rows in (1 << 32, "s0"):
        assert "mul nuw i32" not in llvm_of(softmax(rows, 4))
