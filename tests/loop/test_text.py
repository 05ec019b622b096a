"""The text of the loop IR: golden programs, the round trip, and errors that say where and what."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from litz.errors import ParseError, VerifyError
from litz.loop.expr import Axis, Size, Value, expr
from litz.loop.formula import Formula
from litz.loop.interpret import interpret
from litz.loop.ir import (
    Apply,
    Arg,
    Buffer,
    Call,
    Check,
    Const,
    Index,
    Kernel,
    Load,
    Number,
    NumberSource,
    Program,
    Reduce,
    SizeSource,
    Store,
    View,
)
from litz.loop.parse import parse_kernel, parse_program
from litz.loop.text import print_kernel, print_program
from litz.loop.verify import verify
from tests.golden import check
from tests.strategies import programs

i0, i1, r0 = Axis("i0", 8), Axis("i1", 64), Axis("r0", 32)
s0 = Size("s0")
POINTWISE = Program(
    {"x": Buffer("x", "f32", expr(512), "input"), "b": Buffer("b", "f32", expr(64), "input"),
     "y": Buffer("y", "f32", expr(512), "output")},
    ("x", "b"),
    (View("y", "f32", (expr(8), expr(64)), (expr(64), expr(1))),),
    (Kernel("scale_shift", (i0, i1), (), (
        Load("v0", "f32", "x", 64 * expr(i0) + expr(i1)),
        Const("v1", "f32", 0.1),
        Apply("v2", "f32", "mul", ("v0", "v1")),
        Load("v3", "f32", "b", expr(i1)),
        Apply("v4", "f32", "add", ("v2", "v3")),
        Store("y", 64 * expr(i0) + expr(i1), "v4"),
    ), ("mul", "add")),),
)  # fmt: skip

row = Axis("i0", s0)
at = 32 * expr(row) + expr(r0)
SOFTMAX = Program(
    {"x": Buffer("x", "f32", 32 * expr(s0), "input"), "y": Buffer("y", "f32", 32 * expr(s0), "output")},
    ("x", None),
    (View("y", "f32", (expr(s0), expr(32)), (expr(32), expr(1))), expr(s0) + 1, None),
    (Kernel("softmax", (row,), (r0,), (
        Load("v0", "f32", "x", at),
        Reduce("v1", "f32", "max", "v0"),
        Apply("v2", "f32", "sub", ("v0", "v1")),
        Apply("v3", "f32", "exp", ("v2",)),
        Reduce("v4", "f32", "sum", "v3"),
        Apply("v5", "f32", "div", ("v3", "v4")),
        Store("y", at, "v5"),
    ), ("softmax",)),),
)  # fmt: skip

word, column = Axis("i0", 6), Axis("i1", 4)
EMBEDDING = Program(
    {"ids": Buffer("ids", "i64", expr(6), "input"), "table": Buffer("table", "f32", expr(40), "input"),
     "y": Buffer("y", "f32", expr(24), "output")},
    ("ids", "table"),
    (View("y", "f32", (expr(2), expr(4), expr(3)), (expr(12), expr(1), expr(4))),),
    (Kernel("embedding", (word, column), (), (
        Load("v0", "i64", "ids", expr(word)),
        Check("v1", "i64", "v0", expr(10), wrap=False),
        Index("v2", "i64", expr(column) // 2),
        Const("v3", "i64", 1),
        Apply("v4", "b1", "lt", ("v2", "v3")),
        Load("v5", "f32", "table", 4 * expr(Value("v1", 10)) + expr(column), "v4"),
        Store("y", 4 * expr(word) + expr(column), "v5"),
    ), ("embedding",)),),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "program"),
    [("pointwise", POINTWISE), ("softmax", SOFTMAX), ("embedding", EMBEDDING)],
    ids=lambda x: str(x)[:9],
)
def test_golden(name: str, program: Program) -> None:
    verify(program)
    check(name, print_program(program))
    assert parse_program(print_program(program)) == program


@settings(max_examples=100, deadline=None)
@given(programs())
def test_round_trip(program: Program) -> None:
    assert parse_program(print_program(program)) == program
    for kernel in program.kernels:
        again, buffers = parse_kernel(print_kernel(kernel, program.buffers))
        assert again == kernel
        assert buffers == {name: program.buffers[name] for name in (*kernel.reads, *kernel.writes)}


def test_round_trip_of_calls() -> None:
    s = expr(Size("s0"))
    x = View("x", "bf16", (s, expr(768)), (expr(768), expr(1)))
    window = View("x", "bf16", (expr(4), expr(2)), (expr(1), s * 3), s + 7)
    values: tuple[Arg, ...] = (
        *(None, True, False, 0, -3, 2**63, 0.1, -1e-30, 1e22, math.inf, -math.inf, 1 + 2j, 'quoted "#" \\ \n text'),
        *(torch.float32, torch.strided, torch.channels_last, torch.device("cuda", 1), torch.device("cpu")),
        *((), (1,), (1, (2.0, None)), [1, 2], [], s, s * 4 + 1, expr(3), (window, (x,))),
    )
    call = Call(
        "c0", "aten::pretend.out", (x, *values), (("dtype", torch.int64), ("out", window)), (x, None), ("x",), "no #"
    )
    bare = Call("c1", "aten::nothing", (), (), ())
    program = Program({"x": Buffer("x", "bf16", s * 768, "input")}, ("x", None, "x"), (x, *values), (call, bare))
    text = print_program(program)
    again = parse_program(text)
    assert again == program
    # Equality alone would let an index of one number pass for the number, and 1 for True.
    assert [type(value) for value in again.outputs] == [type(value) for value in program.outputs]
    assert again.calls[0].args[1:4] == (None, True, False)
    assert max(map(len, text.splitlines())) <= 120


def test_round_trip_of_sizes() -> None:
    """Where each comes from, in the order in which the program takes them, and its likely value."""
    n, m, k = Size("n", 512), Size("m", 2), Size("k")
    buffers = {"x": Buffer("x", "f32", expr(n) * m, "input")}
    view = View("x", "f32", (expr(n), expr(m)), (expr(m), expr(1)))
    sources = (SizeSource("n", 0, 0), SizeSource("m", 0, 1), SizeSource("unused", 1), SizeSource("k", 2))
    program = Program(buffers, ("x", None, None), (view, expr(k)), (), sources)
    verify(program)
    text = print_program(program)
    assert text.startswith(
        "sizes n ~ 512 from input 0 dim 0, m ~ 2 from input 0 dim 1, unused from input 1, k ~ 64 from input 2\n"
    )
    again = parse_program(text)
    assert again == program and again.buffers["x"].size.hint == 1024
    assert again != replace(program, sizes=sources[::-1])
    assert parse_program(text.replace("512", "513")) != program


def test_round_trip_of_numbers() -> None:
    """Bounds of sizes, what the host computes, and floats as arguments."""
    n, half = Size("n", 6, least=-4), Size("half", 3, None, Formula("trunc(0.5*n)"))
    buffers = {
        "x": Buffer("x", "f32", expr(half), "input"),
        "t": Buffer("t", "f64", expr(1), "input"),
        "f": Buffer("f", "f64", expr(1), "number"),
    }
    call = Call("c0", "aten::mul.Tensor", (View("x", "f32", (expr(half),), (expr(1),)), Number("t")), (), ())
    sizes = (SizeSource("n", 2), SizeSource("half", formula=half.formula))
    floats = (NumberSource("t", 1), NumberSource("f", formula=Formula("sqrt(n) + t")))
    program = Program(buffers, ("x", "t", None), (expr(n),), (call,), sizes, floats)
    verify(program)
    text = print_program(program)
    assert text.startswith(
        'sizes n ~ 6 least -4 from input 2, half ~ 3 least any is "trunc(0.5*n)"\n'
        'numbers t from input 1, f is "sqrt(n) + t"\n'
    )
    assert parse_program(text) == program
    for broken in (
        replace(program, numbers=floats[:1]),
        replace(program, numbers=(NumberSource("f", formula=Formula("u")), *floats[:1])),
        replace(program, sizes=(SizeSource("half", formula=half.formula),)),
        replace(program, buffers=buffers | {"t": Buffer("t", "f32", expr(1), "input")}),
    ):
        with pytest.raises(VerifyError):
            verify(broken)
    (found,) = interpret(program, [torch.ones(4), torch.tensor(2.0, dtype=torch.float64), 8])
    assert found == 8


def test_round_trip_of_nested_divisions_and_odd_constants() -> None:
    i, j, n = Axis("i0", 1000), Axis("r0", Size("n")), Size("n")
    v = Value("v0", expr(n) * 2)
    index = 3 * ((expr(i) * 7 + expr(v)) // 5) + (expr(i) + 1) // 3 % 7 * expr(n) - expr(j) // 2 - 4
    body = (
        Load("c", "i64", "x", expr(i)),
        Check("v0", "i64", "c", expr(n) * 2),
        Load("v1", "f64", "y", index),
        Const("v2", "f64", math.nan),
        Const("v3", "f64", -math.inf),
        Const("v4", "f64", 5e-324),
        Const("v5", "f32", 1),
        Const("v6", "b1", True),
        Reduce("v7", "f64", "sum", "v1"),
        Store("z", expr(i) * (expr(i) // 3), "v7"),
    )
    buffers = {
        "x": Buffer("x", "i64", expr(1000)),
        "y": Buffer("y", "f64", expr(n) * 99),
        "z": Buffer("z", "f64", expr(n)),
    }
    kernel = Kernel("odd", (i,), (j,), body)
    text = print_kernel(kernel, buffers)
    again, declared = parse_kernel(text)
    assert again == kernel
    assert declared == buffers
    assert again.body[2].index is index  # type: ignore[union-attr]
    assert type(again.body[6].value) is int  # type: ignore[union-attr]


def test_a_kernel_without_axes() -> None:
    kernel = Kernel("one", (), (), (Const("v0", "f32", 1.5), Store("x", expr(0), "v0")))
    text = print_kernel(kernel, {"x": Buffer("x", "f32", expr(1))})
    assert "once:" in text
    assert parse_kernel(text)[0] == kernel


def test_what_has_no_spelling_is_refused() -> None:
    program = Program({}, (), (object(),), ())
    with pytest.raises(TypeError, match="not serialisable"):
        print_program(program)


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("program(x", "programme(x", 1, "`program`"),
        ("x: f32[512]", "x: f31[512]", 1, "a dtype"),
        ("f32[8, 64])", "f32[8, 64]", 10, "`,` or `)`"),
        ("f32[512] output", "f32[512] outptu", 2, "a kind of buffer"),
        ("i0 < 8 parallel", "i0 < 8 serial", 4, "what the axis is"),
        ("64*i0 + i1]\n    v1", "64*i0 + i9]\n    v1", 5, "an index"),
        ("const 0.1", "const zero", 6, "a number"),
        ("mul v0, v1", "mul v0,", 7, "the name of a value"),
        ("store y", "stroe y", 10, "`store`"),
        ("= v4", "= v4 v5", 10, "the end of the line"),
        ("load b[i1]", "load b[i1", 8, "`]`"),
        ("const 0.1", "const 0.1 $", 6, "a name, a number or a sign"),
        ("kernel scale", "karnel scale", 3, "`kernel` or `call`"),
    ],
)
def test_errors_say_where_and_what(old: str, new: str, line: int, expected: str) -> None:
    text = print_program(POINTWISE)
    assert text.count(old) == 1
    with pytest.raises(ParseError) as caught:
        parse_program(text.replace(old, new))
    message = str(caught.value)
    assert f"expected {expected}" in message
    if old != "f32[8, 64])":  # an open bracket is only missed further down
        assert f"line {line}:" in message
        assert text.replace(old, new).splitlines()[line - 1].strip() in message


def test_nothing_at_all_is_an_error_too() -> None:
    with pytest.raises(ParseError, match="expected a program"):
        parse_program("# only a comment\n")


ORDERED = """program(x: f32[512], n: i64[8]) -> (y: f32[8, 64], z: f32[8])
buffer y: f32[512] output
buffer z: f32[8] output
kernel walk
  for i0 < 8 parallel, r0 < 64 reduce:
    v0: f32 = load x[64*i0 + r0]
    v1: f32 = scan sum v0
    store y[64*i0 + r0] = v1
kernel put
  for r0 < 8 reduce:
    v0: i64 = load n[r0]
    v1: i64 = check 0 <= v0 < 8
    v2: f32 = const 1.0
    update max z[v1] = v2
"""


def test_scans_and_updates() -> None:
    program = parse_program(ORDERED)
    assert parse_program(print_program(program)) == program
    assert [kernel.ordered for kernel in program.kernels] == [True, True]
    assert "z" in program.kernels[1].reads
