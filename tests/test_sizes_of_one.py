"""Sizes that are computed, and turn out to be 1: what broadcasts is what the trace had broadcast."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

FUNCTIONS = {
    "add": lambda a, part: a + part,
    "lerp": lambda a, part: torch.lerp(part, a, 0.25),
    "where": lambda a, part: torch.where(part > 0, a, part),
    "expand": lambda a, part: part.expand_as(a) * 2,
    "broadcast_to": lambda a, part: torch.broadcast_to(part, a.shape).cos(),
    "product": lambda a, part: a.t().unsqueeze(0) @ part.t().unsqueeze(-1),
    "copied": lambda a, part: torch.empty_like(a).copy_(part) + 1,
    "update": lambda a, part: (a * 1).mul_(part),
    "normalised": lambda a, part: F.softmax(a * part, -1),
    "clamp": lambda a, part: torch.clamp(a, part - 1, part + 1),
    "addcmul": lambda a, part: torch.addcmul(a, part, a, value=0.5),
    "squeeze": lambda a, part: a * part.squeeze(1).unsqueeze(1),
    "sum": lambda a, part: (a * part).sum(0),
    "index_put": lambda a, part: (a * 1).index_put((torch.arange(a.shape[0]),), part),
    "loss": lambda a, part: F.huber_loss(a, part, reduction="none"),
}
PARTS = {
    "chunk": lambda a: a.chunk(2, 1)[1],
    "slice": lambda a: a[:, a.shape[1] - 1 :],
    "halves": lambda a: a[:, : a.shape[1] // 2],
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_computed_size_of_one_broadcasts(name, part):
    torch._dynamo.reset()

    def function(a):
        return FUNCTIONS[name](a, PARTS[part](a))

    compiled = torch.compile(function, backend="litz", dynamic=True)
    for rows in (5, 7):
        a = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(a), function(a))


def test_a_size_that_another_question_has_told_to_be_one():
    """The comparison asks whether the size is less than 2, and then no one asks whether it is 1."""
    torch._dynamo.reset()

    def function(a, d):
        part = d[:, 0 : d.shape[1] // 2 + 1 : 3]
        _ = part <= -0.5
        return a * part

    a, d = torch.ones(3, 3, 5, dtype=torch.bool).transpose(0, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])[1:]
    assert torch.equal(torch.compile(function, backend="litz", dynamic=True)(a, d), function(a, d))
