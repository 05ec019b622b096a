"""Operands whose sizes fakes do not compare: broadcast as in eager or refused as in eager, never read past the end."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

aten = torch.ops.aten

# The gradient of a view is copied into the part that was looked at, and so broadcasts to it.
CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "slice, rows": (lambda g: aten.slice_backward(g, [4, 6], 1, 1, 5, 2), (1, 2)),
    "slice, along": (lambda g: aten.slice_backward(g, [4, 6], 1, 1, 5, 2), (4, 1)),
    "slice of one": (lambda g: aten.slice_backward(g, [4, 6], 1, 2, 3, 1), (4, 1)),
    "slice, too short": (lambda g: aten.slice_backward(g, [4, 6], 1, 1, 6, 1), (4, 3)),
    "select": (lambda g: aten.select_backward(g, [4, 6], 1, 2), (1,)),
    "select, a number": (lambda g: aten.select_backward(g, [4, 6], 1, 2), ()),
    "select, too short": (lambda g: aten.select_backward(g, [4, 6], 1, 2), (3,)),
    "diagonal, batch": (lambda g: aten.diagonal_backward(g, [3, 4, 4], 0, 1, 2), (1, 4)),
    "diagonal, along": (lambda g: aten.diagonal_backward(g, [3, 4, 5], 1, 1, 2), (3, 1)),
    "diagonal, too short": (lambda g: aten.diagonal_backward(g, [3, 4, 4], 1, 1, 2), (3, 2)),
    "windows": (lambda g: aten.unfold_backward(g, [2, 80], 1, 16, 4), (1, 17, 16)),
    "windows, as of an inverse transform": (
        lambda x: torch.istft(torch.complex(x, x), 16, 4, window=torch.hann_window(16)), (2, 9, 17),
    ),
    "scatter of a slice": (lambda x: aten.slice_scatter(x, x[:2], 0, 1, 3), (3, 4)),
    "scatter of a slice, too narrow": (lambda x: aten.slice_scatter(x, x[:2, :1], 0, 1, 3), (3, 4)),
    "scatter of a row, too short": (lambda x: aten.select_scatter(x, x[0, :3], 0, 1), (3, 4)),
}  # fmt: skip


# How long a slice or a diagonal of symbolic sizes is, is not known.
KNOWN_SIZES = {
    "scatter of a slice, too short": (lambda x: aten.slice_scatter(x, x[:1], 0, 1, 3), (3, 4)),
    "scatter of a diagonal, too short": (lambda x: aten.diagonal_scatter(x, x[0, :1]), (3, 4)),
}


@pytest.mark.parametrize(
    ("name", "dynamic"), [*itertools.product(CASES, (False, True)), *((name, False) for name in KNOWN_SIZES)]
)
def test_sizes_that_only_eager_compares(name: str, dynamic: bool) -> None:
    function, shape = (CASES | KNOWN_SIZES)[name]
    given = torch.randn(shape)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz", dynamic=dynamic)
    try:
        want = function(given)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            compiled(given)
        return
    torch.testing.assert_close(compiled(given), want)
