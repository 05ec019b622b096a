"""Graph modules that nobody runs.

In: a graph, and what holds its attributes. Out: a module whose Python text is written only when someone asks for it or
runs it. Writing takes longer than many a stage, and fx keeps each text for as long as the process lives.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule


def graph_module(root: torch.nn.Module, graph: fx.Graph) -> fx.GraphModule:
    return _LazyGraphModule(root, graph)


__all__ = ["graph_module"]
