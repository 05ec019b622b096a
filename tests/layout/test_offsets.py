"""Offsets in a storage: of an input's, eager answers; of an intermediate's, the compiled program."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import litz

OF_INTERMEDIATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "method": lambda x: (x + 1).as_strided((3,), (1,), 5) * 2,
    "of a slice": lambda x: (x + 1)[2:].as_strided((3,), (2,), 0) * 2,
    "operator": lambda x: torch.ops.aten.as_strided((x + 1)[4:], (3,), (1,), 1) * 2,
    "copy": lambda x: torch.as_strided_copy((x * 2)[1:], (2, 2), (3, 1), 2) + 1,
    "scatter": lambda x: torch.as_strided_scatter((x * 2)[1:], torch.zeros(3), (3,), (1,), 3) + 1,
    # Rewrites find that these are tensors that are there already, which begin elsewhere in memory.
    "product with one": lambda x: (x * True).as_strided((3,), (1,), 5) * 2,
    "view of a product with one": lambda x: (x * 1).view(2, 5)[1:].as_strided((3,), (1,), 0) * 2,
    "turned copy": lambda x: x.view(2, 5).clone().t()[1:].as_strided((3,), (1,), 0) * 2,
    "copied copy": lambda x: torch.as_strided_copy(x.clone(), (2, 2), (3, 1), 2) + 1,
    "scattered copy": lambda x: torch.as_strided_scatter(x * 1, torch.zeros(3), (3,), (1,), 3) + 1,
    "chosen": lambda x: torch.where(torch.ones(10, dtype=torch.bool), x, x + 1).as_strided((3,), (1,), 0) * 2,
    "part of what is joined": lambda x: torch.cat([x, x + 1])[10:].as_strided((3,), (1,), 8) * 2,
    "one of two parts": lambda x: torch.cat([x, x + 1]).split(10)[1].as_strided((3,), (1,), 8) * 2,
    # Parts of constants, and what lies beside them.
    "part alike": lambda x: x[:4] * torch.cat([torch.zeros(2), torch.ones(4)])[2:].as_strided((4,), (1,), 0),
    "part of a constant": lambda x: x[:4] * torch.tensor([1.0, 2, 3, 4, 5, 6])[2:].as_strided((4,), (1,), 0),
    # Eight bytes are read where they may begin at a number of four.
    "other type": lambda x: x[1:9] + (x[1:9].detach() * 1).view(torch.float64).view(torch.float32),
}
OF_INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "method": lambda x: x.as_strided((3,), (1,), 5) * 2,
    "operator": lambda x: torch.ops.aten.as_strided(x[1:], (3,), (1,), 5) * 2,
    "copy": lambda x: torch.as_strided_copy(x, (3,), (1,), 5) + 1,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("starts", [(0, 3), (3, 0)])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", OF_INTERMEDIATES)
def test_of_an_intermediate(name: str, training: bool, starts: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    function = OF_INTERMEDIATES[name]
    compiled = torch.compile(function, backend="litz")
    for start in starts:
        x, mine = (torch.arange(20.0)[start : start + 10].requires_grad_(training) for _ in range(2))
        want, found = function(x), compiled(mine)
        report = litz.last_report()
        assert report is not None and report.left_to_eager is None
        assert torch.equal(found, want)
        if training:
            (theirs,), (own,) = torch.autograd.grad(want.sum(), x), torch.autograd.grad(found.sum(), mine)
            assert torch.equal(own, theirs)


@pytest.mark.parametrize("name", OF_INPUTS)
def test_of_an_input(name: str) -> None:
    torch._dynamo.reset()
    function = OF_INPUTS[name]
    compiled = torch.compile(function, backend="litz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start in (2, 3):
            x = torch.arange(20.0)[start : start + 10]
            assert torch.equal(compiled(x), function(x))
    report = litz.last_report()
    assert report is not None and report.left_to_eager is not None
