"""PyG: graph networks over graphs whose nodes and edges vary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv, global_mean_pool

from tests.ecosystem.same import close, compiled_whole, gradients, twins


class Net(nn.Module):
    def __init__(self, kind: Any):
        super().__init__()
        self.first, self.second = kind(8, 16), kind(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        x = self.first(x, edges).relu()
        x = self.second(x, edges).relu()
        return self.head(global_mean_pool(x, batch, size=4))


KINDS = {
    "gcn": GCNConv,
    "sage": SAGEConv,
    "gat": lambda i, o: GATConv(i, o // 2, heads=2),
    "gin": lambda i, o: GINConv(nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o))),
}


def graph(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    nodes, edges = 12 + 5 * seed, 40 + 13 * seed
    x = torch.randn(nodes, 8, generator=draw)
    return (
        x,
        torch.randint(0, nodes, (2, edges), generator=draw),
        torch.randint(0, 4, (nodes,), generator=draw).sort().values,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_graphs_that_vary(kind: str, training: bool) -> None:
    model, plain = twins(lambda: Net(KINDS[kind]))
    compiled = torch.compile(model, backend="litz")
    with compiled_whole(), torch.set_grad_enabled(training):
        for seed in range(6):
            arguments = graph(seed)
            results = []
            for each in (compiled, plain):
                each.zero_grad()
                results.append(each(*arguments))
                if training:
                    results[-1].pow(2).mean().backward()
            close(*results)
            for name, gradient in gradients(plain).items():
                close(dict(gradients(model))[name], gradient, factor=5)
