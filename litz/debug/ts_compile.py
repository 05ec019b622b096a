"""`litz.ts_compile`: a graph compiled by TorchScript, a second compiler that shares nothing with Litz.

In: a graph and inputs such as it is called with. Out: a callable that gives the same results in a tuple, or in whatever
the graph gives them; without gradients.

Where Litz and eager disagree and float64 cannot tell who is right, a third opinion can. TorchScript reads Python, and
is particular about it: operators are named without their overload, which it chooses itself; a device is a string; a
copy to another type is `to`; whatever is written to in place is computed anew instead, except for the inputs. What it
makes is frozen and optimised for inference. Its own autocast, which would cast what was cast when the graph was made,
is off whenever it is at work, and as it was afterwards.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from litz.errors import CompileError, source_of

aten = torch.ops.aten


def ts_compile(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """`graph_module` is a graph of torch or ATen calls, as Dynamo and ahead-of-time tracing make them; `inputs` may be
    fake: only their types, and for graphs of torch calls their shapes, are looked at."""
    if not isinstance(graph_module, fx.GraphModule):
        raise CompileError(
            f"litz.ts_compile takes a torch.fx.GraphModule, not a {type(graph_module).__name__}",
            hint="the graphs of a model are what torch.compile calls its backend with",
        )
    expected = sum(node.op == "placeholder" for node in graph_module.graph.nodes)
    if len(inputs) != expected:
        raise CompileError(f"litz.ts_compile was given {len(inputs)} inputs for a graph that has {expected}")
    graph_module = _of_operators(graph_module, inputs)
    written = _written_inputs(graph_module.graph)
    form = _flatten_results(graph_module.graph, [value for _, value in written])
    for node in graph_module.graph.nodes:
        _spell_for_script(node)
    for node, value in zip(_placeholders(graph_module.graph), inputs, strict=True):
        node.type = None if isinstance(value, torch.Tensor) else type(value)
    graph_module.graph.lint()
    graph_module.recompile()
    scripted = _scripted(graph_module)

    def run(*args: Any) -> Any:
        with torch.no_grad(), _without_autocast():
            flat = list(scripted(*args))
            for (place, _), value in zip(reversed(written), reversed(flat), strict=False):
                args[place].copy_(value)
            return pytree.tree_unflatten(flat[: len(flat) - len(written)], form)

    return run


def _of_operators(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """A graph of ATen operators, in which nothing but inputs is written to: the graph, copied, if it is one."""
    with torch.no_grad():
        if all(map(_is_plain_operator, graph_module.graph.nodes)):
            return _copy(graph_module)
        try:
            functional = torch.func.functionalize(graph_module, remove="mutations")
            return _copy(make_fx(functional, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs))
        except Exception as error:
            raise CompileError(
                f"the graph could not be traced to ATen operators for TorchScript: {type(error).__name__}: {error}",
                source=next(filter(None, map(source_of, graph_module.graph.nodes)), None),
                hint="call it with these inputs in eager first: what it raises there is raised here",
            ) from error


def _copy(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The graph with state of its own, which nobody else writes to."""
    root, graph = torch.nn.Module(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph_module.graph.nodes:
        copy = copies[node] = graph.node_copy(node, copies.__getitem__)
        copy.type = None  # what it was annotated with may have no name here
        if node.op != "get_attr":
            continue
        held: Any = graph_module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if not isinstance(held, torch.Tensor):
            raise CompileError(f"TorchScript gets no {type(held).__name__} as state of a graph", node=node)
        copy.target = str(node.target).replace(".", "_")
        root.register_buffer(copy.target, held.detach().clone())
    return fx.GraphModule(root, graph)


def _is_plain_operator(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output", "get_attr") or node.target is operator.getitem:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _written_inputs(graph: fx.Graph) -> list[tuple[int, fx.Node]]:
    """Inputs that the graph writes to, and their new values, which it is to give instead: TorchScript takes a write
    that nobody reads for dead."""
    places = {node: place for place, node in enumerate(_placeholders(graph))}
    found = []
    for node in list(graph.nodes):
        if node.target is aten.copy_.default and node.args[0] in places:
            found.append((places[node.args[0]], node.args[1]))
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
    return found


def _flatten_results(graph: fx.Graph, more: Sequence[fx.Node]) -> Any:
    """TorchScript's lists hold one type: the results, and more behind them, become a flat tuple. How the results were
    put together."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    flat, form = pytree.tree_flatten(output.args[0])
    output.args = ((*flat, *more),)
    return form


def _spell_for_script(node: fx.Node) -> None:
    if node.op != "call_function":
        return
    if not isinstance(node.target, torch._ops.OpOverload):
        if node.target is not operator.getitem:
            raise CompileError("TorchScript has no operator for this call", node=node)
        return
    if node.target is aten._to_copy.default:
        node.target, node.kwargs = aten.to, {"copy": True, **node.kwargs}
        if not {"dtype", "device", "layout"} & node.kwargs.keys():  # one of which `to` is chosen by
            node.kwargs = {"dtype": node.args[0].meta["val"].dtype, **node.kwargs}  # type: ignore[union-attr]
    else:
        node.target = node.target.overloadpacket
    node.args, node.kwargs = fx.node.map_aggregate((node.args, node.kwargs), _spelled)  # type: ignore[assignment]


def _spelled(argument: Any) -> Any:
    return str(argument) if isinstance(argument, torch.device) else argument


def _scripted(graph_module: fx.GraphModule) -> Callable[..., Any]:
    with torch.no_grad(), _without_autocast(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # later versions of torch call TorchScript deprecated; here it is a witness
        try:
            scripted = torch.jit.script(graph_module.eval())
            torch._C._jit_pass_remove_mutation(scripted.graph)
            return torch.jit.optimize_for_inference(torch.jit.freeze(scripted))
        except Exception as error:
            node = _named_in(str(error), graph_module.graph)
            raise CompileError(
                f"TorchScript refuses the graph: {str(error).strip()}",
                node=node,
                excerpt=graph_module.code.strip(),
                hint="ask another witness: eager, or the graph in float64",
            ) from error


def _named_in(message: str, graph: fx.Graph) -> fx.Node | None:
    """The node that the message shows the line of, if it shows one."""
    return next((node for node in graph.nodes if f"{node.name} = " in message), None)


@contextmanager
def _without_autocast() -> Iterator[None]:
    before = torch._C._jit_set_autocast_mode(False)
    try:
        with torch._C._DisableAutocast():
            yield
    finally:
        torch._C._jit_set_autocast_mode(before)


__all__ = ["ts_compile"]
