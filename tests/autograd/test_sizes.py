"""Training over sizes that vary: one program for all of them, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from litz.capture import backend
from litz.capture.backend import litz


@pytest.fixture
def compiles(monkeypatch):
    """The graphs handed to the backend; nothing may be compiled for one size alone."""
    torch._dynamo.reset()
    graphs: list[object] = []

    def refuse(graph_module, why, *rest):
        raise AssertionError(f"compiled for each size: {why}")

    monkeypatch.setattr(backend, "PerSize", refuse)

    def compile(function):
        def counting(graph_module, inputs):
            graphs.append(graph_module)
            return litz(graph_module, inputs, options={"verify": True})

        return torch.compile(function, backend=counting)

    compile.graphs = graphs
    return compile


def step(function, parameters, *args):
    """The results, and the gradients of a sum over those that have one."""
    torch.manual_seed(1)
    for p in parameters:
        p.grad = None
    results = function(*args)
    results = results if isinstance(results, (tuple, list)) else (results,)
    sum((r * torch.linspace(0.5, 1, r.numel()).view(r.shape)).sum() for r in results if r.requires_grad).backward()
    return [*results, *(p.grad for p in parameters)]


def agree(compile, function, parameters, arguments, most=2):
    compiled = compile(function)
    for args in arguments:
        for mine, eager in zip(step(compiled, parameters, *args), step(function, parameters, *args), strict=True):
            assert (mine is None) == (eager is None)
            if mine is not None:
                torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
                assert mine.stride() == eager.stride()
    assert len(compile.graphs) <= most


LENGTHS = (4, 6, 9, 33, 2)


def test_a_network(compiles):
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    agree(compiles, net, list(net.parameters()), [(torch.randn(3, n, 8),) for n in LENGTHS])


def test_the_input_needs_a_gradient(compiles):
    for function in (lambda x: (x.softmax(-1) * x).sum(0), lambda x: x.cumsum(1).tanh()):
        compiles.graphs.clear()
        compiled = compiles(function)
        for n in LENGTHS:
            x = torch.randn(3, n, requires_grad=True)
            torch.testing.assert_close(step(compiled, [x], x), step(function, [x], x), rtol=1e-5, atol=1e-5)
        assert len(compiles.graphs) <= 2


def test_attention(compiles):
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    agree(compiles, layer, list(layer.parameters()), [(torch.randn(2, n, 32),) for n in (5, 7, 12, 30)])


def test_dropout_draws_what_eager_draws(compiles):
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4))
    agree(compiles, net, list(net.parameters()), [(torch.randn(n, 8),) for n in LENGTHS])


def test_buffers_are_updated(compiles):
    net, other = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
    compiled = compiles(net)
    for n in LENGTHS:
        x = torch.randn(n, 6)
        torch.testing.assert_close(step(compiled, list(net.parameters()), x), step(other, list(other.parameters()), x))
        torch.testing.assert_close(net.running_var, other.running_var)
    assert len(compiles.graphs) <= 2


def test_outputs_that_are_views_and_sizes(compiles):
    weight = torch.randn(6, 6, requires_grad=True)

    def function(x):
        y = x @ weight
        return y, y[1:], y.t(), x[:, 2:], y.flatten()[: x.shape[0]]

    agree(compiles, function, [weight], [(torch.randn(n, 6),) for n in LENGTHS])
    compiled = compiles(lambda x: ((x @ weight).sum(), x.shape[0] * 3 + 1))
    assert [compiled(torch.randn(n, 6))[1] for n in LENGTHS] == [3 * n + 1 for n in LENGTHS]


def test_results_that_are_not_used(compiles):
    weight = torch.randn(6, 6, requires_grad=True)

    def function(x):
        return (x @ weight).tanh(), (x @ weight).sin()

    compiled = compiles(function)
    for n in LENGTHS:
        x = torch.randn(n, 6)
        for used in (0, 1):
            gradients = []
            for run in (compiled, function):
                weight.grad = None
                run(x)[used].sum().backward()
                gradients.append(weight.grad)
            torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
    assert len(compiles.graphs) <= 2


def test_slices_and_selections(compiles):
    weight = torch.randn(5, 8, requires_grad=True)

    def function(x):
        y = x @ weight
        return y[1:-1].sum(0), y[-3:], y[0], y[-1], y[::2].sin(), y[:, -2], y[2:7]

    agree(compiles, function, [weight], [(torch.randn(n, 5),) for n in (4, 6, 9, 33, 11)], most=4)


def test_embedding_and_loss(compiles):
    table, head = nn.Embedding(30, 8), nn.Linear(8, 30)

    def function(ids):
        return F.cross_entropy(head(table(ids[:, :-1])).flatten(0, 1), ids[:, 1:].flatten())

    parameters = [*table.parameters(), *head.parameters()]
    agree(compiles, function, parameters, [(torch.randint(0, 30, (3, n)),) for n in (5, 8, 13, 4)])


def test_an_image_of_any_size(compiles):
    down = nn.Conv2d(16, 16, 3, stride=2)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), down, nn.AdaptiveAvgPool2d(1))
    agree(compiles, net, list(net.parameters()), [(torch.randn(2, 3, n, n + 1),) for n in (12, 15, 20, 33)], most=3)
