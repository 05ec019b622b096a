"""Index expressions: simplification keeps the meaning, bounds hold, and reshapes cancel out."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litz.loop.expr import ZERO, Axis, Expr, Size, Value, constant, expr, is_nonnegative
from litz.loop.formula import Formula

S, N = Size("s"), Size("n", least=3)
EMPTY, ANY = Size("empty", least=0), Size("any", least=None)  # it may be nothing, and any whole number
ATOMS = (Axis("i", 6), Axis("j", 768), Axis("k", 5), Axis("m", S), Value("v", 10), Value("w"), S, N, EMPTY, ANY)
Point = dict


@dataclass(frozen=True)
class Tree:
    """An expression built twice: as an `Expr`, and as plain Python arithmetic on a point."""

    simplified: Expr
    exact: Callable[[Point], int]
    text: str


def leaf(x: object) -> Tree:
    if isinstance(x, int):
        return Tree(constant(x), lambda point: x, str(x))
    return Tree(expr(x), lambda point: point[x], repr(x))  # type: ignore[arg-type]


def combine(op: str, a: Tree, b: Tree) -> Tree:
    def exact(point: Point) -> int:
        return calculate(op, a.exact(point), b.exact(point))

    return Tree(calculate(op, a.simplified, b.simplified), exact, f"({a.text} {op} {b.text})")


def calculate(op: str, a, b):
    return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b, "%": lambda: a % b}[op]()


LEAVES = st.sampled_from(ATOMS).map(leaf) | st.integers(-3, 9).map(leaf) | st.sampled_from((64, 768)).map(leaf)
# What is divided by is not zero: a number or a size.
DIVISORS = st.sampled_from((2, 3, 4, 6, 12, 64, 768, -1, -4, -12, S, N, ANY)).map(leaf)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(combine, st.sampled_from("++-*"), inner, inner)
        | st.builds(combine, st.sampled_from(("//", "%")), inner, DIVISORS)
    ),
    max_leaves=12,
)


@st.composite
def points(draw: st.DrawFn) -> Point:
    sizes = {S: draw(st.integers(1, 9)), N: draw(st.integers(3, 9)), EMPTY: draw(st.integers(0, 5))}
    point: Point = sizes | {ANY: draw(st.integers(-9, 9).filter(bool))}
    for atom in ATOMS:
        if isinstance(atom, Axis):
            point[atom] = draw(st.integers(0, sizes[S] - 1 if atom.name == "m" else atom.size.int - 1))
        elif isinstance(atom, Value):
            point[atom] = draw(st.integers(0, 9) if atom.limit is not None else st.integers(-50, 50))
    return point


@settings(max_examples=400, deadline=None)
@given(TREES, st.lists(points(), min_size=3, max_size=3))
def test_simplification_keeps_the_meaning_and_the_bounds(tree: Tree, some: list[Point]) -> None:
    low, high = tree.simplified.bounds()
    for point in some:
        expected = tree.exact(point)
        assert tree.simplified.evaluate(point.__getitem__) == expected, (tree.text, tree.simplified)
        assert low is None or low <= expected, (tree.text, tree.simplified)
        assert high is None or expected <= high, (tree.text, tree.simplified)


@settings(max_examples=200, deadline=None)
@given(TREES, TREES, points())
def test_substitution_keeps_the_meaning(tree: Tree, other: Tree, point: Point) -> None:
    w = Value("w")
    replaced = tree.simplified.substitute({w: other.simplified})
    assert replaced.evaluate(point.__getitem__) == tree.exact({**point, w: other.exact(point)})


@settings(max_examples=200, deadline=None)
@given(TREES)
def test_simplification_is_done_in_one_go(tree: Tree) -> None:
    again = tree.simplified.substitute({Axis("nowhere", 2): 0})
    assert again is tree.simplified


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_pickle_gives_the_interned_expression(tree: Tree) -> None:
    assert pickle.loads(pickle.dumps(tree.simplified)) is tree.simplified


def test_pickle_gives_the_interned_expression_in_another_process() -> None:
    code = (
        "import sys, pickle; from litz.loop.expr import Axis, Size, expr;"
        "e = expr(Axis('i', Size('s'))) * 3 + expr(Axis('j', 7)) // 2;"
        "print(pickle.dumps(e).hex()) if len(sys.argv) < 2 else print(pickle.loads(bytes.fromhex(sys.argv[1])) is e)"
    )

    def run(seed: str, *args: str) -> str:
        command = [sys.executable, "-c", code, *args]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert run("2", run("1")) == "True"


@settings(max_examples=200, deadline=None)
@given(TREES, points())
def test_printed_as_python_reads_it(tree: Tree, point: Point) -> None:
    names = {repr(atom): number for atom, number in point.items()}
    assert eval(repr(tree.simplified), {}, names) == tree.exact(point)


i, j, k, m = (expr(a) for a in ATOMS[:4])
big = expr(Axis("q", 512 * 768))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (768 * (j // 768) + j % 768, j),
        (768 * (big // 768) + big % 768, big),
        (2 * (768 * (big // 768) + big % 768) + 5, 2 * big + 5),
        ((768 * i + j) // 768, i),
        ((768 * i + j) % 768, j),
        ((768 * i + j) // 64 % 12, j // 64),
        ((768 * i + 64 * (j // 64) + j % 64) % 768, j),
        (big // 4 // 192, big // 768),
        (big % 768 % 64, big % 64),
        (big % 768 // 64, big // 64 % 12),
        ((6 * i + 4) // 2, 3 * i + 2),
        ((6 * i + 4) % 2, ZERO),
        ((4 * i + 3) % 2, constant(1)),
        ((10 * i + k) // 5, 2 * i),
        (i // 6, ZERO),
        (i - i, ZERO),
        (i * 0 + 7, constant(7)),
        # what a size divides, whatever it is
        ((expr(S) * i + m) // expr(S), i),
        ((expr(S) * i + m) % expr(S), m),
        (expr(S) * expr(N) // expr(N), expr(S)),
        (expr(S) * expr(N) % expr(S), ZERO),
        (m % expr(S), m),
        (m // expr(S), ZERO),
    ],
    ids=str,
)
def test_equal_indices_are_one_object(found: Expr, expected: Expr) -> None:
    assert found is expected


def test_bounds_of_symbolic_sizes_are_open_above() -> None:
    assert m.bounds() == (0, None)
    assert (expr(S) * 4 + 1).bounds() == (5, None)
    assert (m % 4).bounds() == (0, 3)
    assert expr(Value("w")).bounds() == (None, None)
    assert (j * -1).bounds() == (-767, 0)


def test_what_a_size_is_at_least_bounds_it() -> None:
    assert expr(EMPTY).bounds() == (0, None) and expr(ANY).bounds() == (None, None)
    assert (expr(N) - 3).bounds()[0] == 0 and is_nonnegative(expr(N) * S - 3) and not is_nonnegative(expr(N) - 4)
    assert (expr(Axis("a", EMPTY)) // expr(EMPTY)) is ZERO  # where it has a step, the size is no zero


def test_a_size_that_the_host_computes() -> None:
    half = Size("half", formula=Formula("trunc(s*0.5)"))
    assert (expr(half) + 1).at({"s": 7}) == 4
    assert half != Size("half", formula=Formula("s//2"))


def test_coefficient_of_an_axis() -> None:
    axis = ATOMS[0]
    assert isinstance(axis, Axis)
    assert (768 * i + j).coefficient(axis) == 768
    assert (i * expr(S) + j).coefficient(axis) is expr(S)
    assert j.coefficient(axis) == 0
    assert (i * i).coefficient(axis) is None
    assert ((i + j) // 7).coefficient(axis) is None
