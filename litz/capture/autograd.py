"""The compiled forward and backward as one differentiable function.

In: the compiled forward, what passes from it to the backward (`Training`), and how to come by the backward. Out: a
callable that autograd sees as a single node: it saves what the cut kept, and runs the backward when tangents arrive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from litz.capture.batched import in_turn, is_batched
from litz.capture.subclasses import is_subclass
from litz.errors import CallError, RunFailed, tell
from litz.graph.signature import Signature, Training, numbers
from litz.loop.formula import Measures

Core = Callable[..., Sequence[Any]]
# Drops the arguments from the list it is given as it goes; the flag says that it may also write over saved ones.
Backward = Callable[[list[Any], bool], Sequence[Any]]
Absent = tuple[int, ...]  # tangents that do not exist, because nobody used their results
Form = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NOTHING = torch.empty(0, device="cpu")  # stands in their place; the backward does not read it


class Differentiable:
    """One compiled function. A backward is compiled when it is first needed, under the forward's options, and
    another one for calls in which other results are used."""

    def __init__(
        self, signature: Signature, training: Training, forward: Core, compile_backward: Callable[[Absent], Backward]
    ):
        self.signature, self.training, self.forward = signature, training, forward
        self.own = signature.results + len(signature.returned_mutations)
        self.one_twice = any(output.through is not None for output in self.signature.outputs)
        self.varies = bool(self.signature.sizes)
        self.forms: tuple[Form, ...] | None = None  # of what is kept, if they are the same in each call
        self._compile_backward = compile_backward
        self._backward: dict[Absent, Backward] = {}
        self._lock = threading.Lock()
        self._function = _function_of(self)

    def __call__(self, *args: Any) -> Sequence[Any]:
        return self._function.apply(*args)

    def backward(self, absent: Absent) -> Backward:
        found = self._backward.get(absent)
        if found is None:
            with self._lock:
                found = self._backward.get(absent)
                if found is None:
                    found = self._backward[absent] = self._compile_backward(absent)
        return found

    def tangent(self, position: int, given: torch.Tensor, measured: Measures) -> torch.Tensor:
        """The tangent laid out as traced."""
        form = self.training.tangents[position]
        sizes, strides, dtype = numbers(form.sizes, measured), numbers(form.strides, measured), form.dtype
        if is_subclass(given) or given.layout is not torch.strided:
            raise CallError(
                f"a tangent was given for a plain result that is a {type(given).__name__} of layout {given.layout}",
                hint="what is computed from the result, outside of the compiled function, must give plain gradients",
            )
        if given.stride() == strides and given.dtype == dtype and tuple(given.shape) == sizes:
            return given.resolve_conj().resolve_neg()
        if tuple(given.shape) != sizes:
            raise CallError(f"a tangent of shape {tuple(given.shape)} was given for a result of shape {sizes}")
        return torch.empty_strided(sizes, strides, dtype=dtype, device=given.device).copy_(given)

    def forms_of(self, kept: Sequence[torch.Tensor]) -> tuple[Form, ...]:
        if self.forms is not None:
            return self.forms
        found = tuple((t.shape, t.stride(), t.dtype, t.device) for t in kept)
        if not self.varies:
            self.forms = found
        return found

    def gradients(
        self, inputs: int, sizes: Measures, arguments: list[Any], given: Sequence[Any], overwrite: bool
    ) -> tuple[Any, ...]:
        """One gradient for each of the `inputs`, from what was saved and the tangents of the own results.

        `sizes`: those that vary, in the forward. `arguments`, what was saved, is this function's to use up; with
        `overwrite`, its memory as well.
        """
        mine = [given[i] for i in self.signature.differentiable]
        absent = tuple(i for i, t in enumerate(mine) if t is None)
        gradients: list[Any] = [None] * inputs
        if len(absent) == len(mine):
            return tuple(gradients)
        arguments += [_NOTHING if t is None else self.tangent(i, t, sizes) for i, t in enumerate(mine)]
        run = self.backward(absent)
        with torch._C._DisableAutocast() if torch._C._is_any_autocast_enabled() else nullcontext():
            if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in arguments):
                found = _Once.apply(run, *arguments)
            else:
                found = _run(run, arguments, overwrite)
        for position, gradient in zip(self.training.gradient_of, found, strict=True):
            gradients[position] = gradient
        return tuple(gradients)


def _as_kept(given: torch.Tensor, form: Form) -> torch.Tensor:
    """A saved tensor as the code for it expects it: hooks of the user's may have given back another."""
    plain = type(given) in _PLAIN and given.layout is torch.strided and not given.is_conj() and not given.is_neg()
    if plain and (given.shape, given.stride(), given.dtype, given.device) == form:
        return given
    shape, strides, dtype, device = form
    if given.shape != shape or given.layout is not torch.strided or is_subclass(given):
        raise CallError(
            f"a hook on saved tensors gave back a {type(given).__name__} of shape {tuple(given.shape)} and layout "
            f"{given.layout} for a dense tensor of shape {tuple(shape)}",
            hint="what `unpack` returns must have the shape of what `pack` was given",
        )
    with torch.no_grad():
        once = given
        for dim, stride in enumerate(strides):
            if stride == 0 and shape[dim]:  # one element, seen many times
                once = once.narrow(dim, 0, 1)
        return torch.empty_strided(once.shape, strides, dtype=dtype, device=device).copy_(once).expand(shape)


def _check_deterministic(forward: bool) -> None:
    """A backward is compiled as the forward was, whatever is switched on by then."""
    if forward or not torch.are_deterministic_algorithms_enabled():
        return
    text = (
        "the backward of a compiled function was called with torch.use_deterministic_algorithms(True), and its forward "
        "without: what was compiled for both need not be deterministic"
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise CallError(text, hint="switch deterministic algorithms on before the forward")
    tell(text)


def _run(backward: Backward, arguments: list[Any], overwrite: bool) -> Sequence[Any]:
    try:
        return backward(arguments, overwrite)
    except RunFailed as failure:
        raise failure.error from None  # there is nothing of the user's to run in its place


def _function_of(step: Differentiable) -> Any:
    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            results = step.forward(*args)
            passed, own = step.training, results[: step.own]
            saved, plain = results[step.own : step.own + passed.saved], results[step.own + passed.saved :]
            # A window on a larger result would pass for a view made in here, which may not be written to; and one
            # tensor returned twice for one result, whose tangents are then added.
            own = [r.detach() if isinstance(r, torch.Tensor) and (step.one_twice or r._is_view()) else r for r in own]
            kept = [*(args[i] for i in passed.saved_primals), *(own[i] for i in passed.saved_results), *saved]
            ctx.save_for_backward(*kept)
            ctx.forms, ctx.plain = step.forms_of(kept), plain
            ctx.deterministic = torch.are_deterministic_algorithms_enabled()
            # Hooks on saved tensors may have put them where the user still has them.
            ctx.hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
            ctx.inputs, ctx.sizes = len(args), step.signature.measure(args)
            ctx.set_materialize_grads(False)
            fixed = [
                r for i, r in enumerate(own) if isinstance(r, torch.Tensor) and i not in step.signature.differentiable
            ]
            ctx.mark_non_differentiable(*fixed)
            return tuple(own)

        # The engine calls it wherever the user called `backward`, which may be in code that Dynamo watches.
        @staticmethod
        @torch.compiler.disable(reason="Litz's own code")
        def backward(ctx: Any, *given: Any) -> Any:
            _check_deterministic(ctx.deterministic)
            arguments = [*map(_as_kept, ctx.saved_tensors, ctx.forms), *ctx.plain]
            ctx.maybe_clear_saved_tensors()  # unless the graph is kept, the list is all that holds them now
            kept = torch._C._autograd._get_current_graph_task_keep_graph()
            if any(map(is_batched, given)):
                run = lambda each: step.gradients(ctx.inputs, ctx.sizes, [*arguments], each, False)  # noqa: E731
                return tuple(in_turn(run, given))
            return step.gradients(ctx.inputs, ctx.sizes, arguments, given, not kept and not ctx.hooked)

    return Compiled


class _Once(torch.autograd.Function):
    """The backward under `create_graph=True`: its values are right, and differentiating them again says why not."""

    @staticmethod
    def forward(ctx: Any, backward: Backward, *arguments: Any) -> Any:
        return tuple(_run(backward, [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments], False))

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        raise CallError(
            "double backward through a function compiled by Litz: its backward is not differentiable",
            hint="leave the part that is differentiated twice out of the compiled region",
        )
