"""What is not compiled as one would wish, said: left to eager, or compiled for each combination of sizes.

In: a graph and why. Out: a callable that runs it all the same; a warning at the user's own line, once, and the reason
in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from litz.capture.run_graph import as_written
from litz.context import Context
from litz.errors import CaptureError, LitzError, OptionError, RuleError, UnsupportedPlatform, tell
from litz.loop.exact import exact

_THE_USERS_OWN = (OptionError, RuleError, UnsupportedPlatform)  # mistakes that nobody else can mend
_MOST_PROGRAMS = 8  # of one graph, for as many combinations of sizes
_warned: set[str] = set()


def must_be_raised(error: Exception, ctx: Context) -> bool:
    """Whether running the program in eager would hide what somebody must see: a mistake of the user's in what he told
    Litz; a defect of Litz's own, where it is being tested."""
    return isinstance(error, _THE_USERS_OWN) or (ctx.options.verify and not isinstance(error, CaptureError))


def left_to_eager(function: Callable[..., Any], reason: Exception | str, ctx: Context) -> Callable[..., Any]:
    """The function itself, and word of it."""
    text, source = _told(reason)
    ctx.leave(text)
    ctx.publish()
    warn_once(f"a graph is left to eager: {text}", source or ctx.occasion.source)
    return as_written(function)


def leave_backward(reason: Exception, ctx: Context) -> None:
    """The forward has run compiled, and its backward cannot: its graph runs as it is. Word of that."""
    text, source = _told(reason)
    ctx.leave(f"the backward: {text}")
    ctx.publish()
    warn_once(f"a backward is left to eager: {text}", source or ctx.occasion.source)


def _told(reason: Exception | str) -> tuple[str, str | None]:
    if isinstance(reason, CaptureError):
        return str(reason), reason.source
    if isinstance(reason, Exception):
        kind = "" if isinstance(reason, LitzError) else f"{type(reason).__name__}: "
        return f"a defect of Litz, please report it: {kind}{reason}", getattr(reason, "source", None)
    return reason, None


def warn_once(text: str, source: str | None = None) -> None:
    """At the line of the user's that `source` ("file:line: code") names, if any."""
    if text in _warned:
        return
    _warned.add(text)
    tell(text, source)


class PerSize:
    """A graph with sizes that vary, compiled anew for each combination of sizes it meets, up to a number of them.
    Floats that are arguments are numbers of such a combination, as whole numbers are."""

    def __init__(self, graph_module: fx.GraphModule, why: Exception, ctx: Context, compile: Callable[..., Any]):
        """`compile(function, args, ctx)` gives the program for arguments such as these."""
        self.graph_module, self.why, self.ctx, self.compile = graph_module, str(why), ctx, compile
        self.compiled: dict[tuple, Callable[..., Any]] = {}
        self.floats = _float_arguments(graph_module)
        ctx.note(f"compiled for each combination of sizes: {self.why}")
        ctx.publish()

    def __call__(self, *args: Any) -> Any:
        floats = {name: args[position].item() for name, position in self.floats.items()}
        key = (
            torch.is_grad_enabled(),
            exact(tuple(floats.values())),
            *((tuple(a.shape), a.stride(), a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args),
        )
        found = self.compiled.get(key)
        if found is None and len(self.compiled) < _MOST_PROGRAMS:
            found = self.compiled[key] = self.compile(_with_floats(self.graph_module, floats).forward, args, self.ctx)
        if found is None:
            most = f"it met over {_MOST_PROGRAMS} combinations of sizes, and would be compiled for each: {self.why}"
            found = self.compiled[key] = left_to_eager(self.graph_module.forward, most, self.ctx)
        return found(*args)


def _float_arguments(graph_module: fx.GraphModule) -> dict[str, int]:
    """Placeholders, and their positions, that hold a float of the caller's: Dynamo passes it in a tensor, and has the
    graph take it out."""
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    return {
        node.name: position
        for position, node in enumerate(placeholders)
        if isinstance(held := node.meta.get("example_value"), FakeTensor) and held.item_memo is not None
    }


def _with_floats(graph_module: fx.GraphModule, floats: Mapping[str, float]) -> fx.GraphModule:
    """The graph with these numbers written in it. A trace could not take them out of their tensors; and a cut around
    that would give a piece that takes a float, which is the same graph again."""
    if not floats:
        return graph_module
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for node in graph_module.graph.nodes:
        is_taken = node.op == "call_method" and node.target == "item" and node.args[0].name in floats
        copies[node] = floats[node.args[0].name] if is_taken else graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(graph_module, graph)


__all__ = ["PerSize", "leave_backward", "left_to_eager", "must_be_raised", "warn_once"]
