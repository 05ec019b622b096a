"""Models that faults are planted for: their graphs hold what the faults are about, among other things."""

from __future__ import annotations

from pathlib import Path

import torch

import litz


class Block(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        self.norm, self.gate = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.second(torch.tanh(self.first(self.norm(x))))
        weights = torch.exp(-inside.square()) / 2
        return x + torch.sigmoid(self.gate(x)) * inside + weights @ weights.transpose(-2, -1) @ x


class Model(torch.nn.Module):
    def __init__(self, blocks: int = 1) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 12)
        self.blocks = torch.nn.ModuleList(Block(12) for _ in range(blocks))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return x.mean(1) @ self.table.weight.mT


def saved(folder: Path, setup: str = "", training: bool = False, blocks: int = 1) -> Path:
    """The model's graph, as `litz.debug_compile` saves it."""
    torch.manual_seed(0)
    model, ids = Model(blocks), torch.arange(35).view(5, 7) % 50
    torch._dynamo.reset()

    def backend(graph_module, inputs):  # type: ignore[no-untyped-def]
        return litz.debug_compile(graph_module, inputs, folder=folder, setup=setup)

    with torch.set_grad_enabled(training):
        torch.compile(model, backend=backend, fullgraph=True)(ids)
    return folder / "graph_0"
