"""Peak bytes of live activations when the functional ATen graph of a model runs operator by operator.

In: a module and its arguments. Out: the bytes an eager run of that graph needs at its peak.

The graph is run with every value dropped after its last use. Counted are the storages of intermediate
results and outputs; inputs and parameters are the caller's. A view shares its base's storage, which
stays alive as long as either.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


def peak_of_model(module: torch.nn.Module, kwargs: dict[str, Any]) -> int:
    """The largest peak among the graphs Dynamo finds in the model."""
    peaks: list[int] = []

    def measuring(graph_module: fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        # Views stay views: replaced by copies, they would count as memory that eager does not take.
        functional = make_fx(torch.func.functionalize(graph_module, remove="mutations"))(*inputs)
        functional.graph.eliminate_dead_code()
        peaks.append(peak_of_graph(functional, inputs))
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(module, backend=measuring)(**kwargs)
    torch._dynamo.reset()
    return max(peaks)


def peak_of_graph(graph_module: fx.GraphModule, inputs: list[Any]) -> int:
    """Runs the graph and follows the bytes of live storages."""
    nodes = list(graph_module.graph.nodes)
    # A node that nothing uses is dropped right after it has run.
    last_use = {node: position for position, node in enumerate(nodes)}
    for position, node in enumerate(nodes):
        for argument in node.all_input_nodes:
            last_use[argument] = position
    dying: dict[int, list[fx.Node]] = {}
    for node, position in last_use.items():
        dying.setdefault(position, []).append(node)

    waiting = iter(inputs)
    values: dict[fx.Node, Any] = {}
    foreign: set[int] = set()
    holders: Counter[int] = Counter()
    live = peak = 0
    for position, node in enumerate(nodes):
        values[node] = result = _run(node, graph_module, values, waiting)
        if node.op in ("placeholder", "get_attr"):
            foreign.update(storage for storage, _ in _storages(result))
        for storage, size in _storages(result):
            if storage not in foreign:
                live += size if holders[storage] == 0 else 0
                holders[storage] += 1
        peak = max(peak, live)
        if node.op == "output":
            break
        for dead in dying.get(position, ()):
            if dead.op in ("placeholder", "get_attr"):
                continue
            for storage, size in _storages(values.pop(dead)):
                if storage not in foreign:
                    holders[storage] -= 1
                    live -= size if holders[storage] == 0 else 0
    return peak


def _run(node: fx.Node, graph_module: fx.GraphModule, values: dict[fx.Node, Any], waiting: Any) -> Any:
    if node.op == "placeholder":
        return next(waiting)
    if node.op == "get_attr":
        return getattr(graph_module, str(node.target))
    arguments = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "output":
        return arguments[0]
    assert node.op == "call_function" and callable(node.target), f"{node.op} in a functional graph"
    return node.target(*arguments[0], **arguments[1])


def _storages(value: Any) -> list[tuple[int, int]]:
    """Distinct storages of a value, as (identity, bytes)."""
    found = {}
    for tensor in pytree.tree_leaves(value):
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return list(found.items())


if __name__ == "__main__":
    from benchmarks.models import MODELS, build

    for name in MODELS:
        print(f"{name}: {peak_of_model(*build(name)):,} bytes")
