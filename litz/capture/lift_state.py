"""What a graph holds as its inputs.

In: a graph with parameters and buffers of its own. Out: the graph with an input for each, and their values.
"""

from __future__ import annotations

import torch
from torch import fx


def lift_state(graph_module: fx.GraphModule) -> tuple[fx.GraphModule, dict[str, torch.Tensor]]:
    """Parameters and buffers that the graph holds become inputs, after its own: it may write to them, as the step
    of an optimizer does. The graph, and what it held, by name, in that order."""
    held = {
        **dict(graph_module.named_parameters(remove_duplicate=False)),
        **dict(graph_module.named_buffers(remove_duplicate=False)),
    }
    if not any(n.op == "get_attr" and n.target in held for n in graph_module.graph.nodes):
        return graph_module, {}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    lifted: dict[str, fx.Node] = {}
    own = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    for node in own:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for node in graph_module.graph.nodes:
        if node.op == "get_attr" and node.target in held:
            if node.target not in lifted:
                lifted[node.target] = graph.placeholder(f"state_{len(lifted)}")
                lifted[node.target].meta = dict(node.meta)
            copies[node] = lifted[node.target]
    for node in graph_module.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(graph_module, graph), {name: held[name] for name in lifted}


__all__ = ["lift_state"]
