"""Capture a function, rewrite it before autograd, and compare with eager: results, strides, gradients."""

from __future__ import annotations

from typing import Any

import torch

from litz.graph.rewrite_pre_grad import rewrite_pre_grad
from tests.graph.rewriting import context


class Done:
    """A function after rewriting: what fired, what nearly did, and its graph."""

    def __init__(self, function: Any, inputs: list[torch.Tensor], grad: bool = True, tolerance: float = 1e-4):
        self.ctx = context()
        self.graphs: list[torch.fx.Graph] = []
        leaves = [x.detach().clone().requires_grad_(grad and x.is_floating_point()) for x in inputs]

        def backend(graph_module, given):
            rewritten = rewrite_pre_grad(graph_module.forward, given, self.ctx)
            self.graphs.append(rewritten.__self__.graph)
            return rewritten

        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend)
        mine, eager = (_numbers(f, leaves, grad) for f in (compiled, function))
        for new, old in zip(mine, eager, strict=True):
            assert new.stride() == old.stride()
            torch.testing.assert_close(new, old, rtol=tolerance, atol=tolerance / 10)

    @property
    def fired(self) -> dict[str, int]:
        return {f.rule: f.times for f in self.ctx.firings}

    @property
    def why(self) -> str:
        return "; ".join(miss.why for miss in self.ctx.near_misses)

    def count(self, target: Any) -> int:
        return sum(n.target is target for graph in self.graphs for n in graph.nodes)


def _numbers(function: Any, leaves: list[torch.Tensor], grad: bool) -> list[torch.Tensor]:
    torch.manual_seed(1)
    given = [x.detach().clone().requires_grad_(x.requires_grad) for x in leaves]
    with torch.set_grad_enabled(grad):
        # Leaves may not be written to; their copies may.
        found = function(*[x * 1 if x.is_floating_point() else x.clone() for x in given])
    found = list(found) if isinstance(found, (tuple, list)) else [found]
    moving = [r for r in found if r.requires_grad]
    if not moving:
        return found
    weights = [torch.linspace(-1, 1, r.numel()).reshape(r.shape) for r in moving]
    learned = [x for x in given if x.requires_grad]
    gradients = torch.autograd.grad(moving, learned, weights, allow_unused=True)
    return [r.detach() for r in found] + [g for g in gradients if g is not None]
