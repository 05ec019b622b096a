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
}
OF_INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "method": lambda x: x.as_strided((3,), (1,), 5) * 2,
    "operator": lambda x: torch.ops.aten.as_strided(x[1:], (3,), (1,), 5) * 2,
    "copy": lambda x: torch.as_strided_copy(x, (3,), (1,), 5) + 1,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", OF_INTERMEDIATES)
def test_of_an_intermediate(name: str, training: bool) -> None:
    torch._dynamo.reset()
    function = OF_INTERMEDIATES[name]
    compiled = torch.compile(function, backend="litz")
    for start in (0, 3):
        x, mine = (torch.arange(20.0)[start : start + 10].requires_grad_(training) for _ in range(2))
        want, found = function(x), compiled(mine)
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
