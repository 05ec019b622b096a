"""Graph modules that nobody runs.

In: a graph, and what holds its attributes. Out: a module whose Python text is written only when someone asks for it or
runs it. Writing takes longer than many a stage, and fx keeps each text for as long as the process lives.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from litz.graph.sizes import sizes_as_arguments


def graph_module(root: torch.nn.Module, graph: fx.Graph) -> fx.GraphModule:
    return _LazyGraphModule(root, graph)


def copied(graph: fx.Graph) -> fx.Graph:
    """The same nodes once more, their `meta` with them, for who writes into the graph."""
    fresh = fx.Graph()
    with sizes_as_arguments():
        found = fresh.graph_copy(graph, {}, return_output_node=True)
    assert isinstance(found, tuple)
    fresh.output(found[0])
    return fresh


__all__ = ["copied", "graph_module"]
