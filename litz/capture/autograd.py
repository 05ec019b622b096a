"""The compiled forward and backward as one differentiable function.

In: a `Split`, its compiled forward, and how to compile its backward. Out: a callable that autograd sees as
a single node: it saves what the cut kept, and runs the compiled backward when tangents arrive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz.graph.signature import Joint
from litz.errors import CallError
from litz.graph.partition.mincut import Split

Core = Callable[..., Sequence[Any]]


class Differentiable:
    """One compiled function. The backward is compiled when it is first needed, under the forward's options."""

    def __init__(self, joint: Joint, split: Split, forward: Core, compile_backward: Callable[[], Core]):
        self.signature, self.split, self.forward = joint.signature, split, forward
        self.gradient_of = joint.gradient_of
        self.own = self.signature.results + len(self.signature.returned_mutations)
        fakes = [n.meta["val"] for n in joint.graph.graph.nodes if n.op == "placeholder"][joint.primals :]
        self.tangents = [(tuple(f.shape), f.stride(), f.dtype) for f in fakes]
        self._compile_backward = compile_backward
        self._backward: Core | None = None
        self._lock = threading.Lock()
        self._function = _function_of(self)

    def __call__(self, *args: Any) -> Sequence[Any]:
        return self._function.apply(*args)

    def backward(self) -> Core:
        with self._lock:
            if self._backward is None:
                self._backward = self._compile_backward()
        return self._backward

    def tangent(self, position: int, given: torch.Tensor | None) -> torch.Tensor:
        """The tangent laid out as traced; zeros where the result was not used."""
        sizes, strides, dtype = self.tangents[position]
        if given is None:
            return torch.empty_strided(sizes, strides, dtype=dtype).zero_()
        if tuple(given.shape) != sizes:
            raise CallError(f"a tangent of shape {tuple(given.shape)} was given for a result of shape {sizes}")
        if given.stride() == strides:
            return given
        return torch.empty_strided(sizes, strides, dtype=given.dtype).copy_(given)


def _function_of(step: Differentiable) -> Any:
    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            results = step.forward(*args)
            split, own = step.split, results[: step.own]
            saved, plain = results[step.own : step.own + split.saved], results[step.own + split.saved :]
            ctx.save_for_backward(*(args[i] for i in split.saved_primals), *(own[i] for i in split.saved_results), *saved)
            ctx.plain = plain
            ctx.inputs = len(args)
            ctx.set_materialize_grads(False)
            fixed = [r for i, r in enumerate(own) if isinstance(r, torch.Tensor) and i not in step.signature.differentiable]
            ctx.mark_non_differentiable(*fixed)
            return tuple(own)

        @staticmethod
        def backward(ctx: Any, *given: Any) -> Any:
            tangents = [
                step.tangent(position, given[i])
                for position, i in enumerate(step.signature.differentiable)
            ]
            arguments = [*ctx.saved_tensors, *ctx.plain, *tangents]
            if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in arguments):
                found = _Once.apply(step.backward(), *arguments)
            else:
                found = step.backward()(*arguments)
            gradients: list[Any] = [None] * ctx.inputs
            for position, gradient in zip(step.gradient_of, found, strict=True):
                gradients[position] = gradient
            return tuple(gradients)

    return Compiled


class _Once(torch.autograd.Function):
    """The backward under `create_graph=True`: its values are right, and differentiating them again says why not."""

    @staticmethod
    def forward(ctx: Any, backward: Core, *arguments: Any) -> Any:
        return tuple(backward(*(a.detach() if isinstance(a, torch.Tensor) else a for a in arguments)))

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        raise CallError(
            "double backward through a function compiled by Litz: its backward is not differentiable",
            hint="leave the part that is differentiated twice out of the compiled region",
        )
