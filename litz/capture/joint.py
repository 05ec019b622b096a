"""Trace a torch-level graph to one functional ATen graph, its backward included, in a single run.

In: a function and the tensors it is called with. Out: a `Joint`: a graph whose inputs are the primals and
then the tangents, and whose outputs are the results, the new values of inputs that autograd must see, and
the gradients; inputs written to out of autograd's sight are written by `copy_` nodes at the end of the
forward. In inference there are no tangents and no gradients, and nothing else differs.

The one idea: tangents are made in the middle of the trace, when the results are known, by an operator of
our own; afterwards its nodes become inputs. So no run is spent on finding out what the results look like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from litz.capture.forward_mode import carries_tangents
from litz.capture.functional import Functional, unwrap
from litz.capture.outputs import classify, window_on
from litz.capture.overlap import bases_for, in_place_of_members, members_restored
from litz.capture.record import Recorder, is_lazy
from litz.capture.run_graph import run_graph
from litz.capture.subclasses import Forms, form_of, has_gradient, put_together, taken_apart
from litz.errors import CaptureError
from litz.graph.alias import CHECKS
from litz.graph.signature import Base, Input, Joint, Signature, Subclasses
from litz.graph.sizes import is_dense, likely, sizes, varies
from litz.ops.sizes import number_sources, size_sources

aten = torch.ops.aten


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


def trace_joint(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    output_strides: Sequence[tuple[Any, ...] | None] | None,
    decompositions: Mapping[Any, Callable[..., Any]],
    training: bool,
) -> Joint:
    """`output_strides`: what eager's outputs have, where known; a result laid out otherwise is copied."""
    if carries_tangents(inputs):
        raise CaptureError("it is called inside forward-mode differentiation, which would lose its tangents in here")
    forms = tuple(form_of(value) for value in inputs)
    arguments, places = _distinct(_leaves_apart(inputs, forms))

    def trace(bases: tuple[Base, ...]) -> Joint:
        recorder = Recorder(decompositions)
        return _run(_Trace(function, arguments, places, bases, forms, output_strides, training, recorder))

    joint = trace(())
    # Tracing takes inputs for independent; only now it is known which ones are written to.
    bases = bases_for(arguments, joint.signature.mutated, training)
    return trace(bases) if bases else joint


def _run(tracer: _Trace) -> Joint:
    inputs, recorder, training = tracer.given, tracer.recorder, tracer.training
    mode = symbolic_mode(inputs) or FakeTensorMode(allow_non_fake_inputs=True, shape_env=_ragged_sizes(tracer))
    random = torch.get_rng_state()
    try:
        with ExitStack() as stack:
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())  # which the other turned on
            apart = len(inputs) - len(tracer.bases)
            fakes = [_fake(mode, x) if i < apart else _fresh(mode, x) for i, x in enumerate(inputs)]
            stack.callback(torch._C._autograd._saved_tensors_hooks_set_tracing, _hooks_off())
            stack.enter_context(torch.autograd.set_detect_anomaly(False))  # it looks for NaNs, and there are no values
            stack.enter_context(mode)
            # Composite operators in C++ (products, interpolation) ask symbolic sizes for their values.
            if symbolic_mode(inputs) is not None or _needs_dispatcher(tracer.function, training):
                stack.enter_context(enable_python_dispatcher())
            for position, fake in enumerate(fakes):
                recorder.placeholder(fake, position)
            stack.enter_context(recorder)
            outputs = tracer(*fakes)
        module = recorder.finish(outputs)
    except Exception as error:
        torch.set_rng_state(random)
        if isinstance(error, CaptureError):
            error.source, error.at = error.source or recorder.user_line, recorder.stopped_at
            raise
        told = f"tracing to ATen failed: {type(error).__name__}: {error}"
        raise CaptureError(told, stage="trace", source=recorder.user_line, at=recorder.stopped_at) from error
    return tracer.finish(module)


def _hooks_off() -> bool:
    """The user's hooks on saved tensors see those of the compiled function, not the ones of its trace; and a
    checkpoint made of such hooks is traced as the plain call it means. The state before."""
    return torch._C._autograd._saved_tensors_hooks_set_tracing(True)


def _ragged_sizes(tracer: _Trace) -> ShapeEnv | None:
    """Where sizes are fixed, those of nested tensors are all that needs symbols."""
    graph = getattr(getattr(tracer.function, "__self__", None), "graph", None)
    made = (node.meta.get("example_value") for node in (() if graph is None else graph.nodes))
    ragged = any(form is not None and any(isinstance(s, torch.SymInt) for s in form.sizes) for form in tracer.forms)
    return ShapeEnv() if ragged or any(isinstance(x, torch.Tensor) and x.is_nested for x in made) else None


def _leaves_apart(inputs: Sequence[Any], forms: Forms) -> list[Any]:
    """The parts of subclasses in their place; they need the gradients that their wholes need."""
    with torch.no_grad():
        found = taken_apart(inputs, forms)
    places = [
        value for value, form in zip(inputs, forms, strict=True) for _ in range(1 if form is None else form.count)
    ]
    return [
        part if part is whole or not has_gradient(part) else part.detach().requires_grad_(whole.requires_grad)
        for part, whole in zip(found, places, strict=True)
    ]


def _distinct(inputs: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Every tensor once, and where each argument went: what is passed twice must be seen to change twice."""
    kept: list[Any] = []
    places: list[int] = []
    first: dict[int, int] = {}
    for value in inputs:
        place = first.get(id(value), len(kept)) if isinstance(value, torch.Tensor) else len(kept)
        if place == len(kept):
            kept.append(value)
            first[id(value)] = place
        places.append(place)
    return kept, places


def _needs_dispatcher(function: Any, training: bool) -> bool:
    """Whether it calls what is right only behind the dispatcher in Python, which slows all else down: batch norm has
    its functional form there, and `one_hot` looks for classes out of range."""
    graph = getattr(getattr(function, "__self__", None), "graph", None)
    if graph is None:
        return training
    names = ("one_hot", *(("batch_norm", "instance_norm") if training else ()))
    return any(name in str(node.target) for node in graph.nodes for name in names)


def symbolic_mode(inputs: Sequence[Any]) -> FakeTensorMode | None:
    """The mode in which tracing goes on where an input is fake and has, or is, a number known only at run time."""
    symbols = [value for value in inputs if _is_number(value) or varies(value)]
    for value in (*symbols, *inputs) if symbols else ():
        if isinstance(value, FakeTensor) and value.fake_mode.shape_env is not None:
            return value.fake_mode
    return FakeTensorMode(shape_env=symbols[0].node.shape_env, allow_non_fake_inputs=True) if symbols else None


def _is_number(value: Any) -> bool:
    """A ragged size, which stands for many, is none."""
    return isinstance(value, torch.SymFloat) or (isinstance(value, torch.SymInt) and not value.node.is_nested_int())


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if isinstance(value, FakeTensor) and value.fake_mode is mode:
        alone = value.detach()
        alone.item_memo, alone.nested_int_memo = value.item_memo, value.nested_int_memo
        return alone
    if isinstance(value, FakeTensor):
        sizes, strides = [int(s) for s in value.shape], [int(s) for s in value.stride()]
        value = torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
    if value.is_inference():  # which its fake would be as well, and refuse to be written to
        return _fresh(mode, value)
    return mode.from_tensor(value.detach() if value.requires_grad else value, static_shapes=True)


def _fresh(mode: FakeTensorMode, value: torch.Tensor) -> torch.Tensor:
    """A fake of the same form that begins where its memory begins."""
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


class _Inner(torch.autograd.Function):
    """A leaf as something that was computed, laid out as it is: its value in memory of its own."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, value: tuple[torch.Tensor]) -> torch.Tensor:
        return FunctionalTensor.to_functional(value[0])

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        return given, None


class _Trace:
    """The function that is traced; it keeps what it learns about inputs and outputs."""

    def __init__(
        self, function: Callable[..., Any], arguments: Sequence[Any], places: Sequence[int], bases: tuple[Base, ...],
        forms: Forms, strides: Sequence[tuple[Any, ...] | None] | None, training: bool, recorder: Recorder,
    ):  # fmt: skip
        self.function, self.strides, self.training, self.recorder = function, strides, training, recorder
        self.places, self.bases, self.forms = tuple(places), bases, forms
        found = in_place_of_members(arguments, bases)
        assert found is not None, "the bases are those of these arguments"
        self.given = inputs = found
        self.autocast = torch.is_autocast_enabled("cpu")
        self.grad_mode = torch.is_grad_enabled()  # the user's, where the function is called
        self.needs_grad = [training and isinstance(x, torch.Tensor) and x.requires_grad for x in inputs]
        self.leaf = [not isinstance(x, torch.Tensor) or x.is_leaf for x in inputs]
        self.parameters = [isinstance(x, torch.nn.Parameter) for x in inputs]

    def __call__(self, *primals: Any) -> Any:
        with Functional(), torch.set_grad_enabled(self.grad_mode or self.training):
            self.leaves = [self._wrap(p, g) for p, g in zip(primals, self.needs_grad, strict=True)]
            wrapped = [self._writable(w, p, i) for i, (w, p) in enumerate(zip(self.leaves, primals, strict=True))]
            tensors = [(i, w) for i, w in enumerate(wrapped) if isinstance(w, FunctionalTensor)]
            self.origins = {i: (w.grad_fn, w._version) for i, w in tensors}
            arguments = members_restored(wrapped, self.bases)
            outputs = self._run_on_wholes([arguments[p] for p in self.places])
            members = {id(arguments[place]): place for base in self.bases for place, _ in base.members}
            self.returned_members = tuple((i, members[id(o)]) for i, o in enumerate(outputs) if id(o) in members)
            self.inputs = [self._input(w, p, i) for i, (w, p) in enumerate(zip(wrapped, primals, strict=True))]
            results = self._classify(outputs, wrapped, primals)
            updated = [w for w, x in zip(wrapped, self.inputs, strict=True) if x.mutated and not x.hidden]
            gradients = self._gradients([*results, *updated]) if self.training else []
            flat = [unwrap(r) for r in (*results, *updated)]
            self.forward_outputs = len(flat)
            hidden = [
                (p, unwrap(w)) for p, w, x in zip(primals, wrapped, self.inputs, strict=True) if x.mutated and x.hidden
            ]
            flat += [unwrap(g) for g in gradients]
        for primal, value in hidden:
            aten.copy_.default(primal, value)
        return flat

    def _run_on_wholes(self, args: list[Any]) -> list[Any]:
        """The function sees subclasses; the trace sees their parts."""
        self.subclasses: Subclasses | None = None
        wholes = put_together(args, self.forms)
        with torch.set_grad_enabled(self.grad_mode):
            outputs = self._run(wholes)
        outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        forms = tuple(form_of(out) for out in outputs)
        if not any(self.forms) and not any(forms):
            return outputs
        places = {id(whole): place for place, whole in enumerate(wholes) if self.forms[place] is not None}
        returned = tuple((i, places[id(out)]) for i, out in enumerate(outputs) if id(out) in places)
        self.subclasses = Subclasses(self.forms, forms, returned)
        if self.strides is not None:
            self.strides = [
                s
                for s, form in zip(self.strides, forms, strict=True)
                for s in ([s] if form is None else [None] * form.count)
            ]
        return taken_apart(outputs, forms)

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

    def _input(self, wrapped: Any, primal: Any, position: int) -> Input:
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
        hidden = not self.training or not mutated or self._hidden(wrapped, position)
        if not hidden and any(self.forms):
            raise CaptureError("an input is written to where autograd must see it, beside subclasses", stage="trace")
        if not hidden and position >= len(self.given) - sum(not base.own for base in self.bases):
            raise CaptureError("inputs overlap in a way autograd does not know of, and it must see a write to one")
        counted = wrapped._version != self.origins[position][1]
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

    def _hidden(self, wrapped: FunctionalTensor, position: int) -> bool:
        """Whether autograd saw none of the writes: no step of its own came of them."""
        if torch._functionalize_are_all_mutations_under_no_grad_or_inference_mode(wrapped.elem):
            return True
        return wrapped.grad_fn is self.origins[position][0]

    def _classify(self, outputs: list[Any], wrapped: list[Any], primals: Sequence[Any]) -> list[Any]:
        """Sort outputs by whose memory they are; the tensors that the graph itself must return."""
        self.outputs, results = classify(outputs, wrapped, primals, self._laid_out, self._memory_of)
        self.result_count = len(results)
        return results

    def _memory_of(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.recorder.memory_of(unwrap(tensor))

    def _laid_out(self, out: torch.Tensor, position: int) -> torch.Tensor:
        strides = None if self.strides is None else self.strides[position]
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

    def _gradients(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        differentiable = [(i, r) for i, r in enumerate(results) if isinstance(r, torch.Tensor) and r.requires_grad]
        self.differentiable = tuple(i for i, _ in differentiable)
        leaves = [(i, w) for i, w in enumerate(self.leaves) if self.needs_grad[i]]
        with torch.no_grad():
            tangents = [_tangent_operator()(r) for _, r in differentiable]
        if not differentiable:
            self.gradient_of: tuple[int, ...] = ()
            return []
        self.recorder.differentiating = True
        with torch.amp.autocast_mode.autocast("cpu", enabled=False):
            found = torch.autograd.grad(
                [r for _, r in differentiable], [w for _, w in leaves], tangents, allow_unused=True
            )
        self.recorder.differentiating = False
        existing = [(i, g) for (i, _), g in zip(leaves, found, strict=True) if g is not None]
        if any(form_of(g) for _, g in existing):
            raise CaptureError("the gradient of a plain tensor is a subclass", stage="trace")
        self.gradient_of = tuple(i for i, _ in existing)
        return [g for _, g in existing]

    def finish(self, module: fx.GraphModule) -> Joint:
        _tangents_to_inputs(module)
        _drop_dead_code(module.graph)
        module.recompile()
        differentiable = self.differentiable if self.training else ()
        distinct = self.places == tuple(range(len(self.places)))
        signature = Signature(
            tuple(self.inputs), tuple(self.outputs), self.result_count, differentiable, () if distinct else self.places,
            self.autocast, bool(differentiable) and not self.grad_mode, self.bases, self.returned_members,
            self.subclasses, size_sources(self.given), number_sources(self.given),
        )  # fmt: skip
        gradient_of = self.gradient_of if self.training else ()
        return Joint(module, signature, len(self.given), self.forward_outputs, gradient_of)


def _shares_elements(tensor: torch.Tensor) -> bool:
    if any(isinstance(size, int) and size == 0 for size in tensor.shape):
        return False
    dims = zip(tensor.shape, tensor.stride(), strict=True)
    return any(isinstance(stride, int) and stride == 0 and size != 1 for size, stride in dims)


def _tangents_to_inputs(module: fx.GraphModule) -> None:
    graph = module.graph
    made = [n for n in graph.nodes if n.op == "call_function" and str(n.target) == "litz.tangent.default"]
    last = next((n for n in reversed(graph.nodes) if n.op == "placeholder"), None)
    for number, node in enumerate(made):
        with graph.inserting_before(next(iter(graph.nodes))) if last is None else graph.inserting_after(last):
            last = graph.placeholder(f"tangent_{number}")
        last.meta = dict(node.meta)
        node.replace_all_uses_with(last)
        graph.erase_node(node)


def _drop_dead_code(graph: fx.Graph) -> None:
    """Nodes without users, from the end; random draws stay, as later ones depend on them."""
    for node in reversed(list(graph.nodes)):
        if node.users or node.op in ("placeholder", "output"):
            continue
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and (
            target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags or target in CHECKS
        ):
            continue
        graph.erase_node(node)
