"""Regions under `torch.utils.checkpoint`: computed again, and nothing of them kept but what the user asked for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import litz
from tests.partition.test_budget import kept_bytes

aten = torch.ops.aten


class Layers(torch.nn.Module):
    def __init__(self, how: str, count: int = 4, dropout: float = 0.0):
        super().__init__()
        self.how, self.dropout = how, dropout
        self.up = torch.nn.ModuleList(torch.nn.Linear(16, 64) for _ in range(count))
        self.down = torch.nn.ModuleList(torch.nn.Linear(64, 16) for _ in range(count))

    def layer(self, at: int, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(self.up[at](x).tanh(), self.dropout)
        return x + self.down[at](h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at in range(len(self.up)):
            if self.how == "plain":
                x = self.layer(at, x)
            elif self.how == "region":
                x = checkpoint(self.layer, at, x, use_reentrant=False)
            elif self.how == "nested":
                inner = partial(checkpoint, self.layer, at, use_reentrant=False)
                x = checkpoint(lambda x, inner=inner: inner(x) * 1.5, x, use_reentrant=False)
            else:
                x = checkpoint(self.layer, at, x, use_reentrant=False, context_fn=CONTEXTS[self.how])
        return x


def keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    products = (aten.mm.default, aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE


CONTEXTS = {
    "products": partial(create_selective_checkpoint_contexts, keep_products),
    "list": partial(create_selective_checkpoint_contexts, [aten.addmm.default]),
}


def run(how: str, dropout: float = 0.0) -> tuple[int, list[torch.Tensor], litz.Report]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Layers(how, dropout=dropout).double()
    x = torch.randn(128, 16, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    size, result = kept_bytes(torch.compile(model, backend="litz", fullgraph=True), x)
    result.square().sum().backward()
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
    gradients = [x.grad, *(p.grad for p in model.parameters())]
    model.zero_grad()
    x.grad = None
    torch.manual_seed(1)
    model(x).square().sum().backward()
    torch.testing.assert_close(gradients, [x.grad, *(p.grad for p in model.parameters())])
    return size, gradients, report


WEIGHTS = 4 * (16 * 64) * 2 * 8
BOUNDARY, WITHIN = 128 * 16 * 8, 128 * 64 * 8  # bytes of what goes from layer to layer, and of what is within one


def test_nothing_within_a_region_is_kept() -> None:
    plain, region = run("plain")[0], run("region")[0]
    assert plain >= WEIGHTS + 4 * WITHIN
    assert region <= WEIGHTS + 5 * BOUNDARY + 4096 < plain


def test_a_region_within_a_region_is_part_of_it() -> None:
    assert run("nested")[0] <= WEIGHTS + 5 * BOUNDARY + 4096


@pytest.mark.parametrize("how", CONTEXTS)
def test_a_policy_keeps_what_it_says(how: str) -> None:
    size = run(how)[0]
    assert WEIGHTS + 4 * WITHIN <= size <= WEIGHTS + 4 * WITHIN + 9 * BOUNDARY + 4096


def test_a_dropout_in_a_region_is_drawn_once() -> None:
    run("region", dropout=0.5)


def test_a_policy_is_not_in_the_key(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two policies look alike to whoever reads the graph."""
    monkeypatch.setenv("LITZ_CACHE", "1")
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path))
    report = run("products")[2]
    assert any("what a checkpoint keeps" in line for line in report.cache)


def test_the_backward_holds_one_layer_at_a_time() -> None:
    """What is computed again is computed when it is due."""
    arenas = {}
    for how in ("plain", "region"):
        report = run(how)[2]
        arenas[how] = {built.part: built.arena_bytes for built in report.built}
    assert arenas["region"]["backward"] <= arenas["plain"]["backward"] + 3 * WITHIN


def test_contexts_of_the_users_own_run_in_eager() -> None:
    import contextlib
    import warnings

    def own() -> tuple[Any, Any]:
        return contextlib.nullcontext(), contextlib.nullcontext()

    x = torch.randn(4, 4, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.compile(lambda x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=own), backend="litz")(
            x
        ).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
