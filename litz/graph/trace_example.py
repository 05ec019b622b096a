"""Tracing a function on example values to a functional ATen graph.

In: a Python function, and example values (fake or real tensors, numbers). Out: a graph module whose inputs
are the tensors among the values; everything else is burnt in.

Three ways to trace: the function itself, the function with its backward (inputs, then one tangent for each
differentiable output; outputs, then one gradient for each differentiable input), and the function with its
forward-mode tangents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx

from litz.graph.eager_strides import FLASH_CPU, as_eager_lays_out
from litz.graph.sizes import SYMBOLIC, Extent, size_of, sizes_as_arguments

aten = torch.ops.aten

# What autograd leaves in a joint trace for its own bookkeeping.
_BOOKKEEPING = (aten.detach.default, aten.alias.default)


def trace_example(function: Callable[..., Any], values: Sequence[Any], mode: FakeTensorMode) -> fx.GraphModule:
    """`function` traced under `mode`, on the tensors among `values`."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]

    def flat(*given: torch.Tensor) -> Any:
        supply = iter(given)
        return function(*(next(supply) if isinstance(v, torch.Tensor) else v for v in values))

    fakes = [_fake(t, mode) for t in tensors]
    # Its code is never run, so it need not be written.
    with mode, torch.no_grad(), _use_lazy_graph_module(True):
        traced = make_fx(torch.func.functionalize(flat, remove="mutations"))(*fakes, *_symbols([*fakes, *values], mode))
    return _cleaned(traced)


def forward_only(
    function: Callable[..., Any], values: Sequence[Any], mode: FakeTensorMode | None = None
) -> fx.GraphModule:
    return trace_example(function, values, mode or FakeTensorMode())


def joint(
    function: Callable[..., Any], values: Sequence[Any], mode: FakeTensorMode | None = None, only: int | None = None
) -> fx.GraphModule:
    """Inputs and tangents to outputs and gradients, for all floating-point tensors or those among the first `only`."""
    mode = mode or FakeTensorMode()
    with mode, torch.no_grad():
        fakes = [_fake(v, mode) if isinstance(v, torch.Tensor) else v for v in values]
        outputs = _listed(function(*fakes))
        tangents = [torch.empty_like(o) for o in outputs if _differentiable(o)]
    tensors = [f for f in fakes if isinstance(f, torch.Tensor)]

    def both(*given: torch.Tensor) -> list[Any]:
        supply = iter(given[: len(tensors)])
        inputs = [next(supply) if isinstance(v, torch.Tensor) else v for v in values]
        moving = [_differentiable(i) and (only is None or at < only) for at, i in enumerate(inputs)]
        inputs = [i.detach().requires_grad_(True) if m else i for i, m in zip(inputs, moving, strict=True)]
        with torch.enable_grad():
            results = _listed(function(*inputs))
            wanted = [i for i, m in zip(inputs, moving, strict=True) if m]
            pairs = [
                (o, t)
                for o, t in zip((r for r in results if _differentiable(r)), given[len(tensors) :])
                if o.requires_grad
            ]
            grads = torch.autograd.grad([o for o, _ in pairs], wanted, [t for _, t in pairs], allow_unused=True)
        return [r.detach() for r in results] + [g for g in grads if g is not None]

    with mode, _use_lazy_graph_module(True):
        return _cleaned(make_fx(both)(*tensors, *tangents, *_symbols(tensors, mode)))


def jvp(function: Callable[..., Any], values: Sequence[Any], mode: FakeTensorMode | None = None) -> fx.GraphModule:
    """Inputs and their tangents to outputs and theirs."""
    mode = mode or FakeTensorMode()
    with mode, torch.no_grad():
        fakes = [_fake(v, mode) if isinstance(v, torch.Tensor) else v for v in values]
        tangents = [torch.empty_like(f) for f in fakes if _differentiable(f)]
    tensors = [f for f in fakes if isinstance(f, torch.Tensor)]

    def dual(*given: torch.Tensor) -> list[Any]:
        supply, rates = iter(given[: len(tensors)]), given[len(tensors) : len(tensors) + len(tangents)]
        inputs = [next(supply) if isinstance(v, torch.Tensor) else v for v in values]
        moving = [position for position, i in enumerate(inputs) if _differentiable(i)]

        def of_moving(*moved: torch.Tensor) -> Any:
            for position, value in zip(moving, moved, strict=True):
                inputs[position] = value
            return tuple(_listed(function(*inputs)))

        results, derivatives = torch.func.jvp(of_moving, tuple(inputs[p] for p in moving), tuple(rates))
        return [*results, *derivatives]

    with mode, _use_lazy_graph_module(True):
        return _cleaned(make_fx(dual)(*tensors, *tangents, *_symbols(tensors, mode)))


def _symbols(values: Sequence[Any], mode: FakeTensorMode) -> list[Any]:
    """What numbers known only at run time are made of, as inputs: tracing knows no symbol but those of its inputs."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    sizes = [size for tensor in tensors for size in (*tensor.shape, *tensor.stride())]
    if not any(isinstance(number, SYMBOLIC) for number in (*sizes, *values)):
        return []
    env = mode.shape_env
    assert env is not None
    known = env.backed_var_to_val
    made = [
        env.create_symintnode(symbol, hint=int(value))
        if symbol.is_integer
        else env.create_symfloatnode(symbol, hint=float(value))
        for symbol, value in known.items()
    ]
    return [number for number in made if isinstance(size_of(number), Extent)]


def _numbers_as_values(graph: fx.Graph) -> None:
    """Symbolic numbers, which the trace has as nodes, become arguments themselves, as everywhere in this compiler."""
    made = {node: node.meta["val"] for node in graph.nodes if isinstance(node.meta.get("val"), SYMBOLIC)}
    if not made:
        return
    with sizes_as_arguments():
        for node in graph.nodes:
            if node not in made and any(used in made for used in node.all_input_nodes):
                node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: made.get(n, n))
    for node in reversed(made):
        graph.erase_node(node)


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if isinstance(tensor, FakeTensor) and tensor.fake_mode is mode:
        return tensor
    with mode:
        return torch.empty_strided(
            tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device=tensor.device
        )


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _cleaned(traced: fx.GraphModule) -> fx.GraphModule:
    _numbers_as_values(traced.graph)
    for node in list(traced.graph.nodes):
        if node.target in _BOOKKEEPING:
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    traced.graph.eliminate_dead_code()
    for attention in traced.graph.find_nodes(op="call_function", target=FLASH_CPU):
        query, fakes = attention.args[0].meta["val"], attention.meta["val"]
        both = attention.meta["val"] = as_eager_lays_out(FLASH_CPU, [query], fakes)
        for part in attention.users:
            part.meta["val"] = both[part.args[1]]
    return traced
