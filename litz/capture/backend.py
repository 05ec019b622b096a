"""The backend Dynamo calls: `litz(graph_module, example_inputs)` gives back a callable.

Here is decided what Litz compiles, what it leaves to eager and says so, and for which sizes.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from litz.capture.collector import COLLECTOR
from litz.capture.higher_order import write_out
from litz.capture.leave import PerSize, left_to_eager, must_be_raised, warn_once
from litz.capture.lift_state import lift_state
from litz.capture.never_slower import never_slower
from litz.capture.pieces import has_memory, piece_of
from litz.capture.run_graph import as_written, of_forward_mode, turns_gradients_on
from litz.capture.segments import cut, cut_at, standing_alone
from litz.capture.state import refuse_under_gradients, state_of, zeros_of
from litz.capture.subclasses import is_subclass, parts_of
from litz.compat import capture_number, captured_now, graph_break, recompile_reason
from litz.context import Context
from litz.errors import CaptureError, LoweringError, UnsupportedPlatform, source_of, user_line
from litz.graph.sizes import varies
from litz.loop.expr import NotConstant
from litz.ops.sizes import known_float
from litz.options import Options
from litz.recall import Made, compile_or_recall
from litz.report import Break, Occasion
from litz.runtime.cache import cache_of
from litz.runtime.frozen import FrozenProgram
from litz.target import Machine, detect, detect_gpu, refuse_system
from litz.watch import watch_now

Strides = Sequence["tuple[Any, ...] | None"] | None


def litz(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """`mode` and `options` are those of `torch.compile`, which leaves a mode of "default" out."""
    with COLLECTOR.rests():
        return _litz(graph_module, example_inputs, mode, options)


def _litz(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], mode: str | None, options: Mapping[str, Any] | None
) -> Callable[..., Any]:
    refuse_system(platform.system())  # before anything of another system's is looked for
    chosen = Options.from_environment(options if mode is None else {**(options or {}), "mode": mode})
    for what in chosen.without_effect():
        warn_once(what)
    piece = None if chosen.verify else piece_of(graph_module)  # what is being tested is compiled, worth it or not
    if piece is None:
        return compile_captured(graph_module, example_inputs, chosen)
    ctx = _context(chosen, _occasion(graph_module, example_inputs))
    if piece.function.is_not_worth_it:
        ctx.leave(f"one more capture of a function is not compiled: {piece.function.why()}")
        ctx.publish()
        return piece.watched(as_written(graph_module.forward), ctx)
    return piece.watched(compile_captured(graph_module, example_inputs, chosen), ctx)


def compile_captured(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], options: Options
) -> Callable[..., Any]:
    """One graph of Dynamo's, whole or in pieces."""
    write_out(graph_module)
    alone = standing_alone(graph_module)
    if alone:
        return cut(graph_module, alone, _pieces_compiler(options))
    lifted, held = lift_state(graph_module)
    state = list(held.values())
    given = [*example_inputs, *state]
    compiled = _compile(lifted, given, options, state_of(lifted, given, tuple(held)), _break_after(graph_module))
    return compiled if not state else lambda *args: compiled(*args, *state)


def _compile(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    chosen: Options,
    state: Mapping[int, str],
    ends: Break | None,
) -> Callable[..., Any]:
    occasion = _occasion(graph_module, example_inputs)._replace(ends=ends)
    reason = _not_compiled(graph_module, example_inputs)
    if reason is not None:
        return left_to_eager(graph_module.forward, reason, _context(chosen, occasion))
    fakes = [n.meta.get("example_value") for n in graph_module.graph.nodes if n.op == "placeholder"]
    if any(isinstance(x, torch.SymInt) or varies(x) for x in (*example_inputs, *fakes)):
        compiled = _compile_for_all_sizes(graph_module, example_inputs, fakes, chosen, occasion, state)
    else:
        strides = _eager_strides(graph_module)
        compiled = compile_or_leave(graph_module.forward, example_inputs, strides, chosen, occasion, state)
    return _where_it_is_current(compiled, graph_module) if _means_the_current_gpu(graph_module) else compiled


def _context(
    options: Options, occasion: Occasion, tensors: Sequence[Any] = (), state: Mapping[int, str] | None = None
) -> Context:
    zeros = zeros_of(tensors, state or {}) if options.freeze else ()
    ctx = Context(
        options, _target(options, tensors), cache_of(os.environ), occasion=occasion, state=state or {}, zeros=zeros
    )
    watch = watch_now()
    ctx.watcher = None if watch is None else watch.begins(ctx)
    return ctx


def _target(options: Options, tensors: Sequence[Any]) -> Machine:
    """The machine that the tensors are on."""
    for x in tensors:
        if isinstance(x, torch.Tensor) and x.device.type == "cuda":
            return detect_gpu(x.device.index, options.threads)
    return detect(options.threads)


def _occasion(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Occasion:
    sources = (source_of(node) for node in graph_module.graph.nodes if node.op.startswith("call"))
    training, why = _needs_grad(graph_module.forward, inputs), recompile_reason()
    captured = captured_now()
    return Occasion(
        next(filter(None, sources), None),
        training,
        Occasion().why if why is None else why,
        None if captured is None else f"{captured.place.file}:{captured.place.line}: {captured.place.name}",
        capture_number(),
        _break_after(graph_module),
    )


def _break_after(graph_module: fx.GraphModule) -> Break | None:
    found = graph_break(graph_module)
    return None if found is None else Break(found[0], user_line(found[1]))


def compile_or_leave(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    strides: Strides,
    options: Options,
    occasion: Occasion | None = None,
    state: Mapping[int, str] | None = None,
) -> Callable[..., Any]:
    """The function compiled, or, where it cannot be, itself and a note that says so. `state`: which inputs are
    parameters and buffers of a module, by name."""
    training = _needs_grad(function, inputs)
    module = getattr(function, "__self__", None)
    made = _made(module) if isinstance(module, fx.GraphModule) else []
    if options.freeze and not isinstance(module, fx.GraphModule) and not torch.is_grad_enabled():
        training = False  # nobody can look into it: where it is frozen, it is for inference
    ctx = _context(options, occasion or Occasion(training=training), [*inputs, *made], state)
    try:
        refuse_under_gradients(ctx)
        with _gpu_of([*inputs, *made]):
            compiled = compile_or_recall(
                function, inputs, strides, ctx, lambda given: _compile_to_data(function, given, strides, ctx, training)
            )
            return never_slower(_frozen_now(compiled, inputs), function, inputs, ctx)
    except Exception as error:
        if must_be_raised(error, ctx):
            raise
        return _cut_around(function, error, ctx) or left_to_eager(function, error, ctx)


def _compile_to_data(*args: Any) -> Made:
    from litz.pipeline import compile_to_data  # all of the compiler, which what is recalled does not need

    return compile_to_data(*args)


def _pieces_compiler(options: Options) -> Callable[..., Callable[..., Any]]:
    return lambda piece, inputs: compile_captured(piece, inputs, options)


def _cut_around(function: Callable[..., Any], error: Exception, ctx: Context) -> Callable[..., Any] | None:
    """The graph in pieces around the node that could not be traced, if it is known; that node runs as it is."""
    graph_module = getattr(function, "__self__", None)
    if not isinstance(graph_module, fx.GraphModule) or not isinstance(error, CaptureError):
        return None
    found = cut_at(graph_module, error.at, _pieces_compiler(ctx.options))
    if found is not None:
        ctx.note(f"cut in pieces: {error}")
        ctx.publish()
    return found


def _needs_grad(function: Callable[..., Any], inputs: Sequence[Any]) -> bool:
    """Whether a result may need a gradient."""
    if not any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        return False
    return torch.is_grad_enabled() or (not torch.is_inference_mode_enabled() and turns_gradients_on(function))


def _compile_for_all_sizes(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    fakes: Sequence[Any],
    options: Options,
    occasion: Occasion,
    state: Mapping[int, str],
) -> Callable[..., Any]:
    """One program over symbolic sizes; where some part needs to know them, one for each combination it meets."""
    strides = _eager_strides(graph_module)
    ctx = _context(options, occasion, [*inputs, *_made(graph_module)], state)

    def compile(given: Sequence[Any]) -> Made:
        while True:
            open_sizes = _open_sizes(given)
            try:
                made = _compile_to_data(graph_module.forward, given, strides, ctx, occasion.training)
            except Exception:
                if _open_sizes(given) == open_sizes:
                    raise
            else:
                if _open_sizes(given) == open_sizes:
                    return made
            # A stage asked a size for its value: Dynamo guards it now, and it is that number for all stages.
            ctx.begin_again()

    try:
        refuse_under_gradients(ctx)
        with _gpu_of([*inputs, *_made(graph_module)]):
            compiled = compile_or_recall(graph_module.forward, fakes, strides, ctx, compile)
            compiled = _frozen_now(compiled, inputs)
            return _but_for_minus_zero(never_slower(compiled, graph_module.forward, fakes, ctx), graph_module, fakes)
    except Exception as error:
        if must_be_raised(error, ctx) and not isinstance(error, (LoweringError, NotConstant)):
            raise
        found = _cut_around(graph_module.forward, error, ctx)
        return PerSize(graph_module, error, ctx, _for_sizes) if found is None else found


def _but_for_minus_zero(
    compiled: Callable[..., Any], graph_module: fx.GraphModule, fakes: Sequence[Any]
) -> Callable[..., Any]:
    """A float that was asked for its value, and is zero, is 0.0 to whoever asked; to Dynamo's guard it is also -0.0."""
    zeros = [place for place, fake in enumerate(fakes) if known_float(fake) == 0]
    if not zeros:
        return compiled
    eager = as_written(graph_module.forward)
    return lambda *args: (eager if any(args[place].signbit() for place in zeros) else compiled)(*args)


def _for_sizes(function: Callable[..., Any], args: Sequence[Any], ctx: Context) -> Callable[..., Any]:
    new_sizes = ctx.occasion._replace(why="sizes it had not met, in a graph that is compiled for each combination")
    # Other sizes will ask for the weights again.
    options = replace(ctx.options, freeze=True) if ctx.options.freeze == "discard" else ctx.options
    return compile_or_leave(function, args, None, options, new_sizes, ctx.state)


def _frozen_now(compiled: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any]:
    """The program with its constants made while it is being compiled: what Dynamo guards is then the parameters as they
    are afterwards, released or not. Of fakes they are made in the first call."""
    if isinstance(compiled, FrozenProgram):
        given = (inputs[place] for place in compiled.recipe.frozen)
        if not any(isinstance(value, FakeTensor) for value in given):
            compiled.freeze(inputs)
    return compiled


def _open_sizes(fakes: Sequence[Any]) -> int:
    """Places in the inputs where a size is known only at run time."""
    found = [size for fake in fakes for size in (fake.shape if isinstance(fake, torch.Tensor) else (fake,))]
    return sum(isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None for size in found)


def _eager_strides(graph_module: fx.GraphModule) -> list[tuple[Any, ...] | None]:
    """The strides Dynamo saw each output have, which are eager's. None of what forward mode gives: a tangent lies as
    its primal does, whatever it was computed from, and where Dynamo's fake of that one lies otherwise than in eager,
    nothing tells that the tangent's does too."""
    derived = of_forward_mode(graph_module.graph)
    (output,) = (n for n in graph_module.graph.nodes if n.op == "output")
    found: list[tuple[Any, ...] | None] = []
    values = output.args[0]
    for value in values if isinstance(values, (tuple, list)) else (values,):
        example = value.meta.get("example_value") if isinstance(value, fx.Node) else None
        found.append(tuple(example.stride()) if isinstance(example, torch.Tensor) and value not in derived else None)
    return found


def _not_compiled(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> str | None:
    """Why this graph is not compiled, or None."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    for whole in [t for t in tensors if is_subclass(t)]:
        if type(whole).__name__ == "DTensor":
            return "an input is a DTensor: what is spread over devices is not compiled"
        tensors = [t for t in tensors if t is not whole] + parts_of(whole)
    # A number of the host's may be beside tensors of a device: `graph/carry_numbers.py` looks at how it is used.
    devices = {t.device for t in (*tensors, *_made(graph_module)) if t.device.type != "cpu" or t.dim() != 0}
    if len(devices) > 1:
        return f"tensors are on {' and '.join(sorted(map(str, devices)))}: a graph is compiled for one device"
    for device in devices:
        why = _why_not_on(device)
        if why is not None:
            return f"a tensor is on {device}: {why}"
    for t in tensors:
        if t.layout is not torch.strided or t.is_quantized or type(t) not in _PLAIN:
            return f"an input is a {type(t).__name__} of layout {t.layout}: only plain dense tensors are compiled"
    if any(_counts_from_storage(node) for node in graph_module.graph.nodes):
        return "as_strided counts from the start of the storage, which the compiled code does not see"
    return None


def _why_not_on(device: torch.device) -> str | None:
    """What keeps programs on this device from being compiled, or None."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return "tensors of CPUs and of NVIDIA's GPUs are compiled"
    try:
        detect_gpu(device.index)
    except UnsupportedPlatform as error:
        return str(error)
    return None


def _gpu_of(tensors: Sequence[Any]) -> AbstractContextManager[Any]:
    """Has the GPU that tensors are on be the current one, as it will be when what is compiled runs."""
    for t in tensors:
        if isinstance(t, torch.Tensor) and t.device.type == "cuda":
            return torch.cuda.device(t.device)
    return nullcontext()


def _means_the_current_gpu(graph_module: fx.GraphModule) -> bool:
    """Whether it speaks of "cuda", which is whichever GPU is the current one at a call."""
    arguments = (a for node in graph_module.graph.nodes for a in (node.target, *node.args, *node.kwargs.values()))
    return torch.cuda.is_available() and any(
        a == "cuda" if isinstance(a, str) else isinstance(a, torch.device) and a == torch.device("cuda")
        for a in arguments
    )


def _where_it_is_current(compiled: Callable[..., Any], graph_module: fx.GraphModule) -> Callable[..., Any]:
    mine, eager = torch.cuda.current_device(), as_written(graph_module.forward)
    return lambda *args: (compiled if torch.cuda.current_device() == mine else eager)(*args)


def _made(graph_module: fx.GraphModule) -> list[torch.Tensor]:
    """What the graph's own nodes make, as Dynamo saw it."""
    values = (node.meta.get("example_value") for node in graph_module.graph.nodes)
    return [value for value in values if isinstance(value, torch.Tensor)]


def _counts_from_storage(node: fx.Node) -> bool:
    """Whether it takes an offset in the storage of an input, which no guard of Dynamo's is about."""
    name = getattr(node.target, "__name__", node.target)
    takes = _BEFORE_OFFSET.get(str(name).partition(".")[0])
    if takes is None or (len(node.args) <= takes and "storage_offset" not in node.kwargs):
        return False
    given = [n.meta.get("example_value") for n in node.graph.nodes if n.op == "placeholder"]
    storages = {t.untyped_storage()._cdata for t in given if isinstance(t, torch.Tensor) and has_memory(t)}
    read = node.all_input_nodes[0].meta.get("example_value")
    known = isinstance(read, torch.Tensor) and has_memory(read)
    return not known or read.untyped_storage()._cdata in storages


# Arguments in front of the offset in the storage.
_BEFORE_OFFSET = {"as_strided": 3, "as_strided_": 3, "as_strided_copy": 3, "as_strided_scatter": 4}
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


__all__ = ["compile_or_leave", "litz"]
