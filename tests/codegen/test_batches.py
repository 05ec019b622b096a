"""Kernels that wait for nothing of each other: one team for all, every element once, whatever the sizes and threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from litz.codegen.llvm.batch import batches
from litz.loop.flat import elements, flat_form
from litz.loop.parse import parse_program
from litz.schedule.memory import plan_memory
from litz.target import detect
from tests.codegen.compiled import agrees, compiled

SIZES = (1, 0, 63, 64, 65, 3000, 127, 128, 20_000, 5, 1, 4096, 70_001)


def update(*tensors: torch.Tensor) -> None:
    """Each element is changed by what it was: one that is visited twice, or not at all, shows."""
    for t in tensors:
        t.mul_(3).add_(1)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_every_element_once(threads: int, dtype: torch.dtype) -> None:
    tensors = [torch.randint(-9, 9, (n,)).to(dtype) for n in SIZES]
    made, report = compiled(update, tensors, detect(threads=threads))
    wanted = [t * 3 + 1 for t in tensors]
    made(*tensors)
    for got, want in zip(tensors, wanted, strict=True):
        assert torch.equal(got, want)
    text = report.snapshot("render")
    assert text.count("call void @GOMP_parallel") == (1 if threads > 1 else 0)


def test_one_function_for_all_lengths() -> None:
    tensors = [torch.randn(n) for n in (100, 3000, 20_000, 17)]
    _, report = compiled(update, tensors)
    assert (report.kernels, report.kernels_built) == (4, 1)


def test_a_length_that_stands_alone_is_known() -> None:
    _, report = compiled(update, [torch.randn(20_000), torch.randn(20_000)])
    assert report.kernels_built == 1
    assert "20000" in report.snapshot("render")


def test_lengths_with_a_number_each() -> None:
    """A scalar of its own for each: read from memory, and not a constant of the shared function."""

    def scaled(a: Any, b: Any, c: Any, x: Any, y: Any, z: Any) -> None:
        for t, s in ((a, x), (b, y), (c, z)):
            t.mul_(s)

    numbers = [torch.tensor(v) for v in (2.0, 3.0, 5.0)]
    agrees(scaled, torch.randn(30), torch.randn(3000), torch.randn(90_000), *numbers)


def test_signs_of_zero_are_not_shared() -> None:
    def signed(a: torch.Tensor, b: torch.Tensor) -> None:
        a.add_(0.0)
        b.add_(-0.0)

    a, b = torch.full((100,), -0.0), torch.full((3000,), -0.0)
    made, _ = compiled(signed, [a, b])
    made(a, b)
    assert not a.signbit().any() and b.signbit().all()


PROGRAM = """
program(a: f32[100], b: f32[100], c: f32[100]) -> ()
buffer t: f32[100] temp
kernel one
  for i < 100 parallel:
    v: f32 = load {0}[i]
    store {1}[i] = v
kernel two
  for i < 100 parallel:
    v: f32 = load {2}[i]
    store {3}[i] = v
kernel three
  for i < 100 parallel:
    v: f32 = load c[i]
    w: f32 = load t[i]
    x: f32 = add v, w
    store c[i] = x
"""


@pytest.mark.parametrize(
    "places, together",
    [
        (("a", "b", "a", "c"), True),
        (("a", "b", "b", "c"), False),  # reads what the first writes
        (("a", "b", "c", "a"), False),  # writes what the first reads
        (("a", "b", "c", "b"), False),  # writes what the first writes
        (("a", "b", "c", "t"), False),  # a temporary may lie where another one lay
    ],
)
def test_what_stands_together(places: tuple[str, ...], together: bool) -> None:
    program = parse_program(PROGRAM.format(*places))
    first, *_ = batches(program, plan_memory(program))
    assert (first == [0, 1]) is together


def test_a_pause_ends_a_batch() -> None:
    program = parse_program(PROGRAM.format("a", "b", "a", "c"))
    layout = replace(plan_memory(program), pauses=frozenset({1}))
    assert batches(program, layout)[0] == [0]


def test_flat_forms() -> None:
    program = parse_program(PROGRAM.format("a", "b", "a", "c"))
    one, two, three = (flat_form(kernel) for kernel in program.kernels)
    assert one is not None and two is not None and three is not None
    assert elements(program.kernels[0]).int == 100
    assert one.axes == three.axes and one.body != two.body  # other buffers


@pytest.mark.parametrize("index", ["2*i", "99 - i", "i // 2"])
def test_no_flat_form_where_places_depend_on_the_length(index: str) -> None:
    text = (
        PROGRAM.format("a", "b", "a", "c")
        .replace("load a[i]", f"load a[{index}]")
        .replace("a: f32[100]", "a: f32[200]")
    )
    assert flat_form(parse_program(text).kernels[0]) is None
