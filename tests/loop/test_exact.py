"""Numbers told apart where Python calls them equal, and the data types that go by it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from litz.graph.match import same
from litz.graph.rewrite import metadata
from litz.graph.uniform import compress
from litz.loop.exact import exact, is_positive_zero, spelled
from litz.loop.expr import Axis, expr
from litz.loop.ir import Buffer, Call, Const, Kernel, Program, Store, View
from litz.loop.parse import parse_program
from litz.loop.text import print_program

NUMBERS = (0, 0.0, -0.0, False, 1, 1.0, True, 0j, complex(-0.0, 0.0), math.nan, -math.nan, math.inf, np.float32(0.0))


@pytest.mark.parametrize("one", range(len(NUMBERS)))
def test_each_number_is_itself_alone(one: int) -> None:
    same_keys = [other for other in range(len(NUMBERS)) if exact(NUMBERS[one]) == exact(NUMBERS[other])]
    assert same_keys == [one]
    assert exact([1, (NUMBERS[one],)]) == exact([1, (NUMBERS[one],)]) != exact([1.0, (NUMBERS[one],)])


def test_constants_calls_and_programs_go_by_it() -> None:
    assert len({Const("v0", "f32", v) for v in NUMBERS}) == len(NUMBERS)  # type: ignore[arg-type]
    assert Const("v0", "f32", math.nan) == Const("v0", "f32", float("nan"))
    for make in (
        lambda *numbers: Call("c", "aten::f", numbers, (("k", numbers),), ()),
        lambda *numbers: Program({}, (), numbers, ()),
    ):
        assert make(0.0, 1) == make(0.0, 1)
        assert make(0.0, 1) not in (make(-0.0, 1), make(0.0, True), make(0, 1), make(0.0, 1.0))


def test_numbers_survive_the_text() -> None:
    axis = Axis("i0", 4)
    values = (0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324, -1e-45, 0.1)
    buffer, view = Buffer("y", "f64", expr(4), "output"), View("y", "f64", (expr(4),), (expr(1),))
    store = Store("y", expr(axis), "v0")
    kernels = tuple(Kernel(f"k{i}", (axis,), (), (Const("v0", "f64", v), store)) for i, v in enumerate(values))
    call = Call("c", "aten::f", (*values, 1, True, -1, complex(-0.0, math.nan)), (), ())
    program = Program({"y": buffer}, (), (view, *values, 0, False), (*kernels, call))
    again = parse_program(print_program(program))
    assert again == program and print_program(again) == print_program(program)
    assert [spelled(k.body[0].value) for k in again.kernels] == [spelled(v) for v in values]  # type: ignore[union-attr]


def test_which_zero() -> None:
    assert [is_positive_zero(v) for v in (0, 0.0, False, -0.0, 1, math.nan)] == [True, True, True, False, False, False]


def test_patterns_and_traces_of_rules() -> None:
    assert same(2, 2.0) and same(0.0, 0) and same(math.nan, math.nan)
    assert not same(0.0, -0.0) and not same(True, 1) and not same([1.0, -0.0], [1.0, 0.0])
    assert metadata(0.0) != metadata(-0.0) and metadata(1) != metadata(True) != metadata(1.0)


def test_what_does_not_vary() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert compress(torch.tensor([0.0, -0.0], dtype=dtype)).numel() == 2
        assert compress(torch.tensor([[0.0, -0.0]] * 3, dtype=dtype)).shape == (1, 2)
        assert compress(torch.full((3, 2), -0.0, dtype=dtype)).signbit().tolist() == [[True]]
        assert compress(torch.full((3, 2), math.nan, dtype=dtype)).numel() == 1
    assert compress(torch.ones(3, 2, dtype=torch.int64)).numel() == 1
