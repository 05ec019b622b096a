"""Frozen weights of generated products are packed once, as the micro-kernel reads them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import litz
from litz.capture.direct import compile_directly
from litz.context import Context
from litz.loop.expr import Axis, expr
from litz.loop.panels import panels
from litz.ops.held import InPanels
from litz.options import Options
from litz.pipeline import compile_to_data
from litz.runtime.in_panels import in_panels
from litz.target import detect
from tests.freeze.freezing import frozen, judge, lively

LINEAR: dict[str, tuple[int, int, int]] = {  # rows, depth, columns
    "whole vectors": (64, 64, 64),
    "a depth that is no whole number of vectors": (40, 37, 64),
    "columns that fill no panel": (40, 64, 50),
    "fewer columns than a panel": (64, 128, 20),
    "neither": (33, 41, 71),
    "several blocks of columns": (30, 600, 1100),
}
CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "three by three": lambda: nn.Conv2d(32, 48, 3, padding=1),
    "of points": lambda: nn.Conv2d(32, 48, 1),
    "with strides": lambda: nn.Conv2d(32, 40, 3, stride=2, padding=1),
    "of three channels": lambda: nn.Conv2d(3, 32, 7, stride=2, padding=3),
    "of patches": lambda: nn.Conv2d(3, 64, 16, stride=16),
    "dilated": lambda: nn.Conv2d(32, 32, 3, dilation=2),
}


def constants_of(model: nn.Module, x: torch.Tensor, freeze: bool | str = True) -> list[Any]:
    """Of the program that the model is compiled to."""
    state = dict(model.named_parameters())
    names = tuple(state)

    def function(*given: torch.Tensor) -> Any:
        return (torch.func.functional_call(model, dict(zip(names, given[1:], strict=True)), (given[0],)),)

    options = Options(freeze=freeze, matmul="generate", verify=True)
    ctx = Context(options, detect(), state=dict(enumerate(names, 1)))
    with torch.no_grad():
        compiled, _ = compile_to_data(function, [x, *state.values()], None, ctx)
    return list(compiled.forward.constants)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer(name: str, bias: bool) -> None:
    rows, depth, columns = LINEAR[name]
    model, x = lively(nn.Sequential(nn.Linear(depth, columns, bias=bias), nn.ReLU())), torch.randn(rows, depth)
    run = frozen(model, matmul="generate", verify=True)
    with torch.no_grad():
        judge(model, run(x), x, ulps=32)
    if detect().vector_bytes >= 32:
        assert sum(isinstance(c, InPanels) for c in constants_of(model, x)) == 1


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution(name: str) -> None:
    convolution = CONVOLUTIONS[name]()
    model = lively(nn.Sequential(convolution, nn.ReLU()))
    x = torch.randn(2, convolution.in_channels, 32, 32).to(memory_format=torch.channels_last)
    run = frozen(model, matmul="generate", verify=True)
    with torch.no_grad():
        judge(model, run(x), x, ulps=64)
    if detect().vector_bytes >= 64:
        assert sum(isinstance(c, InPanels) for c in constants_of(model, x)) == 1


def test_what_is_packed_is_not_kept_as_it_was() -> None:
    model = nn.Linear(64, 64)
    if detect().vector_bytes >= 32:
        held = constants_of(model, torch.randn(64, 64))
        assert len(held) == 2 and sum(isinstance(c, InPanels) for c in held) == 1


def test_discard_leaves_one_copy_of_the_weights() -> None:
    model, x = lively(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))), torch.randn(64, 64)
    storages = [StorageWeakRef(model[at].weight.untyped_storage()) for at in (0, 2)]
    with torch.no_grad():
        expected = model(x)
        run = frozen(model, "discard", matmul="generate")
        torch.testing.assert_close(run(x), expected, rtol=1e-4, atol=1e-4)
        gc.collect()
        packs = detect().vector_bytes >= 32
        assert [storage.expired() for storage in storages] == [packs, packs]
        torch.testing.assert_close(run(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("how", "count"), [(True, 1), ("discard", 0)])
def test_discard_keeps_a_table_that_is_looked_up_too_as_it_lies(how: bool | str, count: int) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(96, 64)

        def forward(self, places: torch.Tensor) -> torch.Tensor:
            return self.table(places).relu() @ self.table.weight.t()

    model, places = lively(Tied()), torch.arange(64)
    with torch.no_grad():
        expected = model(places)
        torch.testing.assert_close(frozen(model, how, matmul="generate")(places), expected, rtol=1e-4, atol=1e-4)
    found = constants_of(lively(Tied()), places, freeze=how)
    assert sum(isinstance(constant, InPanels) for constant in found) == (count if detect().vector_bytes >= 32 else 0)


def test_few_rows_are_fed_from_memory() -> None:
    model, x = lively(nn.Conv2d(64, 96, 1)), torch.randn(1, 64, 2, 2).to(memory_format=torch.channels_last)
    run = frozen(model)
    with torch.no_grad():
        judge(model, run(x), x, ulps=32)
    assert not any(isinstance(c, InPanels) for c in constants_of(model, x))


def test_a_file_has_them_packed(tmp_path: Path) -> None:
    model, x = lively(nn.Sequential(nn.Linear(64, 64), nn.ReLU())), torch.randn(64, 64)
    options = {"freeze": True, "matmul": "generate", "cpu_levels": ["sse2", "avx2"]}
    loaded = litz.load(litz.aot_compile(model, (x,), path=tmp_path / "model.litz", options=options))
    with torch.no_grad():
        judge(model, loaded(x), x, ulps=32)


def test_rows_that_vary() -> None:
    model = lively(nn.Sequential(nn.Linear(48, 80), nn.GELU(), nn.Linear(80, 33)))
    run = frozen(model, dynamic=True, matmul="generate")
    with torch.no_grad():
        for rows in (3, 50, 14):
            x = torch.randn(rows, 48)
            judge(model, run(x), x, ulps=32)


def test_packed_again_when_it_is_written_to() -> None:
    model, x = lively(nn.Linear(64, 64)), torch.randn(64, 64)
    run = compile_directly(model, freeze=True, matmul="generate")
    with torch.no_grad():
        judge(model, run(x), x, ulps=32)
        model.weight.mul_(2)
        with pytest.warns(UserWarning, match="weight was written to"):
            judge(model, run(x), x, ulps=32)


@pytest.mark.parametrize("inner", [16, 21])
@pytest.mark.parametrize("columns", [5, 32, 70])
def test_every_element_lies_where_the_formula_says(inner: int, columns: int) -> None:
    found = panels(3, inner, columns, 16)
    matrix = torch.randn(3, inner, columns)
    memory = in_panels(matrix, InPanels(0, tuple(matrix.shape), matrix.stride(), 0, found)).numpy()
    axes = [Axis("l", 3), Axis("k", inner), Axis("n", columns)]
    place = found.at(*map(expr, axes))
    seen = np.zeros(len(memory), bool)
    for at in np.ndindex(3, inner, columns):
        where = place.evaluate(dict(zip(axes, at, strict=True)).__getitem__)
        seen[where] = True
        assert memory[where] == matrix[at]
    assert not memory[~seen].any()
