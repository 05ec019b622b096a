"""Order: a graph's nodes sorted so that each follows its inputs, otherwise as they were.

In: a graph whose nodes may precede their inputs after a rewrite. Out: the same graph in a valid order.
"""

from __future__ import annotations

from torch import fx


def sort_stably(graph: fx.Graph) -> None:
    """Moves nodes that come too early to right after the last of their inputs; nothing else moves."""
    placed: set[fx.Node] = set()
    waiting: dict[fx.Node, list[fx.Node]] = {}
    left = 0
    for node in list(graph.nodes):
        missing = next((i for i in node.all_input_nodes if i not in placed), None)
        if missing is not None:
            waiting.setdefault(missing, []).append(node)
            left += 1
            continue
        last, todo = node, [node]
        placed.add(node)
        while todo:
            for ready in waiting.pop(todo.pop(0), ()):
                missing = next((i for i in ready.all_input_nodes if i not in placed), None)
                if missing is not None:
                    waiting.setdefault(missing, []).append(ready)
                    continue
                last.append(ready)
                last = ready
                placed.add(ready)
                todo.append(ready)
                left -= 1
    if left:
        raise ValueError(f"the graph has a cycle through {next(iter(waiting)).name}")


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
