"""Places counted from `arange`: read directly, with no index at run time and no check where none can fail."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import litz
from litz.loop.expr import Axis, Expr, Size, constant, expr, is_below, is_nonnegative

A = torch.arange
Function = Callable[[torch.Tensor], torch.Tensor]

DIRECT: dict[str, Function] = {
    "all rows": lambda x: x[A(x.shape[0])],
    "rows and columns": lambda x: x[A(x.shape[0])[:, None], A(x.shape[1])],
    "from the last": lambda x: x[A(x.shape[0] - 1, -1, -1)],
    "flipped": lambda x: x[A(x.shape[0]).flip(0)],
    "counted from the end": lambda x: x[-A(1, x.shape[0] + 1)],
    "from both ends": lambda x: x[A(x.shape[0]) - 2],
    "each twice": lambda x: x[A(2 * x.shape[0]) // 2],
    "half of them": lambda x: x[A(x.shape[0]) // 2],
    "divided, cut": lambda x: x[torch.div(A(x.shape[0]), 2, rounding_mode="trunc")],
    "round and round": lambda x: x[:, A(3 * x.shape[1]) % x.shape[1]],
    "line by line": lambda x: x[A(x.numel()) // x.shape[1], A(x.numel()) % x.shape[1]],
    "arithmetic": lambda x: x[((A(x.shape[0]) * 3 + 5) // 7 * 2 + 1) % x.shape[0]],
    "one place": lambda x: x[torch.zeros(3, dtype=torch.long)],
    "gather": lambda x: x.gather(1, A(x.shape[1]).flip(0).expand(x.shape)),
    "take_along_dim": lambda x: torch.take_along_dim(x, (A(x.shape[0]) // 2)[:, None].expand(x.shape), 0),
    "index_select": lambda x: x.index_select(1, x.shape[1] - 1 - A(x.shape[1])),
    "take": lambda x: x.take(A(x.numel()).flip(0)),
    "embedding": lambda x: F.embedding(A(x.shape[0])[None], x),
    "index_put": lambda x: torch.zeros_like(x).index_put((A(x.shape[0]).flip(0),), x),
    "index_add": lambda x: x.index_add(0, A(x.shape[0]) // 2, x),
    "scatter": lambda x: torch.zeros_like(x).scatter(0, A(x.shape[0]).flip(0)[:, None].expand(x.shape), x),
    "also returned": lambda x: (lambda i: (x[i], i))(A(x.shape[0]).flip(0)),
}
CHECKED: dict[str, Function] = {
    "one too far": lambda x: x[A(x.shape[0]) + 1],
    "one too far back": lambda x: x[-A(x.shape[0] + 2)],
    "gather has no negative places": lambda x: x.gather(0, -A(x.shape[0])[:, None].expand(x.shape)),
    "index_select has none": lambda x: x.index_select(0, A(x.shape[0]) - 1),
    "divided by nothing": lambda x: x[A(x.shape[0]) // torch.zeros((), dtype=torch.long)],
    "one of two": lambda x: x.expand(4, *x.shape)[A(4), A(4) + x.shape[0]],
}


def compiled(function: Function, dynamic: bool) -> Function:
    torch._dynamo.reset()
    return torch.compile(function, backend="litz", dynamic=dynamic, options={"snapshots": True})


def program() -> str:
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
    return report.snapshot("merge_axes")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", DIRECT)
def test_a_place_in_range_is_read_directly(name: str, dynamic: bool) -> None:
    function = compiled(DIRECT[name], dynamic)
    for shape in ((12, 9), (20, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(function(x), DIRECT[name](x), rtol=0, atol=1e-6)
        text = program()
        assert " check " not in text
        assert not re.search(r"(load|store|update) \w+\[[^]]*\bv\d", text), text
        if name != "take_along_dim":  # which asks for its sizes while it is traced
            assert ("s27" in text or "s77" in text) is dynamic


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CHECKED)
def test_a_place_out_of_range_raises_as_eager_does(name: str, dynamic: bool) -> None:
    function = compiled(CHECKED[name], dynamic)
    for shape in ((12, 9), (20, 7)):
        x = torch.randn(shape)
        with pytest.raises((IndexError, RuntimeError)) as theirs:
            CHECKED[name](x)
        with pytest.raises(type(theirs.value), match=re.escape(str(theirs.value).splitlines()[0])):
            function(x)


def test_what_no_size_proves_is_checked() -> None:
    function = compiled(lambda x: x[:, A(5) % 3], True)
    x = torch.randn(4, 6)
    torch.testing.assert_close(function(x), x[:, A(5) % 3])
    assert " check " in program()
    with pytest.raises(IndexError):
        function(torch.randn(4, 2))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_narrow_numbers_wrap_around_first(dtype: torch.dtype) -> None:
    big = torch.iinfo(dtype).max

    def function(x: torch.Tensor) -> torch.Tensor:
        return x[(((A(6, dtype=dtype) * 3 + big) * 5) % 7).long()]

    x = torch.randn(7, 3)
    torch.testing.assert_close(compiled(function, False)(x), function(x))


def test_large_numbers_wrap_around() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[(A(6) * (1 << 62) * 3 + (1 << 62)) % 7], x[(A(x.shape[1]) * ((1 << 62) + 1) * 4) % 7]

    x = torch.randn(7, 6)
    for dynamic in (False, True):
        torch.testing.assert_close(compiled(function, dynamic)(x), function(x))


def test_products_of_many_sizes_wrap_around() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[(A(x.shape[0]) * x.shape[0] ** 18) % 7]

    mine = compiled(function, True)
    for size in (8, 11, 9):
        torch.testing.assert_close(mine(torch.arange(size)), function(torch.arange(size)))


@pytest.mark.parametrize("seed", range(12))
def test_any_arithmetic(seed: int) -> None:
    draw = random.Random(seed)

    def term(depth: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        if depth == 0:
            return draw.choice([lambda i, j: i, lambda i, j: j])
        inner, other, k = term(depth - 1), term(depth - 1), draw.randint(1, 6)
        return draw.choice([
            lambda i, j: inner(i, j) + k, lambda i, j: k - inner(i, j), lambda i, j: inner(i, j) * k,
            lambda i, j: inner(i, j) // k, lambda i, j: inner(i, j) % (k + 1), lambda i, j: inner(i, j) + other(i, j),
            lambda i, j: -inner(i, j), lambda i, j: inner(i, j) - other(i, j), lambda i, j: inner(i, j).flip(0),
        ])  # fmt: skip

    place = term(5)

    def function(x: torch.Tensor) -> torch.Tensor:
        found = place(A(x.shape[0])[:, None], A(x.shape[1]) - 3)
        return x.flatten()[found.broadcast_to(x.shape) % x.numel()]

    for dynamic in (False, True):
        mine = compiled(function, dynamic)
        for shape in ((5, 8), (11, 6)):
            x = torch.randn(shape)
            torch.testing.assert_close(mine(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_proved_holds(seed: int) -> None:
    draw = random.Random(seed)
    n, m = Size("n", least=draw.choice([0, 1, 2])), Size("m")
    i, j = Axis("i", expr(n)), Axis("j", expr(m) * 2)

    def term(depth: int) -> Expr:
        if depth == 0:
            return expr(draw.choice([i, j, n, m, draw.randint(-3, 5)]))
        a, b = term(depth - 1), term(depth - 1)
        whole = draw.choice([constant(draw.randint(1, 4)), expr(m)])
        return draw.choice([lambda: a + b, lambda: a - b, lambda: a * b, lambda: a // whole, lambda: a % whole])()

    for _ in range(30):
        e, limit = term(3), term(1)
        never_negative, below = is_nonnegative(e), is_below(e, limit)
        for sizes in ((n.least, 1), (n.least + 1, 2), (4, 3)):
            for at in [(p, q) for p in range(sizes[0]) for q in range(2 * sizes[1])]:
                known = {i: at[0], j: at[1], n: sizes[0], m: sizes[1]}
                value = e.evaluate(known.__getitem__)
                assert not never_negative or value >= 0, e
                assert not below or value < limit.evaluate(known.__getitem__), (e, limit)
