"""A function as it is traced: run on functional tensors, differentiated, and looked at.

In: the function and the arguments of a call. Out: what the graph is to return, for the recorder below; and `Learned`:
which inputs were written to, whose memory the outputs are, which gradients there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.functional_tensor import FunctionalTensor

from litz.capture.derivatives import OPERATORS, differentiated_as_in_eager
from litz.capture.functional import Functional, unwrap
from litz.capture.outputs import classify, window_on
from litz.capture.overlap import in_place_of_members, members_restored
from litz.capture.record import Recorder, is_lazy
from litz.capture.run_graph import run_graph
from litz.capture.subclasses import Forms, form_of, put_together, taken_apart
from litz.errors import CaptureError
from litz.graph.signature import Base, Input, Output, Signature, Subclasses
from litz.graph.sizes import is_dense, likely, sizes
from litz.ops.sizes import number_sources, size_sources

aten = torch.ops.aten
Strides = Sequence[tuple[Any, ...] | None] | None  # of outputs, as eager has them, where known


@lru_cache(maxsize=1)
def _tangent_operator() -> Any:
    library = torch.library.Library("litz", "FRAGMENT")
    library.define("tangent(Tensor result) -> Tensor")
    library.impl("tangent", _like, "CompositeExplicitAutograd")
    _tangent_operator.library = library  # type: ignore[attr-defined]  # it unregisters when collected
    return torch.ops.litz.tangent.default


def _like(result: torch.Tensor) -> torch.Tensor:
    order = sorted(range(result.dim()), key=lambda d: (-likely(result.stride(d)), d))
    if is_dense(result, order):
        return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=result.device)
    # Elements of a result may share memory (expanded, unfolded) or lie apart; those of its tangent do neither.
    return torch.empty(result.shape, dtype=result.dtype, device=result.device)


class _Inner(torch.autograd.Function):
    """A leaf as something that was computed, laid out as it is: its value in memory of its own."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, value: tuple[torch.Tensor]) -> torch.Tensor:
        return FunctionalTensor.to_functional(value[0])

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        return given, None


@dataclass(frozen=True)
class Learned:
    """What the run of a function has told of its inputs and outputs."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    results: int  # that the graph returns; other outputs are memory of these or of inputs
    forward_outputs: int  # results, and the last values of inputs that autograd must see written to
    differentiable: tuple[int, ...]
    gradient_of: tuple[int, ...]
    returned_members: tuple[tuple[int, int], ...]
    subclasses: Subclasses | None


class Traced:
    """The function that is traced, and its call; `learned` is there once it was run."""

    learned: Learned

    def __init__(
        self, function: Callable[..., Any], arguments: Sequence[Any], places: Sequence[int], bases: tuple[Base, ...],
        forms: Forms, strides: Strides, training: bool, recorder: Recorder,
    ):  # fmt: skip
        self.function, self.strides, self.training, self.recorder = function, strides, training, recorder
        self.places, self.bases, self.forms = tuple(places), bases, forms
        found = in_place_of_members(arguments, bases)
        assert found is not None, "the bases are those of these arguments"
        self.given = inputs = found
        self.autocast = torch._C._is_any_autocast_enabled()
        self.grad_mode = torch.is_grad_enabled()  # the user's, where the function is called
        self.requires_grad = [isinstance(x, torch.Tensor) and x.requires_grad for x in inputs]
        self.needs_grad = [training and required for required in self.requires_grad]
        self.leaf = [not isinstance(x, torch.Tensor) or x.is_leaf for x in inputs]
        self.parameters = [isinstance(x, torch.nn.Parameter) for x in inputs]

    def __call__(self, *primals: Any) -> Any:
        functional = Functional()
        try:
            return self._called(functional, primals)
        except Exception:
            if functional.refused is not None:
                raise functional.refused from None
            raise

    def _called(self, functional: Functional, primals: Sequence[Any]) -> Any:
        with functional, torch.set_grad_enabled(self.grad_mode or self.training):
            # Also where nothing is recorded: a view of what requires grad requires it, and a result does not.
            leaves = [self._wrap(p, g) for p, g in zip(primals, self.requires_grad, strict=True)]
            wrapped = [self._writable(w, p, i) for i, (w, p) in enumerate(zip(leaves, primals, strict=True))]
            origins = [_origin(w) for w in wrapped]
            arguments = members_restored(wrapped, self.bases)
            outputs, subclasses, strides = self._run_on_wholes([arguments[p] for p in self.places])
            members = {id(arguments[place]): place for base in self.bases for place, _ in base.members}
            returned_members = tuple((i, members[id(o)]) for i, o in enumerate(outputs) if id(o) in members)
            inputs = [self._input(w, p, i, origins[i]) for i, (w, p) in enumerate(zip(wrapped, primals, strict=True))]
            lay_out = partial(self._laid_out, strides)
            kinds, results = classify(outputs, wrapped, primals, lay_out, self._memory_of)
            updated = [w for w, x in zip(wrapped, inputs, strict=True) if x.mutated and not x.hidden]
            gradients = self._gradients([*results, *updated], leaves) if self.training else _Gradients()
            flat = [unwrap(r) for r in (*results, *updated)]
            self.learned = Learned(
                tuple(inputs), tuple(kinds), len(results), len(flat), gradients.differentiable, gradients.of,
                returned_members, subclasses,
            )  # fmt: skip
            hidden = [
                (p, unwrap(w)) for p, w, x in zip(primals, wrapped, inputs, strict=True) if x.mutated and x.hidden
            ]
            flat += [unwrap(g) for g in gradients.values]
        for primal, value in hidden:
            aten.copy_.default(primal, value)
        return flat

    def _run_on_wholes(self, args: list[Any]) -> tuple[list[Any], Subclasses | None, Strides]:
        """The function sees subclasses; the trace sees their parts. The parts of its outputs, and eager's strides of
        them, where known."""
        wholes = put_together(args, self.forms)
        with torch.set_grad_enabled(self.grad_mode):
            found = self._run(wholes)
        outputs = list(found) if isinstance(found, (tuple, list)) else [found]
        forms = tuple(form_of(out) for out in outputs)
        if not any(self.forms) and not any(forms):
            return outputs, None, self.strides
        places = {id(whole): place for place, whole in enumerate(wholes) if self.forms[place] is not None}
        returned = tuple((i, places[id(out)]) for i, out in enumerate(outputs) if id(out) in places)
        strides = None if self.strides is None else [
            s
            for s, form in zip(self.strides, forms, strict=True)
            for s in ([s] if form is None else [None] * form.count)
        ]  # fmt: skip
        return taken_apart(outputs, forms), Subclasses(self.forms, forms, returned), strides

    def _run(self, args: list[Any]) -> Any:
        owner = getattr(self.function, "__self__", None)
        if isinstance(owner, fx.GraphModule):
            outputs = run_graph(owner, args, self.recorder)
            self.recorder.ends()
            return outputs
        return self.function(*args)

    @staticmethod
    def _wrap(primal: Any, needs_grad: bool) -> Any:
        if not isinstance(primal, torch.Tensor):
            return primal
        wrapped = FunctionalTensor.to_functional(primal)
        return wrapped.requires_grad_(True) if needs_grad else wrapped

    def _writable(self, wrapped: Any, primal: Any, position: int) -> Any:
        """What the function is given for an input: autograd refuses writes to a leaf, which is what it is here."""
        if self.leaf[position] or not self.needs_grad[position]:
            return wrapped
        return _Inner.apply(wrapped, (primal,))

    def _input(self, wrapped: Any, primal: Any, position: int, origin: _Origin) -> Input:
        if not isinstance(wrapped, FunctionalTensor):
            return Input()
        torch._sync(wrapped)
        if torch._functionalize_was_storage_changed(wrapped.elem):
            raise CaptureError(f"input {position} is given other memory", stage="trace")
        if torch._functionalize_has_metadata_mutation(wrapped.elem):
            return self._reshaped(wrapped, primal, position)
        mutated, lazy = torch._functionalize_has_data_mutation(wrapped.elem), is_lazy(primal)
        if mutated and lazy:
            raise CaptureError(f"input {position}, conjugated or negated by a bit, is written to", stage="trace")
        if mutated and _shares_elements(wrapped):
            raise CaptureError(f"input {position} is written to, and elements of it share memory", stage="trace")
        hidden = not self.training or not mutated or self._hidden(wrapped, origin)
        if not hidden and any(self.forms):
            raise CaptureError("an input is written to where autograd must see it, beside subclasses", stage="trace")
        if not hidden and position >= len(self.given) - sum(not base.own for base in self.bases):
            raise CaptureError("inputs overlap in a way autograd does not know of, and it must see a write to one")
        counted = wrapped._version != origin.version
        return Input(self.needs_grad[position], mutated, hidden, self.parameters[position], None, lazy, counted)

    def _reshaped(self, wrapped: FunctionalTensor, primal: Any, position: int) -> Input:
        written = torch._functionalize_has_data_mutation(wrapped.elem)
        if written or self.needs_grad[position] or any(self.forms) or self.bases or is_lazy(primal):
            what = "is written to" if written else "needs a gradient, has a bit set or is part of another tensor"
            raise CaptureError(f"input {position} changes its shape or strides in place, and {what}", stage="trace")
        window = window_on(primal, wrapped)
        if window.offset:
            raise CaptureError(f"input {position} is moved in its memory in place", stage="trace")
        return Input(parameter=self.parameters[position], reshaped=window)

    @staticmethod
    def _hidden(wrapped: FunctionalTensor, origin: _Origin) -> bool:
        """Whether autograd saw none of the writes: no step of its own came of them."""
        if torch._functionalize_are_all_mutations_under_no_grad_or_inference_mode(wrapped.elem):
            return True
        return wrapped.grad_fn is origin.step

    def _memory_of(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.recorder.memory_of(unwrap(tensor))

    def _laid_out(self, known: Strides, out: torch.Tensor, position: int) -> torch.Tensor:
        strides = None if known is None else known[position]
        # The value's own strides: those of its wrapper are from before it was written to.
        if strides is None or sizes(unwrap(out).stride()) == sizes(strides):
            return out
        if self.recorder.lies_otherwise_than_fakes_say(unwrap(out)):
            return out  # Dynamo's strides are those of its fakes
        given = out
        for dim, (size, stride) in enumerate(zip(sizes(given.shape), sizes(strides), strict=True)):
            if stride == 0 and size != 1:  # one element, seen many times
                out = out.narrow(dim, 0, 1)
        copy = torch.empty_strided(out.shape, strides, dtype=out.dtype, device=out.device).copy_(out)
        return copy if out is given else copy.expand(given.shape)

    def _gradients(self, results: list[torch.Tensor], inputs: list[Any]) -> _Gradients:
        differentiable = [(i, r) for i, r in enumerate(results) if isinstance(r, torch.Tensor) and r.requires_grad]
        if not differentiable:
            return _Gradients()
        leaves = [(i, w) for i, w in enumerate(inputs) if self.needs_grad[i]]
        with torch.no_grad():
            tangents = [_tangent_operator()(r) for _, r in differentiable]
        self.recorder.differentiating = True
        looks_at_data = self.recorder.has_called(OPERATORS)
        as_in_eager = differentiated_as_in_eager(r for _, r in differentiable) if looks_at_data else nullcontext()
        with torch._C._DisableAutocast(), as_in_eager:
            found = torch.autograd.grad(
                [r for _, r in differentiable], [w for _, w in leaves], tangents, allow_unused=True
            )
        self.recorder.differentiating = False
        existing = [(i, g) for (i, _), g in zip(leaves, found, strict=True) if g is not None]
        if any(form_of(g) for _, g in existing):
            raise CaptureError("the gradient of a plain tensor is a subclass", stage="trace")
        values = [g for _, g in existing]
        return _Gradients(values, tuple(i for i, _ in existing), tuple(i for i, _ in differentiable))

    def signature(self) -> Signature:
        learned = self.learned
        distinct = self.places == tuple(range(len(self.places)))
        found = Signature(
            learned.inputs, learned.outputs, learned.results, learned.differentiable, () if distinct else self.places,
            self.autocast, bool(learned.differentiable) and not self.grad_mode,
            self.grad_mode and any(self.needs_grad) and not learned.differentiable, self.bases,
            learned.returned_members, learned.subclasses,
        )  # fmt: skip
        return replace(found, sizes=size_sources(self.given, found.symbols), floats=number_sources(self.given))


class _Origin(NamedTuple):
    """A tensor before the function runs: autograd's step that made it, and how often it was written to."""

    step: Any = None
    version: int = 0


def _origin(wrapped: Any) -> _Origin:
    return _Origin(wrapped.grad_fn, wrapped._version) if isinstance(wrapped, FunctionalTensor) else _Origin()


class _Gradients(NamedTuple):
    """Gradients, the inputs they are of, and the results that have a tangent."""

    values: list[torch.Tensor] = []
    of: tuple[int, ...] = ()
    differentiable: tuple[int, ...] = ()


def _shares_elements(tensor: torch.Tensor) -> bool:
    if any(isinstance(size, int) and size == 0 for size in tensor.shape):
        return False
    dims = zip(tensor.shape, tensor.stride(), strict=True)
    return any(isinstance(stride, int) and stride == 0 and size != 1 for size, stride in dims)


__all__ = ["Learned", "Strides", "Traced"]
