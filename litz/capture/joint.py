"""Trace a torch-level graph to one functional ATen graph, its backward included, in a single run.

In: a function and the tensors it is called with. Out: a `Joint`: a graph whose inputs are the primals and
then the tangents, and whose outputs are the results, the new values of inputs that autograd must see, and
the gradients; inputs written to out of autograd's sight are written by `copy_` nodes at the end of the
forward. In inference there are no tangents and no gradients, and nothing else differs.

The one idea: tangents are made in the middle of the trace, when the results are known, by an operator of
our own; afterwards its nodes become inputs. So no run is spent on finding out what the results look like.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    disable_fake_tensor_cache,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from litz.capture.forward_mode import INSTEAD, carries_tangents
from litz.capture.overlap import bases_for
from litz.capture.record import Recorder
from litz.capture.repeated import Repeated, fake_like
from litz.capture.subclasses import Forms, form_of, has_gradient, taken_apart
from litz.capture.traced import Traced
from litz.compat import forgetting_fakes
from litz.errors import CaptureError
from litz.graph.alias import CHECKS
from litz.graph.signature import Base, Joint
from litz.graph.sizes import varies

aten = torch.ops.aten


def trace_joint(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    output_strides: Sequence[tuple[Any, ...] | None] | None,
    decompositions: Mapping[Any, Callable[..., Any]],
    training: bool,
) -> Joint:
    """`output_strides`: what eager's outputs have, where known; a result laid out otherwise is copied."""
    if carries_tangents(inputs):
        raise CaptureError("it is called with tangents of forward mode, which would be lost in here", hint=INSTEAD)
    if any(isinstance(x, torch.Tensor) and is_functorch_wrapped_tensor(x) for x in inputs):
        raise CaptureError("it is called inside a transform, on tensors that have no memory of their own")
    forms = tuple(form_of(value) for value in inputs)
    arguments, places = _distinct(_leaves_apart(inputs, forms))

    def trace(bases: tuple[Base, ...]) -> Joint:
        recorder = Recorder(decompositions)
        return _run(Traced(function, arguments, places, bases, forms, output_strides, training, recorder))

    joint = trace(())
    # Tracing takes inputs for independent; only now it is known which ones are written to.
    bases = bases_for(arguments, joint.signature.mutated, training)
    return trace(bases) if bases else joint


def _run(tracer: Traced) -> Joint:
    inputs, recorder, training = tracer.given, tracer.recorder, tracer.training
    mode = symbolic_mode(inputs) or FakeTensorMode(allow_non_fake_inputs=True, shape_env=_ragged_sizes(tracer))
    recorder.fake = Repeated(mode)
    random = torch.get_rng_state()
    try:
        with ExitStack() as stack:
            stack.enter_context(forgetting_fakes())
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())  # which the other turned on
            apart = len(inputs) - len(tracer.bases)
            shared = _shared_memory(inputs)
            fakes = [_fake(mode, x, shared) if i < apart else _fresh(mode, x) for i, x in enumerate(inputs)]
            stack.callback(torch._C._autograd._saved_tensors_hooks_set_tracing, _hooks_off())
            stack.enter_context(torch.autograd.set_detect_anomaly(False))  # it looks for NaNs, and there are no values
            if mode.shape_env is None:
                stack.enter_context(disable_fake_tensor_cache(mode))  # `Repeated` knows more, and asks once
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
        cause = _first_cause(error)
        told = f"tracing to ATen failed: {type(cause).__name__}: {cause}"
        if isinstance(error, DynamicOutputShapeException):
            told = f"the size of what {error.func} gives depends on data"
        raise CaptureError(told, stage="trace", source=recorder.user_line, at=recorder.stopped_at) from error
    _tangents_to_inputs(module)
    _drop_dead_code(module.graph)
    module.recompile()
    learned = tracer.learned
    return Joint(module, tracer.signature(), len(inputs), learned.forward_outputs, learned.gradient_of)


def _hooks_off() -> bool:
    """The user's hooks on saved tensors see those of the compiled function, not the ones of its trace; and a
    checkpoint made of such hooks is traced as the plain call it means. The state before."""
    return torch._C._autograd._saved_tensors_hooks_set_tracing(True)


def _ragged_sizes(tracer: Traced) -> ShapeEnv | None:
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


def _shared_memory(inputs: Sequence[Any]) -> set[int]:
    """Memory that several inputs lie in: their fakes lie in one piece of memory too."""
    plain = [x for x in inputs if type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided]
    counts = Counter(x.untyped_storage()._cdata for x in plain)
    return {memory for memory, count in counts.items() if count > 1}


def _fake(mode: FakeTensorMode, value: Any, shared: Collection[int]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if isinstance(value, FakeTensor) and value.fake_mode is mode:
        alone = value.detach()
        alone.item_memo, alone.nested_int_memo = value.item_memo, value.nested_int_memo
        return alone
    if isinstance(value, FakeTensor):
        sizes, strides = [int(s) for s in value.shape], [int(s) for s in value.stride()]
        with mode:
            return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    if value.is_inference():  # which its fake would be as well, and refuse to be written to
        return _fresh(mode, value)
    plain = fake_like(mode, value)
    if plain is not None and value.untyped_storage()._cdata not in shared:
        return plain
    return mode.from_tensor(value.detach() if value.requires_grad else value, static_shapes=True)


def _fresh(mode: FakeTensorMode, value: torch.Tensor) -> torch.Tensor:
    """A fake of the same form that begins where its memory begins."""
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


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


def _first_cause(error: BaseException) -> BaseException:
    """What failed: a transform that is left while an error passes through may fail in turn, and say nothing of why."""
    while "INTERNAL ASSERT FAILED" in str(error) and error.__context__ is not None:
        error = error.__context__
    return error


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
