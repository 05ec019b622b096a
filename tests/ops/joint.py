"""Forward and backward of a function as one functional graph, made the simple way: two traces, no partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from litz.ops.decompose import decompositions


def joint_graph(function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor]) -> GraphModule:
    """`inputs` -> the loss (the function's result, or a sum that weighs its elements) and the gradients there are."""

    def both(*given: torch.Tensor) -> list[torch.Tensor]:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in given]
            out = function(*leaves)
            loss = out if out.dim() == 0 else (out * out.detach().cos()).sum()
            grads = torch.autograd.grad(loss, [x for x in leaves if x.requires_grad], allow_unused=True)
        return [loss.detach(), *(g for g in grads if g is not None)]

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(x.detach(), static_shapes=True) for x in inputs]
    with mode:
        traced = make_fx(both, decomposition_table=decompositions())(*fakes)
        with torch.no_grad():
            functional = torch.func.functionalize(lambda *args: traced(*args), remove="mutations")
            graph = make_fx(functional, decomposition_table=decompositions())(*fakes)
    graph.graph.eliminate_dead_code()
    return graph


def of_model(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[GraphModule, list[torch.Tensor]]:
    """The joint graph of a model in training mode whose first result is, or has for its mean, the loss."""
    model.train()
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = [*state, *inputs]

    def function(*given: torch.Tensor) -> torch.Tensor:
        values = dict(zip(names, given, strict=True))
        buffers = {k: values[k].detach().clone() for k, v in state.items() if not isinstance(v, torch.nn.Parameter)}
        own = {k: buffers.get(k, values[k]) for k in state}
        out: Any = functional_call(model, own, (), {k: values[k] for k in inputs})
        first = out[0] if not isinstance(out, torch.Tensor) else out
        return first if first.dim() == 0 else first.float().mean()

    flat = [t.detach() for t in (*state.values(), *inputs.values())]
    return joint_graph(function, flat), flat
