"""Random torch-level programs: `numbered` gives one of a seed, `programs()` draws them for Hypothesis.

In: a source of numbers and a kind of program. Out: a `FuzzProgram` that eager runs. Kinds: `plain`; `symbolic`, one
program for several sizes and Python numbers, in inference or training, some of which raise; `transforms`, where the
statements are a function that `torch.func` transforms.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from hypothesis import strategies as st

from tests.fuzz import draw_arithmetic as arithmetic
from tests.fuzz import draw_indexing, draw_layouts, draw_numbers, draw_views, draw_writes
from tests.fuzz.build import FLOATS, WHOLE, Build
from tests.fuzz.eager import Eager, Refused
from tests.fuzz.numbers import FLAVOURS
from tests.fuzz.program import FuzzProgram
from tests.fuzz.run_program import runs
from tests.fuzz.transform import transformed

KINDS = ("plain", "symbolic", "transforms")
MOST = 30  # statements
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 16, 17, 33, 64)
SYMBOLIC_SIZES = (2, 3, 3, 4, 5, 5, 6, 7, 8, 9, 13, 16, 17, 33)
CASES = 3

FAMILIES: tuple[Callable[[Build], None], ...] = (
    *(arithmetic.unary,) * 3,
    *(arithmetic.binary,) * 3,
    *(arithmetic.scalar_only, arithmetic.compare, arithmetic.where, arithmetic.cast),
    *(arithmetic.reduce, arithmetic.reduce, arithmetic.best, arithmetic.row_operator, arithmetic.product),
    *(draw_views.join, draw_views.split, draw_views.view, draw_views.view, draw_views.view, draw_views.copy),
    *(draw_views.create, draw_indexing.read, draw_indexing.add, draw_indexing.masked),
    *(draw_writes.pointwise, draw_writes.pointwise, draw_writes.copy, draw_writes.fill, draw_writes.indexed),
    *(draw_numbers.special, draw_layouts.see),
)
IMAGES = (*(draw_layouts.convolve,) * 4, *(draw_layouts.follow,) * 4, *(draw_layouts.see,) * 4)
CHANGING = (draw_numbers.changing,) * 4


# -- inputs -----------------------------------------------------------------------------------
def _input(b: Build, plain: bool = False) -> None:
    if b.inputs and b.maybe(12) and not plain:  # memory shared with another input, or the same tensor twice
        other = b.one(b.state.names)
        b.add_input(other if b.maybe(3) or not b[other].dim() else f"{other}[{b.number(0, 1)}:]", other)
        return
    rank = b.one((0, 1, 1, 2, 2, 2, 3, 3, 4))
    shape = [_size(b, rank) for _ in range(rank)]
    dtype = b.one(("float32", "float32", "float32", "bfloat16", *FLOATS, "int64", *WHOLE, "bool"))
    flavour = b.one(("normal",) * 6 + ("ties",) * 3 + FLAVOURS)
    layout = b.one(("plain",) * 4 + ("transposed", "sliced", "expanded", "channels last", "offset"))
    code = ""
    if layout == "transposed" and rank > 1:
        code = f".transpose({(one := b.number(0, rank - 2))}, {b.number(one + 1, rank - 1)})"
    elif layout == "sliced" and rank:
        step, start = b.number(2, 3), b.number(0, 1)
        shape[-1] = f"{shape[-1]} * {step} + {start}"
        code = f"[..., {start}::{step}]"
    elif layout == "expanded" and rank and "0" not in shape:
        place = b.number(0, rank - 1)
        wide = tuple(shape)
        shape[place] = "1"
        code = f".expand({', '.join(wide)})"
    elif layout == "channels last" and rank == 4:
        code = ".to(memory_format=torch.channels_last)"
    elif layout == "offset" and rank:
        shape[0] = f"{shape[0]} + 1"
        code = "[1:]"
    _add(b, dtype, shape, flavour, code)


def _add(b: Build, dtype: str, shape: list[str], flavour: str = "normal", code: str = "") -> None:
    more = "" if flavour == "normal" else f", {flavour!r}"
    b.add_input(f"numbers({dtype!r}, ({''.join(f'{n}, ' for n in shape)}), {b.number(0, 99)}{more}){code}")


def _size(b: Build, rank: int) -> str:
    if b.maybe(5):
        return "1"
    symbols = [name for name in b.parameters if name.startswith("n")]
    if symbols and not b.maybe(4):
        return b.one(symbols)
    return str(min(b.one(b.sizes), 64 if rank < 3 else 8))


def _image(b: Build) -> None:
    batch = _size(b, 4)
    channels = str(b.one((3, 4, 8, 16)))
    symbols = [name for name in b.parameters if name.startswith("n")]
    rows, columns = (b.one(symbols or [str(n) for n in (4, 5, 7, 8)]) for _ in range(2))
    _add(b, "float32", [batch if len(symbols) < 2 else "2", channels, rows, columns])


# -- whole programs ---------------------------------------------------------------------------
def draw(number: Callable[[int, int], int], most: int = MOST, kind: str = "plain") -> FuzzProgram:
    """A program for a source of numbers between two others."""
    while True:
        with suppress(Refused):
            return {"plain": _plain, "symbolic": _symbolic, "transforms": _transforms}[kind](number, most)


def _plain(number: Callable[[int, int], int], most: int) -> FuzzProgram:
    b = Build(number)
    b.sizes = tuple(b.one(SIZES) for _ in range(b.number(2, 4)))
    return _finished(b, most)


def _symbolic(number: Callable[[int, int], int], most: int) -> FuzzProgram:
    b = Build(number)
    b.sizes = (1, 2, 3, 4)
    sizes = [f"n{i}" for i in range(b.number(1, 3))]
    b.numbers = tuple(name for name in ("k", "q") if b.maybe())
    wrong_index = b.maybe(8)
    b.parameters = (*sizes, *b.numbers, *(("at",) if wrong_index else ()))
    training = b.maybe(3)
    b.cases = tuple(_case(b, number == CASES - 1) for number in range(CASES))
    b.states = [Eager(dict(zip(b.parameters, case, strict=True)), training=training) for case in b.cases]
    if training:
        _add(b, b.one(("float32", "float32", "bfloat16", "float64")), [_size(b, 3) for _ in range(b.number(1, 3))])
    program = _finished(b, most // 2)
    if training and not runs(program):
        raise Refused("autograd does not take it")
    return _with_something_around(b, program) if training and b.maybe() else program


def _with_something_around(b: Build, program: FuzzProgram) -> FuzzProgram:
    made = replace(program, around=b.one(("hooks", "written", "batched")))
    return made if runs(made) else program


def _case(b: Build, last: bool) -> tuple[object, ...]:
    values: list[object] = []
    for name in b.parameters:
        if name == "k":
            values.append(b.one((2, 2, 3, 4, 5, 6, 1, 0, -1)))
        elif name == "q":
            values.append(b.one((0.5, 2.0, -1.25, 0.1, 3.3, 1.0, 0.0, -0.0)))
        elif name == "at":
            values.append(99 if last else 0)
        else:
            values.append(b.one(SYMBOLIC_SIZES) if not b.maybe(20) else 1)
    return tuple(values)


def _finished(b: Build, most: int) -> FuzzProgram:
    families = FAMILIES + (CHANGING if b.numbers else ())
    if b.maybe(4):
        families += IMAGES
        _image(b)
    for _ in range(b.number(0 if b.inputs else 1, 3 if b.inputs else 4)):
        _input(b)
    wanted = b.number(1, most)
    index = b.add_input("torch.tensor([at, 0])") if "at" in b.parameters else None
    for _ in range(3 * wanted):
        if len(b.lines) >= wanted:
            break
        with suppress(Refused):
            b.one(families)(b)
    if index is not None:
        _raise(b, index)
    return b.finish()


def _raise(b: Build, index: str) -> None:
    """A read behind the end, which only shows when the program runs, after writes and before others."""
    with suppress(Refused):
        draw_writes.pointwise(b)
    x = b.pick(lambda t: t.dim() > 0 and t.shape[0] > 0)
    code = b.one((f"{x}[{index}]", f"{x}.index_select(0, {index})", f"{x}.flatten().gather(0, {index})"))
    read = b.define(code, x, index, raises=True)
    b.define(f"{read} + 0", read, raises=True)  # used, even if the next write is to it
    with suppress(Refused):
        draw_writes.pointwise(b)


def _transforms(number: Callable[[int, int], int], most: int) -> FuzzProgram:
    b = Build(number)
    b.sizes = (1, 2, 3, 3, 4, 5, 7)
    b.states = [Eager(training=True)]
    _add(b, b.one(("float32", "float32", "float64")), [_size(b, 3) for _ in range(b.number(0, 3))])
    return transformed(b, _finished(b, most // 2))


@st.composite
def programs(draw_value: st.DrawFn, most: int = MOST, kind: str = "plain") -> FuzzProgram:
    return draw(lambda low, high: draw_value(st.integers(low, high)), most, kind)


def numbered(seed: int, place: int, kind: str = "plain") -> FuzzProgram:
    """One of the programs of a seed. Hypothesis would try many alike, which pays for shrinking and not for breadth."""
    mark = "" if kind == "plain" else f"/{kind}"
    return draw(random.Random(f"{seed}/{place}{mark}").randint, kind=kind)


__all__ = ["KINDS", "draw", "numbered", "programs"]
