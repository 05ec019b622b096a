"""Sizes known only at run time: one program for all of them, and what falls back to one a size."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import litz
from litz.capture.backend import litz as backend


def compiled_with_count(function, **options):
    """The compiled function, and a list that grows by one with each graph handed to the backend."""
    graphs: list[object] = []

    def counting(graph_module, inputs):
        graphs.append(graph_module)
        return backend(graph_module, inputs, options={"verify": True, **options})

    return torch.compile(function, backend=counting), graphs


def block(x, w, b):
    y = F.layer_norm(F.gelu(F.linear(x, w, b)), (64,))
    return torch.softmax(y, -1) + x.mean(), y.sum(1)


def test_a_length_that_varies_compiles_twice():
    torch.manual_seed(0)
    w, b = torch.randn(64, 32), torch.randn(64)
    torch._dynamo.reset()
    function, graphs = compiled_with_count(block)
    with torch.no_grad():
        for length in (5, 17, 128, 300, 31, 2, 64):
            x = torch.randn(2, length, 32)
            for mine, eager in zip(function(x, w, b), block(x, w, b), strict=True):
                torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)
    assert len(graphs) == 2
    assert not any("left to eager" in note for note in litz.last_report().notes)


def mixed(x, y):
    return x.t().contiguous() + 1, torch.cat([x, y], 1).amax(1), (x * y).sum(), x.expand(2, *x.shape).softmax(1)


@pytest.mark.parametrize("shape", [(3, 7), (16, 16), (5, 64), (2, 130)])
def test_every_dimension_dynamic(shape):
    torch._dynamo.reset()
    function, _ = compiled_with_count(mixed)
    x, y = torch.randn(shape), torch.randn(shape)
    for tensor in (x, y):
        for dim in (0, 1):
            torch._dynamo.mark_dynamic(tensor, dim)
    with torch.no_grad():
        for mine, expected in zip(function(x, y), mixed(x, y), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)


def test_a_mask_from_positions():
    def causal(scores):
        length = scores.shape[-1]
        keep = torch.arange(length)[:, None] >= torch.arange(length)[None, :]
        return torch.softmax(scores.masked_fill(~keep, float("-inf")), -1)

    torch._dynamo.reset()
    function, graphs = compiled_with_count(causal)
    with torch.no_grad():
        for length in (8, 13, 40, 77):
            scores = torch.randn(2, length, length)
            torch.testing.assert_close(function(scores), causal(scores), rtol=1e-5, atol=1e-6)
    assert len(graphs) == 2


def test_embedding_out_of_range_still_raises():
    torch._dynamo.reset()
    table = torch.randn(10, 8)
    function, _ = compiled_with_count(lambda ids: F.embedding(ids, table) * 2)
    with torch.no_grad():
        for length in (4, 6, 9):
            function(torch.randint(0, 10, (length,)))
        with pytest.raises(IndexError):
            function(torch.full((5,), 10))


def test_an_output_that_is_a_size_is_still_right():
    torch._dynamo.reset()
    function, _ = compiled_with_count(lambda x: (x + 1, x.shape[0] * 2))
    with torch.no_grad():
        for length in (4, 6, 9):
            y, doubled = function(torch.ones(length))
            assert doubled == 2 * length and y.shape == (length,)


def test_training_with_lengths_that_vary():
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8)
    function, _ = compiled_with_count(lambda x: layer(x).tanh().sum())
    for length in (4, 6, 9):
        x = torch.randn(length, 8)
        gradients = []
        for run in (function, lambda x: layer(x).tanh().sum()):
            layer.zero_grad()
            run(x).backward()
            gradients.append(layer.weight.grad.clone())
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


def test_a_float_that_changes():
    """It compiles twice: for the first value, and for all."""
    torch._dynamo.reset()
    compiled, graphs = compiled_with_count(lambda x, factor: (x.sin() * factor + 1).relu())
    with torch.no_grad():
        for number in range(5):
            x, factor = torch.randn(4, 8), 0.1 + number
            torch.testing.assert_close(compiled(x, factor), (x.sin() * factor + 1).relu())
    assert len(graphs) == 2 and not litz.last_report().notes


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("p", "training"), [(0.5, False), (0.0, True)])
def test_a_dropout_that_is_off_gives_back_its_tensor(p: float, training: bool, dynamic: bool) -> None:
    x = torch.empty_strided((5, 5), (10, 2)).normal_()
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda t: (torch.nn.functional.dropout(t, p, training), t + 1), backend="litz", dynamic=dynamic
    )
    assert compiled(x)[0] is x
    with pytest.raises(Exception, match="probability has to be between 0 and 1"):
        torch.compile(lambda t: torch.nn.functional.dropout(t, 1.5, False), backend="litz", dynamic=dynamic)(x)
