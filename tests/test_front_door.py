"""The doors: a compiler and a table of one's own, determinism in a backward, and systems that are not supported."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import litz
from litz.errors import CallError, OptionError, UnsupportedPlatform
from litz.target import refuse_system

aten = torch.ops.aten


class Own:
    """An inner compiler that runs the graph as it is, and remembers what it was given."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.inputs: list[list[Any]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        self.inputs.append(inputs)
        return graph.forward

    def targets(self, at: int) -> list[Any]:
        return [node.target for node in self.graphs[at].graph.nodes if node.op == "call_function"]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    return torch.nn.Sequential(*layers)


# -- a compiler of one's own ------------------------------------------------------------------------
def test_a_compiler_of_ones_own_is_given_each_split_graph() -> None:
    own, mine, theirs = Own(), model(), model()
    compiled = torch.compile(mine, backend="litz", options={"inner_compile": own})
    x, y = (torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    result = compiled(x)
    assert len(own.graphs) == 1 and aten.addmm.default in own.targets(0)  # the backward waits until it is needed
    result.square().sum().backward()
    theirs(y).square().sum().backward()
    assert len(own.graphs) == 2 and aten.native_layer_norm_backward.default in own.targets(1)
    for graph, inputs in zip(own.graphs, own.inputs, strict=True):
        assert len(inputs) == sum(node.op == "placeholder" for node in graph.graph.nodes)
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(mine[1].running_mean, theirs[1].running_mean)  # a write to a buffer


def test_it_is_given_graphs_after_the_joint_rewrites() -> None:
    own, q = Own(), torch.randn(2, 3, 4, 8)
    with torch.no_grad():
        written = litz.compile(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, inner_compile=own)
        torch.testing.assert_close(written(q, q + 1, q + 2), torch.softmax(q @ (q + 1).mT, -1) @ (q + 2))
    assert aten._softmax.default not in own.targets(0)
    assert any("scaled_dot_product" in str(target) for target in own.targets(0))


def test_other_sizes_are_other_graphs() -> None:
    own = Own()
    compiled = litz.compile(lambda x: (x.exp().sum(0), x.shape[0]), dynamic=True, inner_compile=own)
    for n in (3, 4, 3):
        total, rows = compiled(torch.ones(n, 2))
        torch.testing.assert_close(total, torch.ones(n, 2).exp().sum(0))
        assert rows == n
    assert len(own.graphs) == 2


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (lambda graph, inputs: [][1], "inner_compile raised IndexError for a forward"),
        (lambda graph, inputs: 7, "inner_compile returned a int for a forward"),
    ],
)
def test_a_compiler_that_fails_is_named(own: Callable[..., Any], told: str) -> None:
    with pytest.raises(Exception, match=told):
        litz.compile(lambda x: x + 1, inner_compile=own)(torch.ones(2))


def test_results_are_a_list() -> None:
    compiled = litz.compile(lambda x: x + 1, inner_compile=lambda graph, inputs: lambda x: x + 1)
    with pytest.raises(CallError, match="returned a Tensor, where a graph's results are a tuple or list"):
        compiled(torch.ones(2))


def test_what_does_not_go_together() -> None:
    with pytest.raises(OptionError, match="'freeze' and 'inner_compile'"):
        litz.compile(model(), freeze=True, inner_compile=Own())
    with pytest.raises(OptionError, match="cannot be written to a file"):
        litz.aot_compile(model().eval(), (torch.ones(4, 8),), options={"inner_compile": Own()})


# -- a table of one's own ---------------------------------------------------------------------------
def test_a_table_replaces_litzs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.addr(x, x[0], x[0]))

    def operators(table: Any) -> list[str]:
        own, x = Own(), torch.randn(4, 4)
        with torch.no_grad():
            compiled = litz.compile(function, decompositions=table, inner_compile=own)
            torch.testing.assert_close(compiled(x), function(x))
        return [str(target) for target in own.targets(0)]

    assert "aten.addr.default" not in operators(None)
    assert "aten.addr.default" in operators({})
    found = operators({aten.tanh.default: lambda x: 2 * torch.sigmoid(2 * x) - 1})
    assert "aten.tanh.default" not in found and "aten.addr.default" in found


def test_what_is_not_taken_apart_is_called() -> None:
    with torch.no_grad():
        x = torch.randn(4, 4)
        torch.testing.assert_close(litz.compile(lambda x: torch.addr(x, x[0], x[0]), decompositions={})(x),
                                   torch.addr(x, x[0], x[0]))  # fmt: skip
    assert ("aten::addr", 1) in litz.last_report().calls


# -- determinism ------------------------------------------------------------------------------------
def test_a_backward_is_as_deterministic_as_its_forward() -> None:
    compiled = litz.compile(lambda x: x.sin().sum())
    x = torch.ones(3, requires_grad=True)
    try:
        loss = compiled(x)
        torch.use_deterministic_algorithms(True)
        with pytest.raises(CallError, match=r"use_deterministic_algorithms\(True\), and its forward without"):
            loss.backward()
        compiled(x).backward()  # a forward of its own
        loss = compiled(x)
        torch.use_deterministic_algorithms(False)
        loss.backward()  # more than was asked for
        loss = compiled(x)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="need not be deterministic"):
            loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(x.grad, 3 * x.detach().cos())


# -- other systems ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("system", "told"), [("Windows", "this is Windows"), ("Darwin", "this is macOS")])
def test_other_systems_get_one_clear_error(system: str, told: str) -> None:
    with pytest.raises(UnsupportedPlatform, match=rf"generates code for Linux, and {told}"):
        refuse_system(system)
    code = f"""
import platform, sys, torch
platform.system = lambda: {system!r}
sys.modules["fcntl"] = None
import litz, litz.eager
def told(run):
    try:
        run()
    except Exception as error:
        assert {told!r} in str(error), error
        return 1
    return 0
f = lambda x: x + 1
print(told(lambda: torch.compile(f, backend="litz")(torch.ones(2))), told(lambda: litz.compile(f)))
print(told(lambda: litz.aot_compile(torch.nn.Linear(2, 2), (torch.ones(1, 2),), path="/nowhere.so")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1", "1"], done.stderr


def test_explain_match_leaves_compiled_code_alone() -> None:
    own = Own()

    def attention(q: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ q.mT, -1) @ q

    compiled = litz.compile(attention, inner_compile=own)
    q = torch.randn(2, 3, 4, 8)
    with torch.no_grad():
        compiled(q)
        for given in (attention, compiled):
            assert litz.explain_match(given, q, rule="attention").fired
        compiled(q)
    assert len(own.graphs) == 1


def test_explain_match_may_be_asked_often() -> None:
    """Each time counts for no recompile of the user's function."""
    own, mine = Own(), copy.deepcopy(model())
    compiled = torch.compile(mine, backend="litz", options={"inner_compile": own})
    for _ in range(10):
        litz.explain_match(mine, torch.ones(4, 8), rule="activation")
    compiled(torch.ones(4, 8))
    assert len(own.graphs) == 1
