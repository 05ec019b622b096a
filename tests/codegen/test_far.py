"""What is asked for ahead of time: which memory, in which kernels, and that code which does so computes the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from litz.codegen.far import asked_ahead, far_inputs, far_of
from litz.codegen.lanes import vector_axis
from litz.codegen.llvm.render import render
from litz.codegen.plan_cpu import plan_for_cpu
from litz.context import Context
from litz.loop.ir import Kernel
from litz.loop.parse import parse_program
from litz.options import Options
from litz.schedule.memory import plan_memory
from litz.target import detect
from tests.codegen.native import run

PROGRAM = parse_program("""program(p: f32[65536], g: f32[65536], w: f32[256]) -> (y: f32[65536], s: f32[256])
buffer t: f32[65536] temp
buffer y: f32[65536] output
buffer s: f32[256] output
kernel scaled
  for i0 < 256 parallel, i1 < 256 parallel:
    v0: f32 = load p[256*i0 + i1]
    v1: f32 = load w[i1]
    v2: f32 = mul v0, v1
    store t[256*i0 + i1] = v2
kernel turned
  for i0 < 256 parallel, i1 < 256 parallel:
    v0: f32 = load t[256*i0 + i1]
    v1: f32 = load g[256*i1 + i0]
    v2: f32 = add v0, v1
    store y[256*i0 + i1] = v2
kernel sums
  for i0 < 256 parallel, r0 < 256 reduce:
    v0: f32 = load p[256*i0 + r0]
    v1: f32 = reduce sum v0
    store s[i0] = v1
""")
SCALED, TURNED, SUMS = PROGRAM.kernels
LARGE, SMALL = 1 << 30, 1 << 10  # bytes of a cache


def test_inputs_are_far_where_the_cache_does_not_hold_them() -> None:
    assert far_inputs(PROGRAM, SMALL) == {"p", "g", "w"}
    assert far_inputs(PROGRAM, LARGE) == frozenset()


def test_a_kernel_that_goes_through_much_asks_for_all_of_it() -> None:
    buffers = dict(PROGRAM.buffers)
    assert far_of(TURNED, buffers, (), LARGE) == frozenset()
    assert far_of(TURNED, buffers, ("g",), LARGE) == {"g"}
    assert far_of(TURNED, buffers, (), SMALL) == {"t", "g"}


@pytest.mark.parametrize(("kernel", "asked"), [(SCALED, {"p"}), (TURNED, {"t"}), (SUMS, set())])
def test_only_what_is_walked_once_from_end_to_end(kernel: Kernel, asked: set[str]) -> None:
    assert asked_ahead(kernel, vector_axis(kernel), {"p", "g", "w", "t"}) == asked


def test_the_plan_says_so() -> None:
    assert "ahead" not in str(plan_for_cpu(SCALED, detect(threads=1)))
    assert str(plan_for_cpu(SCALED, detect(threads=1), {"p"})).splitlines()[0].endswith(", ahead: p")


@pytest.mark.parametrize("cache", [SMALL, LARGE])
def test_code(cache: int) -> None:
    p, g, w = torch.randn(256, 256), torch.randn(256, 256), torch.randn(256)
    target = replace(detect(threads=2), last_cache_bytes=cache)
    y, s = run(PROGRAM, [p, g, w], target)
    torch.testing.assert_close(y.view(256, 256), p * w + g.T)
    torch.testing.assert_close(s, p.sum(1))
    rendering = render(PROGRAM, plan_memory(PROGRAM), Context(Options(), target))
    asks = sum(text.count("call void @llvm.prefetch") for text in rendering.modules)
    assert (asks > 0) == (cache == SMALL)


def test_complex_numbers_count_too() -> None:
    """No kernel computes with them; they may be most of what a program is given."""
    x = torch.randn(64, 64, dtype=torch.complex64)
    compiled = torch.compile(lambda x: torch.fft.fft(x).real * 2, backend="litz", options={"verify": True})
    torch.testing.assert_close(compiled(x), torch.fft.fft(x).real * 2)
