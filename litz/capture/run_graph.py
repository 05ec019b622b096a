"""Run a torch-level graph node by node: for the trace, and as the user wrote it.

In: Dynamo's graph and its arguments. Out: what it returns; where it raises, the thread as it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils.checkpoint import checkpoint

from litz.capture.checkpoint import contexts_of, policy_of
from litz.capture.left_as_found import Entered, left_as_found

if TYPE_CHECKING:
    from litz.capture.record import Recorder


def checkpointed(module: fx.GraphModule, *args: Any) -> Any:
    """A region under `torch.utils.checkpoint`: where a recorder looks on a call like any other, which the split may
    know about, and by itself what the user has written."""
    return _under_checkpoint(module, module, args)


def _under_checkpoint(region: fx.GraphModule, run: Callable[..., Any], args: Sequence[Any]) -> Any:
    if not torch.is_grad_enabled():
        return run(*args)
    contexts = contexts_of(region)
    own = {} if contexts is None else {"context_fn": contexts}
    return checkpoint(run, *args, use_reentrant=False, **own)


def run_graph(graph_module: fx.GraphModule, args: Sequence[Any], recorder: Recorder | None = None) -> Any:
    """A recorder is told which line of the user's each node is."""
    with left_as_found() as entered:
        return _run(graph_module, args, recorder, entered)


def _run(graph_module: fx.GraphModule, args: Sequence[Any], recorder: Recorder | None, entered: Entered) -> Any:
    env: dict[fx.Node, Any] = {}
    inputs = iter(args)
    last_use = _last_uses(graph_module.graph)
    for node in graph_module.graph.nodes:
        if recorder is not None:
            recorder.begins(node)
        if node.op == "placeholder":
            env[node] = next(inputs)
        elif node.op == "output":
            return fx.node.map_arg(node.args[0], env.__getitem__)
        elif node.op == "get_attr":
            value: Any = graph_module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            env[node] = value
        else:
            given = fx.node.map_arg(node.args, env.__getitem__)
            named = fx.node.map_arg(node.kwargs, env.__getitem__)
            if node.target is checkpointed:
                env[node] = _run_region(given[0], given[1:], recorder)
            elif node.target in _DROPOUTS and (kept := _not_dropped(*given, **named)) is not None:
                env[node] = kept
            elif node.op == "call_function":
                env[node] = node.target(*given, **named)
            elif node.op == "call_method":
                env[node] = getattr(given[0], node.target)(*given[1:], **named)
            else:
                env[node] = graph_module.get_submodule(node.target)(*given, **named)
            entered.saw(env[node])
        for dead in last_use.get(node, ()):
            del env[dead]
    return None


_DROPOUTS = (torch.dropout, torch.nn.functional.dropout)


def _not_dropped(input: Any, p: Any = 0.5, train: Any = True, inplace: Any = False, training: Any = None) -> Any:
    """The tensor that a dropout which is off gives back, itself, as in eager: behind the dispatcher in Python, where
    sizes are symbols, it would be a copy. None where it is on, or refused."""
    on = train if training is None else training
    is_share = isinstance(p, (int, float, torch.SymFloat)) and bool(0 <= p <= 1)
    return input if is_share and (on is False or bool(p == 0)) else None


def _run_region(body: fx.GraphModule, args: Sequence[Any], recorder: Recorder | None) -> Any:
    if recorder is None:
        return _under_checkpoint(body, lambda *given: run_graph(body, given), args)
    return recorder.in_region(lambda: run_graph(body, args, recorder), policy_of(body))


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    seen: set[fx.Node] = set()
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                found.setdefault(node, []).append(used)
    return found


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """The user's own function, to run in the compiled one's place. A graph that switches something in the thread is run
    node by node; any other function has its own ways to switch it back."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, fx.GraphModule):
        return function
    nodes = (node for m in owner.modules() if isinstance(m, fx.GraphModule) for node in m.graph.nodes)
    if any(switches(node) for node in nodes):
        return lambda *args: run_graph(owner, args)
    _LazyGraphModule.force_recompile(owner)  # its code itself, and not a call of it that prints what is raised
    return owner.forward


def as_written_once_called(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, for those who may never call it: its text is written when they do."""
    written = lru_cache(maxsize=1)(lambda: as_written(function))
    return lambda *args: written()(*args)


def turns_gradients_on(function: Callable[..., Any]) -> bool:
    """Whether it may record gradients though it is called where they are off."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, fx.GraphModule):
        return True
    return any(node.target is torch._C._set_grad_enabled and node.args[0] for node in owner.graph.nodes)


def switches(node: fx.Node) -> bool:
    """Whether the node switches something in the thread."""
    return getattr(node.target, "__name__", None) in _SWITCHES


def level_change(node: fx.Node) -> int:
    """1 where the node enters a level of a transform, -1 where it leaves one."""
    name = getattr(node.target, "__name__", None)
    return (name in _LEVELS) - (name in _LEVELS.values())


def of_forward_mode(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that come of a derivative which the graph takes forwards."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if getattr(node.target, "__name__", None) == "_unpack_dual" or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


# Functions of torch by name: they move among its modules.
_LEVELS = {
    "_grad_increment_nesting": "_grad_decrement_nesting",
    "_vmap_increment_nesting": "_vmap_decrement_nesting",
    "_jvp_increment_nesting": "_jvp_decrement_nesting",
    "_saved_tensors_hooks_disable": "_saved_tensors_hooks_enable",  # around each level that has gradients
    "pop_dynamic_layer_stack": "push_dynamic_layer_stack",
}
_SWITCHES = frozenset({
    *_LEVELS, *_LEVELS.values(), "_set_grad_enabled", "_enter_autocast", "_exit_autocast", "_enter_inference_mode",
    "_exit_inference_mode", "_set_fwd_grad_enabled", "_enter_dual_level", "_exit_dual_level",
    "set_inplace_requires_grad_allowed",
})  # fmt: skip

__all__ = [
    "as_written", "as_written_once_called", "checkpointed", "level_change", "of_forward_mode", "run_graph", "switches",
    "turns_gradients_on",
]  # fmt: skip
