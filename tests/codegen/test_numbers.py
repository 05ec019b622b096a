"""Numbers known only at run time, as machine code computes with them: negative ones, floats, sizes that are zero."""

from __future__ import annotations

import pytest
import torch

from litz.loop.expr import Axis, Expr, Size, expr
from litz.loop.formula import Formula
from litz.loop.interpret import interpret
from litz.loop.ir import Apply, Buffer, Index, Kernel, Load, NumberSource, Program, SizeSource, Store, View
from tests.codegen.native import build

A, B = Size("a", 3, None), Size("b", 5, None)
LENGTH = 37


def indices(index: Expr, axis: Axis) -> Program:
    """`index` at each step of the axis."""
    body = (Index("v0", "i64", index), Store("y", expr(axis), "v0"))
    buffers = {"y": Buffer("y", "i64", expr(LENGTH), "output")}
    result, kernel = View("y", "i64", (expr(LENGTH),), (expr(1),)), Kernel("k", (axis,), (), body)
    return Program(buffers, (None, None), (result,), (kernel,), (SizeSource("a", 0), SizeSource("b", 1)))


I = Axis("i0", LENGTH)
DIVISIONS = {
    "along lanes": (expr(I) - A) // B,
    "remainder along lanes": (expr(I) * 3 - A) % B,
    "for all lanes": expr(I) + expr(A) // B,
    "remainder for all lanes": expr(I) - expr(A) % B,
    "by a number": (expr(I) - A) // 7 + (expr(A) - I) % 5,
    "by a negative number": (expr(I) + A) // -3 + (expr(I) - B) % -4,
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_division_rounds_down_whatever_the_signs(name: str) -> None:
    program = indices(DIVISIONS[name], I)
    made = build(program)
    for a in (-20, -7, 0, 3, 40):
        for b in (-9, -1, 1, 2, 12):
            (expected,) = interpret(program, [a, b])
            assert torch.equal(made(a, b)[0], expected)


def test_floats_are_given_or_computed_at_each_call() -> None:
    buffers = {
        "x": Buffer("x", "f64", expr(LENGTH), "input"),
        "t": Buffer("t", "f64", expr(1), "input"),
        "f": Buffer("f", "f64", expr(1), "number"),
        "y": Buffer("y", "f64", expr(LENGTH), "output"),
    }
    body = (
        Load("v0", "f64", "x", expr(I)),
        Load("v1", "f64", "t", expr(0)),
        Load("v2", "f64", "f", expr(0)),
        Apply("v3", "f64", "mul", ("v0", "v1")),
        Apply("v4", "f64", "add", ("v3", "v2")),
        Store("y", expr(I), "v4"),
    )
    program = Program(
        buffers, ("x", "t", None), (View("y", "f64", (expr(LENGTH),), (expr(1),)),), (Kernel("k", (I,), (), body),),
        (SizeSource("n", 2),), (NumberSource("t", 1), NumberSource("f", formula=Formula("sqrt(n)*t"))),
    )  # fmt: skip
    made, x = build(program), torch.randn(LENGTH, dtype=torch.float64)
    for number, t in ((2, 0.5), (3, -1.5), (9, 7.0)):
        given = [x, torch.tensor(t, dtype=torch.float64), number]
        assert torch.equal(made(*given)[0], x * t + number**0.5 * t)
        assert torch.equal(interpret(program, given)[0], x * t + number**0.5 * t)  # type: ignore[arg-type]


def test_numbers_that_lay_out_no_memory_leave_it_as_it_is() -> None:
    made = build(indices(expr(I) + expr(A) * B, I))
    for number in range(100):
        assert made(number, number)[0][0] == number * number
    assert len(made._frames) == 1
