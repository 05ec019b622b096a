"""Gradients of minus zero: eager adds to zeros where elements are read more than once or not at all, else it copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

LINE, IMAGE, CUBE = (2, 3, 8), (2, 3, 6, 6), (1, 2, 4, 4, 4)
ROWS = (5, 7)
CASES: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "avg_pool1d": (LINE, lambda x: F.avg_pool1d(x, 3, 1, 1)),
    "avg_pool2d": (IMAGE, lambda x: F.avg_pool2d(x, 2, 1, 1)),
    "avg_pool2d apart": (IMAGE, lambda x: F.avg_pool2d(x, 3)),
    "avg_pool3d": (CUBE, lambda x: F.avg_pool3d(x, 2, 1)),
    "adaptive_avg_pool2d": (IMAGE, lambda x: F.adaptive_avg_pool2d(x, 4)),
    "max_pool1d": (LINE, lambda x: F.max_pool1d(x, 3, 1, 1)),
    "max_pool2d": (IMAGE, lambda x: F.max_pool2d(x, 3, 1, 1)),
    "max_pool3d": (CUBE, lambda x: F.max_pool3d(x, 2, 1)),
    "adaptive_max_pool2d": (IMAGE, lambda x: F.adaptive_max_pool2d(x, 4)),
    "nearest": (IMAGE, lambda x: F.interpolate(x, scale_factor=2)),
    "bilinear": (IMAGE, lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "bicubic": (IMAGE, lambda x: F.interpolate(x, size=(7, 9), mode="bicubic")),
    "reflect": (IMAGE, lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect")),
    "replicate": (IMAGE, lambda x: F.pad(x, (2, 1, 1, 2), mode="replicate")),
    "constant": (IMAGE, lambda x: F.pad(x, (2, 1, 1, 2))),
    "im2col": (IMAGE, lambda x: F.unfold(x, 2)),
    "windows": (ROWS, lambda x: x.unfold(1, 3, 1)),
    "windows apart": (ROWS, lambda x: x.unfold(1, 2, 2)),
    "index once": (ROWS, lambda x: x[torch.tensor([2, 0, 4])]),
    "index twice": (ROWS, lambda x: x[torch.tensor([1, 1, 2])]),
    "index_select": (ROWS, lambda x: x.index_select(0, torch.tensor([2, 0, 4]))),
    "gather": (ROWS, lambda x: x.gather(1, torch.tensor([[0, 1], [1, 1], [2, 3], [4, 5], [6, 6]]))),
    "embedding": (ROWS, lambda x: F.embedding(torch.tensor([2, 0, 4]), x)),
    "slice": (ROWS, lambda x: x[1:3, ::2]),
    "diagonal": (ROWS, lambda x: x.diagonal()),
    "expand": (ROWS, lambda x: x[:1].expand(5, 7)),
    "repeat": (ROWS, lambda x: x.repeat(2, 3)),
    "cumsum": (ROWS, lambda x: x.cumsum(1)),
    "max": (ROWS, lambda x: x.max(1)[0]),
    "scatter_add": (ROWS, lambda x: x.scatter_add(1, torch.tensor([[0], [1]]), torch.ones(2, 1))),
}


@pytest.mark.parametrize("name", CASES)
def test_signs_of_zeros_are_those_of_eager(name: str) -> None:
    torch._dynamo.reset()
    shape, function = CASES[name]
    found = []
    for run in (torch.compile(function, backend="litz"), function):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
        result = run(x)
        found.append(torch.autograd.grad(result, x, torch.full_like(result, -0.0))[0])
    assert torch.equal(*found)
    assert torch.equal(*map(torch.signbit, found))
