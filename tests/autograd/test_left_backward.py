"""A backward that cannot be compiled, once its forward has run: its graph runs as it is, and that is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import litz
from litz import pipeline


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.dropout(F.gelu(self.norm(self.first(x))), 0.3)).softmax(-1)


@pytest.fixture
def no_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_graph = pipeline.compile_graph

    def fails(graph: Any, ctx: Any, part: str = "forward", *rest: Any, **how: Any) -> Any:
        if part == "backward":
            raise KeyError("v31")
        return compile_graph(graph, ctx, part, *rest, **how)

    monkeypatch.setattr(pipeline, "compile_graph", fails)
    torch._dynamo.reset()


def gradients(run: Any, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(3)
    y = run(x)
    y.pow(2).sum().backward()
    found = [y.detach(), *(p.grad for p in model.parameters())]
    model.zero_grad()
    return found


def test_its_graph_runs_as_it_is(no_backward: None) -> None:
    model, x = Block(), torch.randn(5, 12)
    run = torch.compile(model, backend="litz")
    wanted = gradients(model, model, x)
    with pytest.warns(UserWarning, match=r"a backward is left to eager: a defect of Litz.*KeyError: 'v31'"):
        torch.testing.assert_close(gradients(run, model, x), wanted)
    assert "the backward: a defect" in str(litz.last_report().left_to_eager)
    torch.testing.assert_close(gradients(run, model, x), wanted)


def test_where_litz_is_tested_it_is_raised(no_backward: None) -> None:
    x = torch.randn(7, requires_grad=True)
    y = torch.compile(lambda x: x.sin() * x, backend="litz", options={"verify": True})(x)
    with pytest.raises(KeyError, match="v31"):
        y.sum().backward()


def test_while_the_forward_has_not_run_all_is_left(no_backward: None) -> None:
    x = torch.randn(7, requires_grad=True)
    with pytest.warns(UserWarning, match="a graph is left to eager"):
        y = torch.compile(lambda x: x.cos() * x, backend="litz", options={"backward": "eager"})(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() - x.detach() * x.detach().sin())
