"""Attention by hand over sizes that vary: one program for all of them, fused, and no size is tied down."""

from __future__ import annotations

import math

import pytest
import torch

import litz
from litz.capture.backend import litz as backend
from litz.capture.leave import PerSize

H, D = 4, 16


def heads(x):
    return x.view(x.shape[0], x.shape[1], H, D).transpose(1, 2)


def plain(q, k, v):
    return torch.softmax(heads(q) @ heads(k).transpose(-1, -2) / math.sqrt(D), -1) @ heads(v)


def padded(q, k, v, visible):
    s = (heads(q) @ heads(k).mT * 0.25).masked_fill(~visible[:, None, None, :], -math.inf)
    return (torch.softmax(s, -1) @ heads(v)).transpose(1, 2).reshape(q.shape[0], q.shape[1], H * D) + 1


def flat_heads(q, k, v):
    q, k, v = (heads(t).reshape(-1, t.shape[1], D) for t in (q, k, v))
    p = torch.softmax(torch.bmm(q * 0.25, k.transpose(1, 2)), -1)
    return torch.bmm(p, v) * 2


def causal(q, k, v):
    length = q.shape[1]
    visible = torch.arange(length)[None, :] <= torch.arange(length)[:, None]
    return torch.softmax((heads(q) @ heads(k).mT).masked_fill(~visible, -math.inf), -1) @ heads(v)


def einsums(q, k, v):
    p = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", heads(q), heads(k)) * 0.25, -1)
    return torch.einsum("bhqk,bhkd->bhqd", p, heads(v))


def position_bias(q, k, v, bias):
    return torch.softmax(heads(q) @ heads(k).mT + bias, -1) @ heads(v)


def no_attention(q, k, v):
    return torch.softmax((heads(q) @ heads(k).mT).relu(), -1) @ heads(v)


def weights_returned(q, k, v):
    p = torch.softmax(heads(q) @ heads(k).mT, -1)
    return p @ heads(v), p


def run(function) -> list[tuple[int, dict[str, int]]]:
    """Compiles once for all sizes and compares with eager; guards added, and rules fired, for each graph."""
    found = []

    def observed(graph_module, inputs):
        values = [n.meta.get("example_value") for n in graph_module.graph.nodes]
        shapes = next(v.fake_mode.shape_env for v in values if isinstance(v, torch.Tensor))
        before = len(shapes.guards)
        compiled = backend(graph_module, inputs, options={"verify": True})
        assert not isinstance(compiled, PerSize), compiled.why
        report = litz.last_report()
        found.append((len(shapes.guards) - before, {f.rule: f.times for f in report.firings}))
        return compiled

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=observed, dynamic=True)
    with torch.no_grad():
        for batch, length in ((2, 10), (3, 17), (5, 33)):
            inputs = [torch.randn(batch, length, H * D) for _ in range(3)]
            if function is padded:
                inputs.append((torch.rand(batch, length) > 0.3).index_fill(1, torch.tensor(0), True))
            if function is position_bias:
                inputs.append(torch.randn(1, H, length, length))
            torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-4, atol=1e-5)
    return found


@pytest.mark.parametrize("function", [plain, padded, flat_heads, causal, einsums, position_bias])
def test_one_fused_program_for_all_sizes(function) -> None:
    ((guards, fired),) = run(function)
    assert guards == 0 and fired.get("attention") == 1


@pytest.mark.parametrize("function", [no_attention, weights_returned])
def test_what_is_no_attention_at_any_size(function) -> None:
    ((guards, fired),) = run(function)
    assert guards == 0 and "attention" not in fired


def test_dropout_in_training() -> None:
    """Training is compiled for each size; what is rewritten before that holds for all of them."""

    def function(q, k, v):
        return torch.nn.functional.dropout(torch.softmax(heads(q) @ heads(k).mT, -1), 0.2) @ heads(v)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz", dynamic=True)
    for length in (10, 17):
        inputs = [torch.randn(2, length, H * D, requires_grad=True) for _ in range(3)]
        found = []
        for f in (function, compiled):
            torch.manual_seed(3)
            result = f(*inputs)
            found.append([result.detach(), *torch.autograd.grad(result.sin().sum(), inputs)])
        for eager, mine in zip(*found, strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
        assert "attention_pre_grad" in {f.rule for f in litz.last_report().firings}
