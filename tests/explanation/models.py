"""Models that raise the questions the page answers."""

from __future__ import annotations

import math

import torch
from torch import nn


class Attention(nn.Module):
    """Attention written out. With `capped`, its scores pass a tanh, which no fused attention has."""

    def __init__(self, capped: bool, width: int = 32, heads: int = 2):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.capped = heads, capped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        size = (batch, length, self.heads, width // self.heads)
        q, k, v = (linear(x).view(size).transpose(1, 2) for linear in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        if self.capped:
            scores = torch.tanh(scores) * 30  # the line that stops it
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))


class Broken(nn.Module):
    """Five graph breaks, of five kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e, self.f = (nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.a(x))
        float(x.detach().mean())  # a number of the host's
        x = torch.tanh(self.b(x))
        torch._dynamo.graph_break()
        x = torch.sigmoid(self.c(x))
        if x.sum() > 0:
            x = x + 1
        x = torch.relu(self.d(x))
        torch.save(x, "/dev/null")
        x = torch.relu(self.e(x))
        with open("/dev/null") as nothing:
            nothing.read()
        return self.f(x).softmax(-1)
