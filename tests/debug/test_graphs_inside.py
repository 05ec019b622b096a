"""Graphs that calls are given, as those of `cond`: written, read back, run and made smaller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

from litz.debug.graph_text import graph_module, inner_graphs, read_graphs, write_graph
from litz.debug.reduce import inputs_of, without_graphs_inside, without_nodes
from litz.debug.reproduce import reproduce
from litz.debug.reproduction import Reproduction, load
from tests.debug.test_ts_compile import captured

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


def chooses(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.max() > 3, lambda x: x.exp(), lambda x: x - 1, (x + 1,))

    return (torch.cond(x.sum() > -99, inner, lambda x: x.cos() * 2, (x * 2,)).relu(),)


def repeats(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    steps = torch.zeros((), dtype=torch.int64)
    return (while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x.tanh() + 0.1), (steps, x + 1))[1].sin(),)


def again(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (checkpoint(lambda x: x.tanh() * 2, x.exp(), use_reentrant=False),)


PROGRAMS = {function.__name__: function for function in (chooses, repeats, again)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_written_reads_back(name: str) -> None:
    graph, inner = inner_graphs(captured(PROGRAMS[name], X)[0])
    text = "\n".join(write_graph(each, n, method=True) for n, each in {"forward": graph, **inner}.items())
    whole, functions = read_graphs(text)
    assert "\n".join(write_graph(each, n, True) for n, each in {"forward": whole, **functions}.items()) == text
    assert list(functions) == list(inner) and len(inner) == {"chooses": 4, "repeats": 2, "again": 1}[name]
    torch.testing.assert_close(tuple(graph_module(whole, functions)(X)), PROGRAMS[name](X))


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_saved_runs_compiled(name: str, tmp_path: Path) -> None:
    saved = Reproduction.of(*captured(PROGRAMS[name], X.clone().requires_grad_(name == "again")), tmp_path)
    file = tmp_path / "saved.py"
    file.write_text(saved.text())
    space = load(file)
    symptom = reproduce(space["Graph"](), space["inputs"], options={"never_slower": False})
    assert symptom.kind == "none", symptom
    assert Reproduction.read(file, tmp_path).text() == saved.text()


def has(method: str) -> Callable[[Reproduction], bool]:
    """Whether a program still runs, and calls that somewhere."""

    def shows(candidate: Reproduction) -> bool:
        try:
            graph_module(candidate.graph, candidate.inner)(*inputs_of(candidate))
        except Exception:
            return False
        nodes = [node for graph in candidate.graphs.values() for node in graph.nodes]
        return any(node.op == "call_method" and node.target == method for node in nodes)

    return shows


def smaller(function: Callable[..., Any], folder: Path, shows: Callable[[Reproduction], bool]) -> Reproduction:
    whole = Reproduction.of(*captured(function, X), folder)
    assert shows(whole)
    return without_nodes(without_graphs_inside(without_nodes(whole, shows, folder), shows), shows, folder)


@pytest.mark.parametrize(("function", "method"), [(chooses, "exp"), (repeats, "tanh"), (again, "tanh")])
def test_what_is_inside_comes_out(function: Any, method: str, tmp_path: Path) -> None:
    best = smaller(function, tmp_path, has(method))
    assert [node.target for node in best.graph.nodes if node.op.startswith("call")] == [method]
    assert list(best.graphs) == ["forward"]


def test_graphs_that_are_needed_stay_and_lose_what_is_not(tmp_path: Path) -> None:
    def chooses(candidate: Reproduction) -> bool:
        return has("cos")(candidate) and any("cond" in str(node.target) for node in candidate.graph.nodes)

    best = smaller(PROGRAMS["chooses"], tmp_path, chooses)
    assert best.calls == 2, best.text()  # `cond`, and the cosine in it
