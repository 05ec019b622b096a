"""Graphs as text read back as the same graph, and inputs as text are like those they were made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from litz.debug.given import Given, describe
from litz.debug.graph_text import Unwritable, graph_module, read_graph, write_graph
from litz.debug.reduce import inputs_of
from litz.debug.reproduction import Reproduction
from litz.errors import ParseError
from tests.debug.test_ts_compile import PROGRAMS, captured


def same_graph(a: fx.Graph, b: fx.Graph) -> None:
    def calls(graph: fx.Graph) -> list[tuple[Any, ...]]:
        return [(n.op, n.name, n.target if n.op.startswith("call") else None) for n in graph.nodes]

    assert calls(a) == calls(b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_written_reads_back(name: str) -> None:
    function, inputs = PROGRAMS[name]
    graph, given = captured(function, *inputs)
    text = write_graph(graph.graph)
    again = read_graph(text)
    assert write_graph(again) == text
    same_graph(graph.graph, again)
    torch.testing.assert_close(tuple(graph_module(again)(*given)), tuple(function(*inputs)))


def test_arguments_of_all_kinds() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.full, ((2, 3), float("inf")), {"dtype": torch.float64, "device": torch.device("cpu")})
    b = graph.call_method("contiguous", (x,), {"memory_format": torch.contiguous_format})
    c = graph.call_function(getattr, (b, "mT"))
    d = graph.call_function(torch.ops.aten.index.Tensor, (c, [None, x]))
    e = graph.call_function(__import__("operator").getitem, (d, (..., slice(0, -1, None), None)))
    graph.call_function(torch._C._nn.gelu, (e,), {"approximate": "tanh"})  # nobody needs it
    graph.output({"a": (a,), "b": [e, 1.5, None, True, complex(1, -2)]})
    text = write_graph(graph)
    again = read_graph(text)
    assert write_graph(again) == text
    same_graph(graph, again)


def test_what_no_module_has_under_a_name_is_refused() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(lambda x: x, (x,)))
    with pytest.raises(Unwritable, match="no module has the function"):
        write_graph(graph)


@pytest.mark.parametrize("text", ["x = (", "x = 1", "def forward(x):\n    y = x + 1\n    return y"])
def test_what_is_no_such_text_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        read_graph(text)


TENSORS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: torch.randn(4, 5),
    "transposed": lambda: torch.randn(5, 4).T,
    "channels last": lambda: torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(1, 5).expand(4, 5),
    "half": lambda: torch.randn(3).to(torch.bfloat16),
    "indices": lambda: torch.randint(3, 17, (40,)),
    "mask": lambda: torch.rand(30) < 0.5,
    "all the same": lambda: torch.full((3,), -1e4),
    "positive": lambda: torch.rand(50) * 30,
    "a parameter": lambda: torch.nn.Parameter(torch.randn(2, 2)),
    "complex": lambda: torch.randn(3, dtype=torch.cfloat),
    "one number": lambda: torch.tensor(2.5),
    "none": lambda: torch.empty(0, 3),
    "NaN": lambda: torch.tensor([1.0, float("nan"), float("inf")]),
    "plain": lambda: 3,
}


def made(given: Given, folder: Path) -> Any:
    return inputs_of(Reproduction(fx.Graph(), (given,), folder=folder))[0]


@pytest.mark.parametrize("name", TENSORS)
def test_inputs_that_are_described_have_the_same_form(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    value = TENSORS[name]()
    found = made(describe(value, tmp_path), tmp_path)
    if not isinstance(value, torch.Tensor):
        assert found == value
        return
    assert (found.shape, found.stride(), found.dtype) == (value.shape, value.stride(), value.dtype)
    assert found.requires_grad == value.requires_grad
    if name in ("indices", "positive", "mask"):
        assert found.min() >= value.min() // 1 and found.max() <= value.max() * 1.01
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TENSORS)
def test_inputs_that_are_kept_are_the_same(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    value = TENSORS[name]()
    given = describe(value, tmp_path, keep=True)
    space = {name: __import__(name) for name in ("torch", "base64", "zlib")}
    for found in (made(given, tmp_path), eval(given.within(tmp_path), space)):
        if isinstance(value, torch.Tensor):
            assert (found.stride(), found.requires_grad) == (value.stride(), value.requires_grad)
        torch.testing.assert_close(found, value, rtol=0, atol=0, equal_nan=True)


def test_other_sizes_keep_the_order_of_dimensions(tmp_path: Path) -> None:
    image = describe(torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), tmp_path)
    smaller = made(image.resized((2, 8, 3, 3)), tmp_path)
    assert smaller.shape == (2, 8, 3, 3) and smaller.is_contiguous(memory_format=torch.channels_last)
    row = describe(torch.randn(1, 5).expand(4, 5), tmp_path)
    assert made(row.resized((2, 3)), tmp_path).stride() == (0, 1)
