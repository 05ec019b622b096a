"""The verifier: every rule has a program that breaks it, and random legal programs break none."""

from __future__ import annotations

import cProfile
from dataclasses import replace

import pytest
from hypothesis import given, settings

from litz.errors import VerifyError
from litz.loop.expr import Axis, Size, Value, constant, expr
from litz.loop.ir import Apply, Buffer, Check, Kernel, Load, Program, SizeSource, Store, View
from litz.loop.parse import parse_program
from litz.loop.verify import verify
from tests.strategies import programs

GOOD = """
program(x: f32[512], n: i64[8], h: bf16[8], q: u8[8]) -> (y: f32[8, 64], z: f32[8])
buffer y: f32[512] output
buffer z: f32[8] output
buffer t: f32[8] temp
kernel first
  for i0 < 8 parallel, i1 < 1 parallel, r0 < 64 reduce:
    v0: f32 = load x[64*i0 + r0]
    v1: f32 = reduce sum v0
    v2: f32 = sub v0, v1
    v3: i64 = load n[i0]
    v4: i64 = check v3 < 512
    v5: f32 = load x[v4]
    v6: b1 = lt v1, v5
    v7: f32 = where v6, v1, v5
    v8: bf16 = load h[i0]
    v9: f32 = cast v8
    v10: b1 = const True
    v11: u8 = load q[i0]
    v12: i64 = index 3*i0 + i1
    store y[64*i0 + r0] = v2
    store t[i0] = v7
call c0 = aten::abs.out(t: f32[8], out=z: f32[8]) -> (z: f32[8])
"""


def with_line(line: str) -> str:
    return GOOD.replace("    v12: i64 = index 3*i0 + i1\n", f"    v12: i64 = index 3*i0 + i1\n    {line}\n")


def test_the_good_program_is_good() -> None:
    verify(parse_program(GOOD))
    verify(parse_program(with_line("w: f32 = cast v10")))


@settings(max_examples=100, deadline=None)
@given(programs())
def test_random_programs_are_good(program: Program) -> None:
    verify(program)


@pytest.mark.parametrize(
    ("line", "what", "expected"),
    [
        # names
        ("v0: f32 = neg v1", "v0 is defined twice", "a new name"),
        ("i0: f32 = neg v1", "i0 is defined twice", "a new name"),
        ("w: f32 = neg later", "later is not defined", "an earlier line"),
        ("store z[i0] = later", "later is not defined", "an earlier line"),
        ("w: f32 = load x[i0] if later", "later is not defined", "an earlier line"),
        ("w: f32 = reduce sum later", "later is not defined", "an earlier line"),
        # scalar operators
        ("w: f32 = frobnicate v0", "frobnicate is not a scalar operator", "a row"),
        ("w: f32 = add v0", "add has 1 arguments", "2"),
        ("w: f32 = add v0, v3", "add of f32, i64", "one type"),
        ("w: b1 = add v0, v0", "is said to be b1", "f32"),
        ("w: f32 = lt v0, v0", "is said to be f32", "b1"),
        ("w: b1 = lt v0, v3", "lt of f32, i64", "one type"),
        ("w: f32 = where v0, v0, v0", "the condition v0 is f32", "b1"),
        ("w: f32 = where v6, v0, v3", "where of f32, i64", "one type"),
        ("w: i64 = where v6, v0, v0", "is said to be i64", "f32"),
        ("w: i64 = exp v3", "exp of i64", "kind float"),
        ("w: f32 = and v0, v0", "and of f32", "kind int or uint or bool"),
        ("w: b1 = sub v10, v10", "sub of b1", "kind float"),
        # half precision only moves
        ("w: bf16 = add v8, v8", "add computes in bf16", "a cast to f32"),
        ("w: b1 = lt v8, v8", "lt computes in bf16", "a cast to f32"),
        ("w: bf16 = reduce max v8", "max computes in bf16", "a cast to f32"),
        # constants
        ("w: b1 = const 1", "1 is not of type b1", "a bool"),
        ("w: i64 = const 1.5", "1.5 is not of type i64", "a int"),
        ("w: u8 = const 256", "256 is not of type u8", "fits u8"),
        ("w: u8 = const -1", "-1 is not of type u8", "fits u8"),
        ("w: f32 = const True", "True is not of type f32", "a float"),
        # indices
        ("w: f32 = index i0", "an index of type f32", "an integer type"),
        ("w: i64 = index v0", "v0 is f32", "an integer in an index"),
        ("w: f32 = load x[v6]", "v6 is b1", "an integer in an index"),
        ("w: f32 = check v0 < 3", "a check of f32", "one integer type"),
        ("w: i32 = check v3 < 3", "a check of i64 gives i32", "one integer type"),
        ("w: i64 = check v3 < i0", "the limit i0 varies", "sizes"),
        # reductions
        ("w: f32 = reduce median v0", "median is not a reduction", "sum"),
        ("w: i64 = reduce sum v0", "is said to be i64", "f32"),
        ("w: f32 = reduce argmax v0", "is said to be f32", "i64"),
        ("w: f32 = reduce any v0", "any of f32", "kind bool"),
        ("w: b1 = reduce sum v6", "sum of b1", "kind float"),
        # scans and updates
        ("w: f32 = scan median v0", "median is not a scan", "sum"),
        ("w: i64 = scan sum v0", "is said to be i64", "f32"),
        ("w: bf16 = scan max v8", "max computes in bf16", "a cast to f32"),
        ("update median z[i0] = v1", "median is not an update", "sum"),
        ("update sum z[v4%8] = v1", "z is updated once in each of several iterations", "one update"),
        ("update sum x[64*i0 + v4%64] = v1", "x is loaded where it is updated", "the update alone"),
        # memory
        ("w: f32 = load nowhere[i0]", "nowhere is not declared", "a declared buffer"),
        ("store nowhere[i0] = v1", "nowhere is not declared", "a declared buffer"),
        ("w: i64 = load x[i0]", "x holds f32", "a cast after it"),
        ("store z[i0] = v3", "v3 is i64", "f32, as z is"),
        ("w: f32 = load x[i0] if v1", "the mask v1 is f32", "b1"),
        ("w: f32 = load t[i0]", "t is read before it is written", "an earlier store"),
        ("store z[i0] = v0", "v0 depends on r0", "an index that does too"),
        ("store z[0] = v1", "v1 depends on i0", "an index that does too"),
        # bounds
        ("w: f32 = load x[64*i0 + r0 + 1]", "x[512] is out of bounds", "[0, 512)"),
        ("store z[i0 + 1] = v1", "z[8] is out of bounds", "[0, 8)"),
        ("store z[i0 - 1] = v1", "z[-1] is out of bounds", "[0, 8)"),
        ("w: f32 = load x[v4 + 1]", "x[512] is out of bounds", "[0, 512)"),
        ("store z[3*(i0//4) + (3*i0)%7] = v1", "z[8] is out of bounds", "[0, 8)"),
        # races
        ("store x[64*i0 + r0 + 0*i0] = v2", "x is also stored", "one element"),
    ],
)
def test_a_bad_line(line: str, what: str, expected: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(parse_program(with_line(line)))
    message = str(caught.value)
    assert what in message
    assert expected in message.split("; expected ")[1]
    # The race is reported at the load; everything else at the line itself.
    assert line in message or what == "x is also stored"


def test_indices_that_stay_inside_though_their_terms_alone_would_not() -> None:
    verify(parse_program(with_line("store z[3*(i0%2) + 2*(1 - i0%2)] = v1")))
    verify(parse_program(with_line("w: f32 = load x[600*i0] if v6")))
    verify(parse_program(with_line("w: f32 = load x[i0 - 1]")))  # an input's view may begin before its data


def test_nothing_has_to_be_written_to_what_is_empty() -> None:
    verify(parse_program("program() -> (y: f32[3, 0], z: f32[0])\nbuffer y: f32[1] output\nbuffer z: f32[0] output\n"))


def test_updating_in_place() -> None:
    text = """
program(x: f32[64]) -> ()
kernel update
  for i0 < 8 parallel, i1 < 8 parallel:
    v0: f32 = load x[8*i0 + i1]
    v1: f32 = neg v0
    store x[8*i0 + i1] = v1
"""
    verify(parse_program(text))
    verify(
        parse_program(text.replace("x: f32[64]", "x: f32[128]").replace("load x[8*i0 + i1]", "load x[8*i0 + i1 + 64]"))
    )
    with pytest.raises(VerifyError, match="x is also stored"):
        verify(parse_program(text.replace("load x[8*i0 + i1]", "load x[8*i1 + i0]")))
    with pytest.raises(VerifyError, match="updated once in each of several iterations"):
        verify(parse_program(text.replace("8*i0 + i1", "i1")))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("i1 < 1 parallel", "i1 < 1 parallel, i1 < 1 parallel", "two axes have one name"),
        ("aten::abs.out(t: f32[8]", "aten::abs.out(w: f32[8]", "buffer w is not declared"),
        ("aten::abs.out(t: f32[8]", "aten::abs.out(t: f32[9]", "the window reaches element 8"),
        ("aten::abs.out(t: f32[8]", "aten::abs.out(t: f32[2, 8] stride [1]", "2 sizes and 1 strides"),
        ("-> (z: f32[8])\n", "-> (z: f32[8], w: f32[8])\n", "buffer w is not declared"),
        ("-> (z: f32[8])\n", "-> (z: f32[8]) mutates w\n", "buffer w is not declared"),
        ("    store t[i0] = v7\n", "", "t is read before it is written"),
        ("    store y[64*i0 + r0] = v2\n", "", "output y is never written"),
        ("z: f32[8])\nbuffer y", "w: f32[8])\nbuffer y", "buffer w is not declared"),
        ("q: u8[8]) ->", "q: u8[8], t) ->", "input t of the program is not a buffer of kind input"),
        ("f32[8] temp\n", "f32[8] temp\nbuffer c: f32[8] input\n", "input buffer c is none of the program's inputs"),
        (", r0 < 64 reduce", ", r0 < 64 parallel", "there is nothing to reduce over"),
    ],
)
def test_a_bad_program(old: str, new: str, what: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(VerifyError, match=what):
        verify(parse_program(GOOD.replace(old, new)))


def small(*body: object, axes: tuple[Axis, ...] = (Axis("i0", 4),), **buffers: Buffer) -> Program:
    """What the text cannot say wrongly: built by hand."""
    own = {"x": Buffer("x", "i64", expr(4), "input"), "y": Buffer("y", "i64", expr(4), "output"), **buffers}
    view = View("y", "i64", (expr(4),), (expr(1),))
    return Program(own, ("x",), (view,), (Kernel("k", axes, (), body),))  # type: ignore[arg-type]


I0 = expr(Axis("i0", 4))
LOAD, STORE = Load("v0", "i64", "x", I0), Store("y", I0, "v0")


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (small(Load("v0", "i64", "x", expr(Axis("i9", 4))), STORE), "axis i9 < 4 is not one of the kernel's"),
        (small(Load("v0", "i64", "x", expr(Axis("i0", 3))), STORE), "axis i0 < 3 is not one of the kernel's"),
        (small(Load("v0", "i65", "x", I0), STORE), "i65 is not a dtype"),
        (small(Load("v 0", "i64", "x", I0), STORE), "'v 0' is not a name"),
        (small(LOAD, Load("v1", "i64", "x", expr(Value("v0", 4))), STORE), "v0 is used with limit 4"),
        (
            small(LOAD, Check("v1", "i64", "v0", expr(4)), Store("y", expr(Value("v1")), "v0")),
            "limit None; expected limit 4",
        ),
        (small(LOAD, STORE, Load("v1", "i64", "x", expr(Size("v0")))), "size v0 is named like an axis or a value"),
        (small(LOAD, STORE, axes=(Axis("i0", 4), Axis("i1", Axis("i0", 4)))), "the size of axis i1 is i0"),
        (small(LOAD, STORE, z=Buffer("w", "i64", expr(4))), "buffer w is filed under z"),
        (small(LOAD, STORE, z=Buffer("z", "int", expr(4))), "int is not a dtype"),
        (small(LOAD, STORE, z=Buffer("z", "i64", expr(4), "heap")), "heap is not a kind of buffer"),
        (small(LOAD, STORE, z=Buffer("z", "i64", I0)), "the size of z varies"),
        (
            small(LOAD, STORE, z=Buffer("z", "i64", expr(Size("n", 2))), w=Buffer("w", "i64", expr(Size("n", 3)))),
            "size n is likely . and .; expected one likely value",
        ),
        (replace(small(LOAD, STORE), sizes=(SizeSource("n", 1, 0),)), "size n comes from input 1"),
        (replace(small(LOAD, STORE), sizes=(SizeSource("n", 0),)), "size n is dim None of x"),
    ],
)
def test_a_bad_program_that_has_no_text(program: Program, what: str) -> None:
    verify(small(LOAD, STORE))
    with pytest.raises(VerifyError, match=what):
        verify(program)


def test_a_call_to_nothing() -> None:
    program = parse_program(GOOD)
    call = replace(program.calls[0], target="abs")
    with pytest.raises(VerifyError, match="'abs' names no operator"):
        verify(replace(program, steps=(*program.kernels, call)))


def test_thousands_of_operators_take_no_time() -> None:
    count, width = 200, 20
    buffers = {f"t{n}": Buffer(f"t{n}", "f32", expr(512 * 768), "temp") for n in range(1, count + 1)}
    buffers["t0"] = Buffer("t0", "f32", expr(512 * 768), "input")
    kernels = []
    for n in range(count):
        i, j = Axis(f"i{n}", 512), Axis(f"j{n}", 768)
        index = 768 * expr(i) + expr(j)
        body: list[object] = [Load("v0", "f32", f"t{n}", index)]
        body += [Apply(f"v{k + 1}", "f32", "mul", (f"v{k}", "v0")) for k in range(width)]
        kernels.append(Kernel(f"k{n}", (i, j), (), (*body, Store(f"t{n + 1}", index, f"v{width}"))))  # type: ignore[arg-type]
    program = Program(buffers, ("t0",), (View(f"t{count}", "f32", (constant(4),), (constant(1),)),), tuple(kernels))
    profile = cProfile.Profile()
    profile.runcall(verify, program)
    calls = sum(entry.callcount for entry in profile.getstats())
    # 4,400 operators: each is looked at a few times, and none through the whole program.
    assert calls < 60 * count * width
