"""Randomness: with the same seed Litz draws exactly eager's numbers, in eager's order, and leaves the same state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

X = torch.linspace(0.05, 0.95, 600).view(20, 30)
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout-half": lambda x: F.dropout(x.bfloat16(), 0.3),
    "dropout-fused": lambda x: (F.dropout(x * 2 + 1, 0.5) + x).sum(1),
    "dropout-twice": lambda x: F.dropout(F.dropout(x, 0.3), 0.6),
    "dropout-all": lambda x: F.dropout(x, 1.0),
    "dropout-2d": lambda x: F.dropout2d(x.view(2, 10, 30), 0.4),
    "alpha-dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "rand": lambda x: torch.rand(7, 5) + x[0, 0],
    "rand-double": lambda x: torch.rand(70, dtype=torch.float64) * x[0, 0],
    "rand_like": lambda x: torch.rand_like(x) * x,
    "randn": lambda x: torch.randn(33) * x[0, 0],
    "randn-few": lambda x: torch.randn(3) * x[0, 0],
    "randn_like": lambda x: torch.randn_like(x) + x,
    "randn-half": lambda x: torch.randn(40, dtype=torch.bfloat16) * 2,
    "randint": lambda x: torch.randint(3, 100, (50,)) * 2,
    "randperm": lambda x: torch.randperm(40) + 1,
    "randperm-index": lambda x: x[torch.randperm(20)] * 2,
    "bernoulli": lambda x: torch.bernoulli(x) + x,
    "bernoulli-number": lambda x: torch.empty_like(x).bernoulli_(0.3) * x,
    "bernoulli-strided": lambda x: x.clone().t()[::2].bernoulli_(0.3) + 1,
    "bernoulli-part": lambda x: ((y := x.clone().view(2, 10, 30).permute(1, 2, 0))[:, 1:].bernoulli_(0.3), y),
    "normal": lambda x: torch.normal(x, 2.0) - x,
    "normal-in-place": lambda x: x.clone().normal_(1.0, 2.0) * 2,
    "normal-strided": lambda x: x.clone().t()[::2].normal_() + 1,
    "uniform": lambda x: torch.empty_like(x).uniform_(-1, 1).exp(),
    "exponential": lambda x: torch.empty_like(x).exponential_(2.0) + 1,
    "cauchy": lambda x: torch.empty_like(x).cauchy_() + 1,
    "log_normal": lambda x: torch.empty_like(x).log_normal_() + 1,
    "geometric": lambda x: torch.empty_like(x).geometric_(0.3) + 1,
    "poisson": lambda x: torch.poisson(x * 5) + 1,
    "multinomial": lambda x: torch.multinomial(x, 5) + 1,
    "rrelu": lambda x: F.rrelu(x - 0.5, training=True) * 2,
    "gumbel": lambda x: F.gumbel_softmax(x, hard=True),
    "order": lambda x: (torch.rand(5), torch.randn(20), torch.randperm(9), F.dropout(x), torch.rand(3)),
    "one-unused": lambda x: [torch.rand(5), torch.rand(6)][1] + x[0, 0],
    "between-kernels": lambda x: (x.exp().sum() + torch.rand(())) * torch.randn(()) + F.dropout(x).sum(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_what_eager_draws(name: str) -> None:
    function = PROGRAMS[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz", fullgraph=True)
    with torch.no_grad():
        compiled(X)  # tracing must not draw either: the next calls would show it
        for seed in (0, 7):
            torch.manual_seed(seed)
            wanted = [function(X), function(X)]
            state = torch.get_rng_state()
            torch.manual_seed(seed)
            found = [compiled(X), compiled(X)]
            assert torch.equal(torch.get_rng_state(), state), "another number of draws"
            for got, want in zip(_flat(found), _flat(wanted), strict=True):
                assert (got.dtype, got.shape) == (want.dtype, want.shape)
                torch.testing.assert_close(got, want)


def test_draws_are_exact() -> None:
    """No arithmetic around them: equal to the bit."""
    torch._dynamo.reset()
    drawn = [
        lambda: torch.rand(100),
        lambda: torch.randn(100),
        lambda: torch.randperm(100),
        lambda: torch.randint(9, (100,)),
        lambda: torch.full((100,), 0.3).bernoulli(),
        lambda: F.dropout(torch.ones(100), 0.5),
    ]
    compiled = torch.compile(lambda: [draw() for draw in drawn], backend="litz")
    torch.manual_seed(3)
    wanted = [draw() for draw in drawn]
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(compiled(), wanted, strict=True))


def test_compiling_does_not_draw() -> None:
    torch._dynamo.reset()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    compiled = torch.compile(lambda x: F.dropout(x), backend="litz")
    found = compiled(X)
    torch.set_rng_state(before)
    assert torch.equal(found, F.dropout(X))


def _flat(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    return [leaf for value in values for leaf in _flat(value)]


LYING = {
    "transposed": lambda x: F.dropout((x * 2).transpose(0, 1), 0.3),
    "turned": lambda x: F.dropout((x * 2).permute(2, 0, 1), 0.3),
    "a transposed input": lambda x: F.dropout(x.transpose(0, 2), 0.3),
    "of channels": lambda x: F.dropout2d((x * 2).unsqueeze(0).transpose(1, 2), 0.3),
    "in place": lambda x: F.dropout((x * 2).transpose(0, 1), 0.3, inplace=True),
    "drawn": lambda x: (x * 2).transpose(0, 1).bernoulli_(0.4),
    "in columns": lambda x: (x * 2)[:, ::2].bernoulli_(0.4),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LYING)
def test_drops_what_eager_drops_however_it_lies(name: str, dynamic: bool) -> None:
    """Eager draws along memory; the functional operator gives rows and draws along them."""
    torch._dynamo.reset()
    compiled = torch.compile(LYING[name], backend="litz", dynamic=dynamic)
    for length in (6, 9, 7):
        x = torch.randn(length, 4, 5)
        torch.manual_seed(1)
        wanted = LYING[name](x)
        torch.manual_seed(1)
        found = compiled(x)
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted)
