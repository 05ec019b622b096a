"""Quotients and remainders of positions: whichever way they are computed, they are exact."""

from __future__ import annotations

import pytest
import torch

import litz
from litz.codegen.llvm import divide
from litz.loop.expr import Axis, Size, expr

A = torch.arange
FAR = 1 << 45


def positions(x: torch.Tensor) -> list[torch.Tensor]:
    n, m = x.shape
    return [
        A(5 * m) % m, A(5 * m) // m, (A(5 * m) + FAR) % m, (A(5 * m) + FAR) // m, (3 * A(4 * m) + 1) % m,
        (A(n * m) * 7) // m, (A(m) - 2) % m, (A(m) + 1) % m, (2 * A(m)) % m, (A(m) - 5 * m) % m, (A(m) - 3 * m) // m,
        (A(n)[:, None] - A(m)) % m, (FAR - A(m)) // m, (A(m) * A(n)[:, None]) // m, (A(40) - 20) % 7, (A(40) - 20) // 7,
    ]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_every_way_is_exact(dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(positions, backend="litz", dynamic=dynamic)
    for shape in ((2, 3), (3, 17), (5, 128), (4, 1009), (7, 65537)):
        x = torch.empty(shape)
        for number, (mine, eager) in enumerate(zip(compiled(x), positions(x), strict=True)):
            assert torch.equal(mine, eager), (number, shape)
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None


def test_a_remainder_that_is_one_turn_away_is_a_choice() -> None:
    n = Size("n", least=2)
    i = expr(Axis("i", expr(n)))
    assert divide._turn(i - 2, expr(n)) == "add"
    assert divide._turn(i + 1, expr(n)) == "sub"
    assert divide._turn(i - 3, expr(n)) is None
    assert divide._turn(2 * i + 1, expr(n)) == "sub"
    assert divide._turn(2 * i + 2, expr(n)) is None


def test_doubles_divide_only_what_loops_count() -> None:
    n = Size("n")
    i, j = (expr(Axis(name, expr(n))) for name in "ij")
    assert divide._is_counted(3 * i + j + FAR)
    assert not divide._is_counted(i * j)
    assert not divide._is_counted(expr(n))
    assert not divide._is_counted(1000 * i)
