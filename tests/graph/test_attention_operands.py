"""What queries, keys and values are made of, and how many there are: a scale belongs to the scores if it is that of
queries or keys, and to the result if it is that of the values."""

from __future__ import annotations

import math

import pytest
import torch

import litz

MADE = {
    "as given": lambda x: x,
    "times a number": lambda x: x * 2.0,
    "number times it": lambda x: 0.5 * x,
    "by a number": lambda x: x / 4.0,
    "times a tensor": lambda x: x * torch.tensor(1.25),
    "filled and times": lambda x: x * torch.full_like(x, 1.5),
    "scaled, then turned twice": lambda x: (x * 2.0).mT.contiguous().mT,
    "turned, scaled, turned back": lambda x: (x.mT * 2.0).mT,
    "scaled in another shape": lambda x: (x.flatten(0, 1) * 2.0).view(x.shape),
}


def check(function, *inputs, training=False, dynamic=None):
    torch._dynamo.reset()
    inputs = [x.detach().clone().requires_grad_(training) for x in inputs]
    compiled = torch.compile(function, backend="litz", dynamic=dynamic, fullgraph=True)
    ours, eagers = compiled(*inputs), function(*inputs)
    near = 1e-12 if ours.dtype is torch.float64 else 2e-5
    torch.testing.assert_close(ours, eagers, atol=near, rtol=near, equal_nan=True)
    if training:
        slope = torch.cos(eagers.detach())
        for mine, theirs in zip(*(torch.autograd.grad(y, inputs, slope) for y in (ours, eagers)), strict=True):
            torch.testing.assert_close(mine, theirs, atol=near, rtol=near, equal_nan=True)
    return litz.last_report()


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("which", ["queries", "keys", "values", "all"])
@pytest.mark.parametrize("made", MADE)
def test_scaled_operands(made, which, training):
    torch.manual_seed(0)
    of = {name: MADE[made] if which in (name, "all") else MADE["as given"] for name in ("queries", "keys", "values")}

    def attend(q, k, v):
        return torch.softmax(of["queries"](q) @ of["keys"](k).mT, -1) @ of["values"](v)

    check(attend, *(torch.randn(2, 3, 6, 8) for _ in range(3)), training=training)


@pytest.mark.parametrize("shape", [(4, 6, 8), (6, 8)])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_values_of_one_source(shape, training):
    def attend(x):
        return torch.softmax((x * 0.25) @ (x + 1.0).mT, -1) @ (x * 2.0)

    torch.manual_seed(0)
    check(attend, torch.randn(shape), training=training)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("written", ["product", "operator"])
def test_training_in_float64(written, dynamic):
    """The logarithms that the fused forward keeps for its backward are as precise as its numbers."""

    def attend(x):
        if written == "operator":
            return torch.nn.functional.scaled_dot_product_attention(x * 0.5, x + 1.0, x * 2.0)
        return torch.softmax((x * 0.25) @ (x + 1.0).mT, -1) @ (x * 2.0)

    torch.manual_seed(0)
    check(attend, torch.randn(2, 3, 7, 7, dtype=torch.float64), training=True, dynamic=dynamic)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("shape", [(0, 3, 6, 8), (2, 0, 6, 8), (2, 3, 0, 8), (2, 3, 6, 0), (0, 6, 8)])
def test_none_of_them(shape, training):
    """The fused operator divides by its sizes, and the process would end."""

    def attend(x):
        return torch.softmax((x * 0.25) @ (x + 1.0).mT, -1) @ (x * 2.0)

    check(attend, torch.ones(shape), training=training)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_none_left_at_a_later_size(training):
    def attend(q, x):
        x = x[:, 3:]
        return torch.softmax((q * 0.25) @ (x + 1.0).mT, -1) @ (x * 2.0)

    torch.manual_seed(0)
    compiled = torch.compile(attend, backend="litz", dynamic=True)
    for length in (9, 5, 3):
        q, x = (torch.randn(2, length, 8, requires_grad=training) for _ in range(2))
        torch.testing.assert_close(compiled(q, x), attend(q, x))
        if training:
            for mine, theirs in zip(*(torch.autograd.grad(f(q, x).sum(), (q, x)) for f in (compiled, attend))):
                torch.testing.assert_close(mine, theirs)


def test_the_scale_of_the_scores_still_joins_the_operator():
    torch.manual_seed(0)

    def attend(q, k, v):
        return torch.softmax((q * 0.5) @ (k / 3.0).mT * 1.5, -1) @ v

    report = check(attend, *(torch.randn(2, 3, 16, 8) for _ in range(3)))
    assert [name for name, _ in report.calls] == ["aten::_scaled_dot_product_flash_attention_for_cpu"]
    assert report.kernels == 0


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("keys", [3, 7, 16, 40])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_query_that_is_no_number(value, keys, dynamic, training):
    """The fused operator has zeros for it where keys are few."""

    def attend(q, k, v):
        return torch.softmax((q * 0.25) @ k.mT, -1) @ v

    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 6, 8), torch.randn(2, 3, keys, 8), torch.randn(2, 3, keys, 8)
    q[0, 1, 2, 5] = value
    check(attend, q, k, v, training=training, dynamic=dynamic)


def masked_last(s, fill):
    return s.masked_fill(torch.arange(s.shape[-1]) == s.shape[-1] - 1, fill)


NEARLY = {
    "rounded to eight bits": lambda s: torch.softmax(s.to(torch.float8_e5m2).float(), -1),
    "weights rounded to eight bits": lambda s: torch.softmax(s, -1).to(torch.float8_e4m3fn).float(),
    "rounded to bfloat16": lambda s: torch.softmax((s * 4).bfloat16().float(), -1),
    "weights rounded to half": lambda s: torch.softmax(s, -1).half().float(),
    "moved far": lambda s: torch.softmax(s + 1e9, -1),
    "moved to infinity": lambda s: torch.softmax(s + math.inf, -1),
    "moved to NaN": lambda s: torch.softmax(s + math.nan, -1),
    "too large and back": lambda s: torch.softmax(s / 1e-45 * 1e-45, -1),
    "too small and back": lambda s: torch.softmax(s * 1e-40 * 1e30 * 1e10, -1),
    "filled with NaN": lambda s: torch.softmax(masked_last(s, math.nan), -1),
    "hidden, times zero": lambda s: torch.softmax(masked_last(s, -math.inf) * 0, -1),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", NEARLY)
def test_what_is_not_quite_attention_stays(name, training):
    torch.manual_seed(0)
    report = check(
        lambda q, k, v: NEARLY[name](q @ k.mT) @ v, *(torch.randn(2, 3, 32, 8) for _ in range(3)), training=training
    )
    assert not any("flash" in called for called, _ in report.calls)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_the_type_of_the_values_are_attention(dtype):
    def attend(q, k, v):
        return torch.softmax((q @ k.mT).float() * 0.25, -1).to(dtype) @ v

    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 32, 8, dtype=dtype) for _ in range(3)]
    torch._dynamo.reset()
    ours = torch.compile(attend, backend="litz")(*inputs)
    torch.testing.assert_close(ours, attend(*inputs), atol=2e-2, rtol=2e-2)
    assert any("flash" in called for called, _ in litz.last_report().calls)
