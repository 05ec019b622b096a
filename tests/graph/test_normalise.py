"""One spelling for each torch-level call, that still runs; and who writes to whose memory."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch.fx import symbolic_trace
from torch.nn import functional as F

from litz.graph.mutation import mutates
from litz.graph.normalise import normalise

X = torch.randn(4, 6)


def spelled(function: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    graph = symbolic_trace(function).graph
    normalise(graph)
    return [(n.target, n.args[1:]) for n in graph.nodes if n.op == "call_function"]


def test_one_spelling_for_each_call() -> None:
    forms = {
        torch.softmax: [lambda x: x.softmax(1), lambda x: F.softmax(x, dim=1), lambda x: torch.softmax(x, 1, None)],
        F.dropout: [lambda x: F.dropout(x, 0.1), lambda x: torch.dropout(x, 0.1, True), lambda x: F.dropout(x, p=0.1)],
        torch.split: [lambda x: x.split(2, 1), lambda x: torch.split(x, 2, dim=1), lambda x: x.split(2, dim=1)],
        torch.bmm: [lambda x: x.bmm(x), lambda x: torch.bmm(x, x), lambda x: torch.bmm(x, mat2=x)],
        torch.matmul: [lambda x: x @ x, lambda x: x.matmul(x), lambda x: torch.matmul(x, other=x)],
    }
    for target, functions in forms.items():
        first, *others = (spelled(f) for f in functions)
        assert first[0][0] is target and all(str(other) == str(first) for other in others)


RUN = (
    lambda x: x.sum(1) + torch.sum(x, dim=1) + x.sum(-1, keepdim=True).sum() + x.sum() + torch.sum(x, 1, dtype=x.dtype),
    lambda x: x.amax(1) + torch.amax(x, dim=(1,)) + x.max(1)[0] + torch.max(x, dim=1, keepdim=True)[0].sum() + x.max(),
    lambda x: torch.max(x, x * 2) - x.max(x),
    lambda x: x.exp() + torch.exp(x) - x.sub(1).div(3) - torch.div(x, x) - x.div(x, rounding_mode="floor") - x.sub(x),
    lambda x: x.softmax(1) + F.softmax(x, dim=0) + torch.softmax(x, 1, torch.float32) + F.softmax(x, 1, dtype=x.dtype),
    lambda x: torch.cat(x.split(2, 1)) + torch.concat(torch.split(x, [2, 2, 2], 1), axis=0),
    lambda x: torch.cat(x.chunk(2, dim=1)) + torch.concatenate(torch.chunk(x, 2, 1), dim=0),
    lambda x: torch.stack(x.unbind(1), 1) + torch.stack(torch.unbind(x)),
    lambda x: x @ x.t() + x.matmul(x.t()) + torch.matmul(x, other=x.t()) + x.__matmul__(x.t()),
    lambda x: x[None].bmm(x.t()[None]) + torch.bmm(x[None], mat2=x.t()[None]),
    lambda x: F.dropout(x, 0.0) + F.dropout(x, training=False) + torch.dropout(x, 0.5, False),
    lambda x: torch.conv1d(x, x[:, :2, None].expand(4, 2, 1)[:, :1].expand(4, 4, 1)) + F.conv1d(x, x[:, :4, None]),
    lambda x: torch.conv2d(x[None, None], x[None, None, :2, :2], padding="same", stride=1),
    lambda x: torch.conv3d(x[None, None, None], x[None, None, None, :2, :2], None, 1, (0, 1, 1)),
    lambda x: F.batch_norm(x, x[0], x[0] ** 2 + 1) + F.batch_norm(x, x[0], x[0] ** 2 + 1, weight=x[1], training=False),
)


@pytest.mark.parametrize("function", RUN, ids=[str(i) for i in range(len(RUN))])
def test_what_is_spelled_anew_still_runs(function) -> None:
    written = symbolic_trace(function)
    normalise(written.graph)
    written.recompile()
    torch.testing.assert_close(written(X), function(X))


@pytest.mark.parametrize(
    "function",
    [lambda x: F.softmax(x), lambda x: torch.cat([x], out=x), lambda x: x.softmax(1, dtype=None, unknown=1)],
)
def test_what_is_not_understood_stays_as_it_is(function) -> None:
    graph = symbolic_trace(function).graph
    before = [(n.op, n.target, n.args, n.kwargs) for n in graph.nodes]
    normalise(graph)
    assert [(n.op, n.target, n.args, n.kwargs) for n in graph.nodes] == before


def test_who_writes() -> None:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    writing = [
        graph.call_method("add_", (x, 1)),
        graph.call_function(operator.setitem, (x, 0, y)),
        graph.call_function(operator.iadd, (x, y)),
        graph.call_function(F.relu, (x, True)),
        graph.call_function(torch.add, (x, y), {"out": y}),
        graph.call_function(torch.ops.aten.mul_.Tensor, (x, y)),
        graph.call_function(torch.relu_, (x,)),
        graph.call_function(F.batch_norm, (x, y, y), {"training": True}),
        graph.call_function(test_who_writes, (x,)),  # who knows
    ]
    reading = [
        graph.call_method("add", (x, 1)),
        graph.call_method("__and__", (x, y)),
        graph.call_function(F.relu, (x,)),
        graph.call_function(operator.getitem, (x, 0)),
        graph.call_function(torch.ops.aten.mul.Tensor, (x, y)),
        graph.call_function(F.batch_norm, (x, y, y, None, None, False, 0.1, 1e-5)),
        graph.call_function(F.linear, (x, y)),
    ]
    assert all(mutates(n) for n in writing), [n for n in writing if not mutates(n)]
    assert not any(mutates(n) for n in reading), [n for n in reading if mutates(n)]


@pytest.mark.parametrize("name", ["mul", "add", "dropout"])
def test_a_write_where_no_gradient_is_recorded(name: str) -> None:
    """What is written to keeps its place in autograd's graph."""
    write = {
        "mul": lambda y: y.mul_(2),
        "add": lambda y: operator.iadd(y, 1),
        "dropout": lambda y: F.dropout(y, 0.0, True, inplace=True),
    }[name]

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        with torch.no_grad():
            y = write(y)
        return torch.cat(y.split(2, 1), 1).sin()

    torch._dynamo.reset()
    found = []
    for run in (function, torch.compile(function, backend="litz")):
        x, w = torch.ones(3, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
        y = run(x, w)
        y.sum().backward()
        found.append([y.detach(), x.grad, w.grad])
    torch.testing.assert_close(*found)
