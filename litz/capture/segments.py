"""Graphs that cannot be one program, cut where the host must look at a value before it goes on.

In: Dynamo's graph. Out: the same graph as a sequence of pieces. Each piece is compiled by itself when it is first
called; between them stand the operators that decide something at run time: control flow (`cond`, `while_loop`,
`scan`, `map`), whose bodies are compiled in turn, and operators whose results have sizes that depend on data; the
user's own operators that write to their arguments, of which nothing else is known; what gives a tensor other memory
(`x.data = y`); and whatever could not be traced, such as an operator whose gradient looks at data or is sparse.

Dynamo captures the pieces again: their sizes are then sizes of inputs, with its guards and its dynamic shapes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from litz.capture.pieces import is_little
from litz.capture.run_graph import as_written, level_change, switches
from litz.compat import captures_transforms_again

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
# What Dynamo makes of `x.data = y`; by name, since the second moves among its modules.
_OTHER_MEMORY = ("set_", "_lower_version_count_by_1")
CONTROL_FLOW = ("cond", "while_loop", "scan", "associative_scan", "map_impl")


def standing_alone(graph_module: fx.GraphModule) -> frozenset[fx.Node]:
    """The nodes that cannot be part of a program."""
    return frozenset(node for node in graph_module.graph.nodes if _stands_alone(node))


def cut_at(graph_module: fx.GraphModule, name: str | None, backend: Backend) -> Callable[..., Any] | None:
    """The graph in pieces around the node of that name, and around others that are the same call on other tensors; None
    where no piece would be left to compile."""
    calls = {_call_of(node) for node in graph_module.graph.nodes if node.name == name}
    units = [unit for unit in _units(graph_module.graph) if any(_call_of(node) in calls for node in unit)]
    alone = frozenset(node for unit in units for node in unit)
    if not alone or is_little([node for node in graph_module.graph.nodes if _runs(node) and node not in alone]):
        return None
    return cut(graph_module, alone, backend)


def cut(graph_module: fx.GraphModule, alone: frozenset[fx.Node], backend: Backend) -> Callable[..., Any]:
    """The graph in pieces around those nodes; `backend` compiles what Dynamo makes of each."""
    root = torch.nn.Module()
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    pending: list[fx.Node] = []

    def flush() -> None:
        if pending:
            _place(pending, graph_module, graph, root, copies, backend)
            pending.clear()

    for unit in _units(graph_module.graph):
        no_computation = len(unit) == 1 and (unit[0].op in ("placeholder", "output") or switches(unit[0]))
        if no_computation or not alone.isdisjoint(unit):
            flush()
            for node in unit:
                _bring_attributes(node, graph_module, graph, root, copies, backend)
                copies[node] = graph.node_copy(node, copies.__getitem__)
        else:
            pending += unit
    return as_written(fx.GraphModule(root, graph).forward)


def _call_of(node: fx.Node) -> str:
    """What is called, tensors left out."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda _: None)
    return f"{node.op} {node.target} {args} {kwargs}"


def _units(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """The nodes, those of a transform (from its first level to the last) together: it cannot be entered in one piece
    and left in another. What the graph holds is not among them: it is copied where it is used."""
    unit: list[fx.Node] = []
    levels = 0
    for node in graph.nodes:
        if node.op == "get_attr":
            continue
        unit.append(node)
        levels += level_change(node)
        if levels == 0:
            yield unit
            unit = []
    if unit:
        yield unit


def _stands_alone(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return node.target.name() in CONTROL_FLOW
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        return node.target.namespace not in ("aten", "prims")
    if node.op not in ("call_function", "call_method"):
        return False
    if getattr(node.target, "__name__", node.target) in _OTHER_MEMORY:
        return True
    made = _unbacked(node)
    return bool(made) and not made <= set().union(*(_unbacked(n) for n in node.all_input_nodes))


def _unbacked(node: fx.Node) -> set[Any]:
    """The sizes known only at run time in a node's value."""
    value = node.meta.get("example_value")
    leaves = [x for x in pytree.tree_leaves(value) if isinstance(x, (torch.Tensor, torch.SymInt, torch.SymFloat))]
    return set().union(*(free_unbacked_symbols(x) for x in leaves))


def _place(
    nodes: list[fx.Node], graph_module: fx.GraphModule, outer: fx.Graph, root: torch.nn.Module,
    copies: dict[fx.Node, fx.Node], backend: Backend,
) -> None:  # fmt: skip
    """One piece made of the nodes, and its call in the outer graph."""
    own = set(nodes)
    inner = fx.Graph()
    inside: dict[fx.Node, fx.Node] = {}
    inputs = [n for n in _used_by(nodes) if n not in own and n.op != "get_attr"]
    for node in inputs:
        inside[node] = inner.placeholder(node.name)
    for node in nodes:
        for used in node.all_input_nodes:
            if used.op == "get_attr" and used not in inside:
                inside[used] = inner.node_copy(used)
        inside[node] = inner.node_copy(node, inside.__getitem__)
    results = [n for n in nodes if any(user not in own for user in n.users)]
    inner.output(tuple(inside[n] for n in results))
    module = fx.GraphModule(graph_module, inner)
    levels = any(level_change(node) for node in nodes)
    if not is_little(nodes) and (not levels or captures_transforms_again()):
        module = _Piece(module, inputs, backend)
    call = _call(module, root, outer, [copies[n] for n in inputs])
    for position, node in enumerate(results):
        copies[node] = outer.call_function(operator.getitem, (call, position))


def _used_by(nodes: list[fx.Node]) -> list[fx.Node]:
    return list(dict.fromkeys(used for node in nodes for used in node.all_input_nodes))


def _runs(node: fx.Node) -> bool:
    return node.op.startswith("call")


def _call(module: Any, root: torch.nn.Module, outer: fx.Graph, arguments: list[fx.Node]) -> fx.Node:
    name = f"piece_{len(list(root.children()))}"
    root.add_module(name, module)
    return outer.call_module(name, tuple(arguments))


def _bring_attributes(
    node: fx.Node, graph_module: fx.GraphModule, outer: fx.Graph, root: torch.nn.Module,
    copies: dict[fx.Node, fx.Node], backend: Backend,
) -> None:  # fmt: skip
    """What the graph holds and the node uses: bodies of control flow are compiled, all else stays as it is."""
    for used in node.all_input_nodes:
        if used.op != "get_attr":
            continue
        value: Any = graph_module
        for part in str(used.target).split("."):
            value = getattr(value, part)
        name = str(used.target).replace(".", "_")
        if not hasattr(root, name):
            setattr(root, name, _Body(value, backend) if isinstance(value, fx.GraphModule) else value)
        copies[used] = outer.get_attr(name)


def _compiled(module: fx.GraphModule, backend: Backend) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        return module(*args)

    # Dynamo keeps what it compiled by code object, and passes over the generated code of a graph made under it.
    own = FunctionType(call.__code__.replace(), call.__globals__, "piece", None, call.__closure__)
    return torch.compile(own, backend=backend)


class _Piece(torch.nn.Module):
    def __init__(self, module: fx.GraphModule, inputs: list[fx.Node], backend: Backend):
        super().__init__()
        self.compiled = _compiled(module, backend)
        # Dimensions that depend on data: another size at every call, so never compiled for one.
        self.varying = [
            (position, dim)
            for position, node in enumerate(inputs)
            if isinstance(value := node.meta.get("example_value"), torch.Tensor)
            for dim, size in enumerate(value.shape)
            if free_unbacked_symbols(size)
        ]

    def forward(self, *args: Any) -> Any:
        for position, dim in self.varying:
            torch._dynamo.maybe_mark_dynamic(args[position], dim)
        return self.compiled(*args)


class _Body(torch.nn.Module):
    """The body of a control-flow operator: compiled, unless the operator traces it to differentiate it."""

    def __init__(self, module: fx.GraphModule, backend: Backend):
        super().__init__()
        self.plain = module
        self.compiled = _compiled(module, backend)

    def forward(self, *args: Any) -> Any:
        traced = torch._C._len_torch_dispatch_stack() > 0 or torch._C._functorch.peek_interpreter_stack() is not None
        differentiated = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        return self.plain(*args) if traced or differentiated else self.compiled(*args)


__all__ = ["cut", "cut_at", "standing_alone"]
