"""Order: a graph's nodes sorted so that each follows its inputs, otherwise as they were.

In: a graph whose nodes may precede their inputs after a rewrite. Out: the same graph in a valid order.
"""

from __future__ import annotations

from torch import fx


def sort_stably(graph: fx.Graph) -> None:
    """Moves what comes too late to right before the first node that needs it; nothing else moves, and so random draws
    keep their order."""
    placed: set[fx.Node] = set()
    for node in list(graph.nodes):
        todo, open_ = [node], set()
        while todo:
            current = todo[-1]
            missing = [i for i in current.all_input_nodes if i not in placed]
            if not missing:
                todo.pop()
                if current not in placed:
                    placed.add(current)
                    if current is not node:
                        node.prepend(current)
                continue
            open_.add(current)
            if not open_.isdisjoint(missing):
                raise ValueError(f"the graph has a cycle through {current.name}")
            todo += reversed(missing)


def depends_on(node: fx.Node, other: fx.Node, earliest: fx.Node) -> bool:
    """Whether `other` is among what `node` is computed from; nothing before `earliest` is looked at."""
    todo, seen = [node], {node}
    while todo:
        for source in todo.pop().all_input_nodes:
            if source is other:
                return True
            if source not in seen and not source < earliest:
                seen.add(source)
                todo.append(source)
    return False
