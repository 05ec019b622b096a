"""Graphs as Python, one line a node: text that runs, and reads back as the same graph.

In: a graph of calls on inputs. Out: the text of a function `forward`; and from such text, the graph. Unlike the text
that fx writes it has one spelling for each thing, so reading it needs no tracing: what a line calls, the node calls.

A graph that an operator such as `cond` is given is a method beside `forward`, `self.true_0`: of all graphs inside a
graph, wherever they stand, each has a name of its own.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from litz.errors import LitzError, ParseError

_CONSTANT_TYPES = (torch.dtype, torch.layout, torch.memory_format)
_MAKES_CONSTANTS = {"torch.device": torch.device, "slice": slice, "float": float, "complex": complex}
# Operators that are made for compilers alone, as what users call.
_AS_CALLED = {"tag_activation_checkpoint": "torch.utils.checkpoint.checkpoint"}


class Unwritable(LitzError, ValueError):
    """A graph that has no text, such as one that calls a function no module has under a name."""


# -- writing -----------------------------------------------------------------------------------------
def write_graph(graph: fx.Graph, name: str = "forward", method: bool = False) -> str:
    """The text of the function; a method has `self`."""
    names = ["self"] * method + [node.name for node in graph.nodes if node.op == "placeholder"]
    lines = [f"def {name}({', '.join(names)}):"]
    last = _last_uses(graph)
    for node in graph.nodes:
        if node.op in ("call_function", "call_method"):
            lines.append(f"    {node.name} = {_call(node)}" if node in last else f"    {_call(node)}")
        elif node.op == "output":
            lines.append(f"    return {_value(node.args[0], node)}")
        elif node.op not in ("placeholder", "get_attr"):
            raise Unwritable(
                "state and modules of a graph must be inputs before it is written", node=node,
                hint="pass the graph that a backend of torch.compile is given",
            )  # fmt: skip
    return "\n".join(lines)


def modules_of(graph: fx.Graph) -> list[str]:
    """What the text of the graph needs to import."""
    paths = [path_of(node.target) for node in graph.nodes if node.op == "call_function"]
    return sorted({"torch", *(path.partition(".")[0] for path in paths if "." in path)})


def inner_graphs(graph_module: fx.GraphModule) -> tuple[fx.Graph, dict[str, fx.Graph]]:
    """The graph, and all that calls in it are given, each under its name."""
    found: dict[str, fx.Graph] = {}

    def named(module: fx.GraphModule) -> fx.Graph:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        names: dict[str, str] = {}
        for node in module.graph.nodes:
            copies[node] = copy = graph.node_copy(node, copies.__getitem__)
            if node.op != "get_attr":
                continue
            inner = operator.attrgetter(node.target)(module)
            if not isinstance(inner, fx.GraphModule):
                raise Unwritable("what a graph inside a graph holds has no text", node=node)
            if node.target not in names:
                names[node.target] = _free_name(node.target.rpartition(".")[2], found)
                found[names[node.target]] = fx.Graph()  # the name is taken
                found[names[node.target]] = named(inner)
            copy.target = names[node.target]
        return graph

    return named(graph_module), found


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    candidates = (name, *(f"{name}_{number}" for number in range(len(taken) + 1)))
    return next(each for each in candidates if each not in taken and each != "forward")


def reached(graph: fx.Graph, inner: Mapping[str, fx.Graph]) -> dict[str, fx.Graph]:
    """Of the graphs inside, those that are called."""
    found: dict[str, fx.Graph] = {}
    todo = list(_names_in(graph))
    for name in todo:
        if name not in found:
            found[name] = inner[name]
            todo += _names_in(inner[name])
    return found


def _names_in(graph: fx.Graph) -> Iterator[str]:
    return (node.target for node in graph.nodes if node.op == "get_attr")


def _last_uses(graph: fx.Graph) -> set[fx.Node]:
    return {used for node in graph.nodes for used in node.all_input_nodes}


def _call(node: fx.Node) -> str:
    arguments = [_value(a, node) for a in node.args] + [f"{k}={_value(v, node)}" for k, v in node.kwargs.items()]
    if node.op == "call_method":
        return f"{arguments[0]}.{node.target}({', '.join(arguments[1:])})"
    try:
        return f"{path_of(node.target)}({', '.join(arguments)})"
    except Unwritable as why:
        raise Unwritable(why.message, node=node, hint=why.hint) from None


def path_of(function: Any) -> str:
    """The name under which modules have the function."""
    if isinstance(function, torch._ops.OpOverload):
        namespace, _, name = function._schema.name.partition("::")
        return f"torch.ops.{namespace}.{name}.{function._overloadname}"
    if isinstance(function, torch._ops.OpOverloadPacket):
        return f"torch.ops.{function._qualified_op_name.replace('::', '.')}"
    if isinstance(function, torch._ops.HigherOrderOperator):
        return _AS_CALLED.get(function.name(), f"torch.ops.higher_order.{function.name()}")
    name = getattr(function, "__name__", "")
    if function is not None and getattr(operator, name, None) is function:
        return f"operator.{name}"
    try:
        path = fx.node._get_qualified_name(function)
        found = resolve(path)
    except (ImportError, AttributeError, RuntimeError, ParseError):
        found = path = None
    if found is not function or path is None:
        raise Unwritable(
            f"no module has the function {function!r} under its name",
            hint="a graph is written as calls of functions that another process can import: move it to a module",
        )
    return path.removeprefix("builtins.")


def _value(value: Any, at: fx.Node) -> str:
    match value:
        case fx.Node(op="get_attr"):
            return f"self.{value.target}"
        case fx.Node():
            return value.name
        case tuple():
            items = [_value(v, at) for v in value]
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        case list():
            return f"[{', '.join(_value(v, at) for v in value)}]"
        case dict():
            return f"{{{', '.join(f'{k!r}: {_value(v, at)}' for k, v in value.items())}}}"
        case slice():
            return f"slice({_value(value.start, at)}, {_value(value.stop, at)}, {_value(value.step, at)})"
        case torch.device():
            return f"torch.device({str(value)!r})"
        case bool() | int() | str() | None:
            return repr(value)
        case float():
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        case complex():
            return f"complex({_value(value.real, at)}, {_value(value.imag, at)})"
        case _ if value is ...:
            return "..."
        case _ if isinstance(value, _CONSTANT_TYPES):
            return str(value)
        case _ if callable(value):
            return path_of(value)
    raise Unwritable(f"an argument of type {type(value).__name__} has no text", node=at)


# -- reading -----------------------------------------------------------------------------------------
def read_graph(text: str) -> fx.Graph:
    """The graph of the one function `forward` in the text, with or without `self`."""
    return read_graphs(text)[0]


def read_graphs(text: str) -> tuple[fx.Graph, dict[str, fx.Graph]]:
    """That graph, and those of the other methods."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ParseError(f"this is no Python: {error}") from error
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    whole = [n for n in functions if n.name == "forward"]
    if len(whole) != 1:
        raise ParseError(f"the text has {len(whole)} functions `forward`, and a graph is one")
    methods = [n for n in functions if n.name != "forward" and [a.arg for a in n.args.args[:1]] == ["self"]]
    return _Reader(whole[0]).graph, {method.name: _Reader(method).graph for method in methods}


class _Reader:
    def __init__(self, function: ast.FunctionDef):
        self.graph = fx.Graph()
        self.nodes: dict[str, fx.Node] = {}
        for argument in function.args.args:
            if argument.arg != "self":
                self.nodes[argument.arg] = self.graph.placeholder(argument.arg)
        for statement in function.body:
            self._statement(statement)
        self.graph.lint()

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Return(value=ast.expr() as value):
                self.graph.output(self._value(value))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                self.nodes[name] = self._call(call, name)
            case ast.Expr(value=ast.Call() as call):
                self._call(call, None)
            case _:
                raise ParseError(f"a line is one call, and this is none: {ast.unparse(statement)}")

    def _call(self, call: ast.Call, name: str | None) -> fx.Node:
        args = tuple(map(self._value, call.args))
        kwargs = {k.arg: self._value(k.value) for k in call.keywords if k.arg is not None}
        match call.func:
            case ast.Attribute(value=ast.Name(id=owner), attr=method) if owner in self.nodes:
                return self.graph.create_node("call_method", method, (self.nodes[owner], *args), kwargs, name)
            case function:
                return self.graph.create_node("call_function", resolve(ast.unparse(function)), args, kwargs, name)

    def _value(self, value: ast.expr) -> Any:
        match value:
            case ast.Name(id=name) if name in self.nodes:
                return self.nodes[name]
            case ast.Constant(value=constant):
                return constant
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand)
            case ast.Tuple(elts=items):
                return tuple(map(self._value, items))
            case ast.List(elts=items):
                return list(map(self._value, items))
            case ast.Dict(keys=keys, values=values):
                return {self._value(k): self._value(v) for k, v in zip(keys, values, strict=True) if k is not None}
            case ast.Call(func=function, args=args) if ast.unparse(function) in _MAKES_CONSTANTS:
                return _MAKES_CONSTANTS[ast.unparse(function)](*map(self._value, args))
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self.graph.create_node("get_attr", name)
            case ast.Attribute() | ast.Name():
                return resolve(ast.unparse(value))
        raise ParseError(f"this is no argument of a call: {ast.unparse(value)}")


def resolve(path: str) -> Any:
    """What modules have under the name."""
    first, *rest = path.split(".")
    found: Any = getattr(builtins, first, None) if not rest else None
    if found is None:
        try:
            found = importlib.import_module(first)
        except ImportError as error:
            raise ParseError(f"{path} cannot be imported: {error}") from error
    for at, name in enumerate(rest, 1):
        if not hasattr(found, name):
            raise ParseError(f"{'.'.join([first, *rest[:at]])} does not exist")
        found = getattr(found, name)
    return found


def graph_module(graph: fx.Graph, inner: Mapping[str, fx.Graph] | None = None) -> fx.GraphModule:
    """`inner`: the graphs that it is given to call."""
    root = torch.nn.Module()
    for name in _names_in(graph):
        setattr(root, name, graph_module((inner or {})[name], inner))
    return fx.GraphModule(root, graph)


__all__ = [
    "Unwritable", "graph_module", "inner_graphs", "modules_of", "path_of", "reached", "read_graph", "read_graphs",
    "resolve", "write_graph",
]  # fmt: skip
