"""A training step as something to be run and measured: in eager, with each layer under a checkpoint, or compiled.

In: a model, its arguments, a loss. Out: steps, which leave no trace in the model; the bytes that a step takes at its
peak beyond its arguments, and its seconds.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from litz.errors import CallError

Step = Callable[[], Any]


def mean_square(output: Any) -> torch.Tensor:
    """What stands in for a loss: a single number as it is, and otherwise the mean squares of all results."""
    found = [t for t in pytree.tree_leaves(output) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    if not found:
        raise CallError("the model returns no floating-point tensor to take a gradient of", hint="pass loss=")
    return found[0] if len(found) == 1 and found[0].dim() == 0 else sum(t.square().mean() for t in found)  # type: ignore[return-value]


@dataclass(frozen=True)
class Subject:
    """`model` is a module or a function; `loss` makes one number of what it returns."""

    model: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    loss: Callable[[Any], torch.Tensor]

    @property
    def modules(self) -> list[torch.nn.Module]:
        owner = getattr(self.model, "__self__", self.model)
        return [owner] if isinstance(owner, torch.nn.Module) else []

    @property
    def tensors(self) -> list[torch.Tensor]:
        given = [x for x in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(x, torch.Tensor)]
        return [*(t for m in self.modules for t in (*m.parameters(), *m.buffers())), *given]

    @property
    def device(self) -> torch.device:
        return next((t.device for t in self.tensors if t.device.type != "cpu"), torch.device("cpu"))

    def step(self, compiler: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda total: total) -> Step:
        """Loss and backward. Each step is of code of its own, so that Dynamo takes none for a recompile of another."""
        model, loss = self.model, self.loss

        def total(*args: Any, **kwargs: Any) -> torch.Tensor:
            return loss(model(*args, **kwargs))

        fresh = FunctionType(total.__code__.replace(), total.__globals__, "total", closure=total.__closure__)
        run = compiler(fresh)

        def step() -> None:
            self.forget()
            value = run(*self.args, **self.kwargs)
            if not value.requires_grad:
                raise CallError(
                    "there is no training step: the loss needs no gradient",
                    hint="is the model frozen, or are gradients off?",
                )
            value.backward()

        return step

    def forget(self) -> None:
        for tensor in self.tensors:
            tensor.grad = None

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Gradients, buffers, arguments and the random numbers to come are afterwards as they were."""
        tensors = self.tensors
        gradients = [t.grad for t in tensors]
        parameters = {id(p) for m in self.modules for p in m.parameters()}
        own = [t for t in tensors if id(t) not in parameters and t.layout is torch.strided]
        buffers = [(b, b.detach().clone()) for b in own]
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            try:
                yield
            finally:
                for tensor, gradient in zip(tensors, gradients, strict=True):
                    tensor.grad = gradient
                with torch.no_grad():
                    for buffer, value in buffers:
                        if not torch.equal(buffer, value):
                            buffer.copy_(value)


# -- a checkpoint for each layer ----------------------------------------------------------------
def repeated_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a stack: of all runs of children of one class, that with most parameters; the outermost, where one
    holds another."""
    best: list[torch.nn.Module] = []
    size = 0
    for module in model.modules():
        kinds: dict[type, list[torch.nn.Module]] = {}
        for child in module.children():
            kinds.setdefault(type(child), []).append(child)
        for layers in kinds.values():
            count = sum(p.numel() for layer in layers for p in layer.parameters())
            if len(layers) > 1 and count > size:
                best, size = layers, count
    return best


@contextmanager
def checkpointed(layers: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Each layer's forward is run again in the backward, as `torch.utils.checkpoint` has it."""
    with ExitStack() as stack:
        for layer in layers:
            own = layer.__dict__.get("forward")
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)  # type: ignore[method-assign]
            stack.callback(_put_back, layer, own)
        yield


def _put_back(layer: torch.nn.Module, own: Any) -> None:
    if own is None:
        del layer.forward
    else:
        layer.forward = own  # type: ignore[method-assign]


# -- measuring ----------------------------------------------------------------------------------
def peak_of_step(subject: Subject, step: Step) -> int:
    """Bytes that a step takes at its peak, beyond what is there before it."""
    subject.forget()
    _return_memory()
    if subject.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats(subject.device)
        before = torch.cuda.memory_allocated(subject.device)
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(subject.device) - before
    return live_bytes(step)


def live_bytes(function: Callable[[], Any]) -> int:
    """The largest sum of allocations minus releases by torch's allocator for the CPU while the function runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    live = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        highest = max(highest, live)
    return highest


def _return_memory() -> None:
    """Nothing that a step needs may be left over from the step before, or it would not be counted."""
    from litz.runtime.arena import ARENA

    gc.collect()
    ARENA.clear()


def seconds_of_steps(steps: Mapping[Any, Step], rounds: int, device: torch.device) -> dict[Any, float]:
    """Of each the fastest; they take turns, so that what else the machine does is shared by all."""
    found = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            found[name] = min(found[name], time.perf_counter() - start)
    return found


__all__ = [
    "Step", "Subject", "checkpointed", "live_bytes", "mean_square", "peak_of_step", "repeated_layers",
    "seconds_of_steps",
]  # fmt: skip
