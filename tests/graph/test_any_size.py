"""Rules over sizes known only at run time: each holds there too, and asks no size for its value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import litz
from litz.capture.backend import litz as backend
from litz.graph.replacement import register_replacement


def gelu_tanh(x):
    # Not `math.pi`: with `dynamic=True` Dynamo takes it for a number that may change.
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / 3.141592653589793) * (x + 0.044715 * torch.pow(x, 3.0))))


def softmax(x):
    raised = torch.exp(x - x.amax(-1, keepdim=True))
    return raised / raised.sum(-1, keepdim=True)


def masked(q, mask):
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "gelu by tanh": (gelu_tanh, "gelu_tanh"),
    "gelu by erf": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "gelu_erf"),
    "silu": (lambda x: x * torch.sigmoid(x) + 1, "silu"),
    "softmax": (softmax, "softmax_pre_grad"),
    "joined again": (lambda x: torch.cat(torch.split(x.sin(), 2, -1), -1) * 2, "join_of_parts"),
    "a part that was joined": (
        lambda x: torch.split(torch.cat([x.sin(), x.cos()], 1), x.shape[1], 1)[1] * 2,
        "part_of_joined",
    ),
    "joined twice": (lambda x: torch.cat([torch.cat([x, x * 2], 1), x.sin()], 1) + 1, "cat_of_joined"),
    "viewed twice": (lambda x: x.sin().flatten(0, 1).view(x.shape) * 2, "view_twice"),
    "joined with nothing": (lambda x: torch.cat([x.sin(), x.new_zeros(0)], 0) * 2, "cat_of_one"),
    "times one": (lambda x: x.sin() * torch.ones(x.shape[1], x.shape[2]) + 1, "times_one"),
    "a permutation": (
        lambda x: torch.zeros_like(x).index_add(0, torch.randperm(x.shape[0]), x * 2).sum(),
        "index_add_unique",
    ),
    "a mask that hides nothing": (
        lambda x: masked(x.unsqueeze(0), torch.zeros(x.shape[1], x.shape[1])),
        "attention_mask",
    ),
}


Seen = list[tuple[int, dict[str, int]]]


def compiled(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], Seen]:
    """The function, and for each graph how many guards were added by the backend and what fired."""
    found: Seen = []

    def observed(graph_module, inputs):
        values = [n.meta.get("example_value") for n in graph_module.graph.nodes]
        shapes = next(v.fake_mode.shape_env for v in values if isinstance(v, torch.Tensor))
        before = len(shapes.guards)
        made = backend(graph_module, inputs, options={"verify": True, **options})
        found.append((len(shapes.guards) - before, {f.rule: f.times for f in litz.last_report().firings}))
        return made

    torch._dynamo.reset()
    return torch.compile(function, backend=observed, dynamic=True), found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rule_holds_for_any_size(name: str) -> None:
    function, rule = PROGRAMS[name]
    mine, found = compiled(function)
    with torch.no_grad():
        for shape in ((2, 4, 6), (3, 5, 6), (5, 9, 6)):
            x = torch.randn(shape)
            torch.testing.assert_close(mine(x), function(x), rtol=1e-4, atol=1e-5)
    ((guards, fired),) = found
    assert rule in fired and guards == 0


def test_attention_in_training() -> None:
    def attend(q, k, v):
        q, k, v = (t.view(t.shape[0], t.shape[1], 4, 16).transpose(1, 2) for t in (q, k, v))
        return torch.softmax(q @ k.mT / 4.0, -1) @ v

    mine, found = compiled(attend)
    for batch, length in ((2, 10), (3, 17), (5, 33)):
        inputs = [torch.randn(batch, length, 64, requires_grad=True) for _ in range(3)]
        results = []
        for run in (mine, attend):
            result = run(*inputs)
            results.append([result, *torch.autograd.grad(result.sin().sum(), inputs)])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    ((guards, fired),) = found
    assert "attention_training" in fired and guards == 0


def over_positions(q, k, v):
    return torch.softmax(q.mT @ k, -1) @ v.mT


def shared(x, w, _):
    return torch.softmax(x @ w, -1) @ w.mT


@pytest.mark.parametrize("attend", [over_positions, shared])
@pytest.mark.parametrize("dynamic", [None, True])
def test_attention_in_training_over_what_does_not_lie_in_rows(attend: Any, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    mine = torch.compile(attend, backend="litz", dynamic=dynamic)
    for length in (6, 9, 17):
        inputs = [torch.randn(2, 8, length, requires_grad=True) for _ in range(3)]
        if attend is shared:
            inputs[0] = torch.randn(2, length, 8, requires_grad=True)
        wanted = inputs if attend is over_positions else inputs[:2]
        results = []
        for run in (mine, attend):
            result = run(*inputs)
            results.append([result, *torch.autograd.grad(result.sin().sum(), wanted)])
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)


def swish(x, beta):
    return x * torch.sigmoid(beta * x)


def swish_by_tanh(x, beta):
    return 0.5 * x * (1 + torch.tanh(0.5 * beta * x))


def rows_first(x):
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2]).sum(0)


def rows_one_by_one(x):
    return x.sum((0, 1))


def test_a_replacement_by_example_holds_for_any_size() -> None:
    """Also one whose trace has sizes in it, and one with a number that is itself made of a size."""
    rules = (
        register_replacement(swish, swish_by_tanh, [torch.empty(4, 8)], scalar_workaround={"beta": 1.7}),
        register_replacement(rows_first, rows_one_by_one, [torch.empty(2, 4, 8)]),
    )
    function = lambda x: (swish(x, x.shape[0]), rows_first(x.sin()), swish(x, 1.25))  # noqa: E731
    mine, found = compiled(function, rules=rules)
    with torch.no_grad():
        for shape in ((2, 4, 6), (3, 5, 7), (5, 9, 8)):
            x = torch.randn(shape)
            torch.testing.assert_close(mine(x), function(x), rtol=1e-4, atol=1e-5)
    ((guards, fired),) = found
    assert guards == 0 and fired["swish"] == 2 and fired["rows_first"] == 1
