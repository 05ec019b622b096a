"""The compiler on one screen: each stage a line, in order, with a unique name.

In: a torch-level function and its inputs. Out: a callable that does the same, faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from torch import fx

from litz.capture.apart import apart_from_caller
from litz.capture.autograd import Differentiable
from litz.capture.joint import trace_joint
from litz.capture.run_graph import as_written
from litz.capture.wrappers import wrap
from litz.codegen.render import render
from litz.context import Context
from litz.errors import OptionError
from litz.graph.lay_out import lay_out
from litz.graph.partition.absent import without_tangents
from litz.graph.partition.mincut import split_by_minimum_cut
from litz.graph.rewrite_joint import rewrite_joint
from litz.graph.rewrite_post_grad import rewrite_post_grad
from litz.graph.rewrite_pre_grad import rewrite_pre_grad
from litz.graph.signature import Joint
from litz.loop.ir import Program
from litz.loop.text import print_program
from litz.loop.verify import verify
from litz.ops.decompose import decompositions
from litz.ops.lower import Lowered, lower
from litz.report import Built
from litz.runtime.cpu import Executable
from litz.schedule.check_first import check_first
from litz.schedule.fuse import fuse
from litz.schedule.memory import plan_for_training, plan_memory
from litz.schedule.simplify import mark_outputs, merge_axes

STAGES = (
    "rewrite_pre_grad", "trace", "rewrite_joint", "lay_out", "split", "rewrite_post_grad",
    "lower", "mark_outputs", "fuse", "check_first", "merge_axes", "plan_memory", "render", "build",
)  # fmt: skip
AS_CALLED = ("rewrite_pre_grad", "trace")  # stages that see what the caller has switched on
Strides = Sequence[tuple[Any, ...] | None] | None


def compile_function(
    function: Callable[..., Any], inputs: Sequence[Any], output_strides: Strides, ctx: Context, training: bool = False
) -> Callable[..., Any]:
    """The whole of it. `output_strides` are those of eager's results, where known."""
    function = run("rewrite_pre_grad", ctx, rewrite_pre_grad, function, inputs, ctx)
    joint = run("trace", ctx, trace, function, inputs, output_strides, ctx, training)
    joint = run("rewrite_joint", ctx, rewrite_joint, joint, ctx)
    joint = run("lay_out", ctx, lay_out, joint, ctx)
    eager = as_written(function)
    if not joint.signature.differentiable:
        executable = compile_graph(joint.graph, ctx)
        wrapped = wrap(executable, joint.signature, eager)
        if wrapped is executable:  # one call of it is one of the user's function
            executable.eager = eager
        return wrapped
    split = run("split", ctx, split_by_minimum_cut, joint)
    forward = compile_graph(run("rewrite_post_grad", ctx, rewrite_post_grad, split.forward, ctx), ctx, training=True)

    # What the forward made for the backward alone, as inputs of the backward.
    own = [joint.forward_outputs + i in forward.private_outputs() for i in range(split.saved)]
    donated = tuple(split.first_saved + i for i, private in enumerate(own) if private)

    def backward(absent: tuple[int, ...]) -> Callable[[list[Any], bool], Sequence[Any]]:
        graph = without_tangents(split.backward, split.taken, absent)
        graph = run("rewrite_post_grad", ctx, rewrite_post_grad, graph, ctx)
        return compile_graph(graph, ctx, "backward", True, donated).consume

    step = Differentiable(joint, split, forward, backward)
    if ctx.options.backward == "eager" or joint.signature.sizes:
        # For calls in which every result has a tangent. Where sizes vary it cannot wait: what a stage asks of a size
        # becomes a guard only while Dynamo is still at work.
        step.backward(())
    return wrap(step, joint.signature, eager)


def compile_graph(
    graph: fx.GraphModule, ctx: Context, part: str = "forward", training: bool = False, donated: Sequence[int] = ()
) -> Executable:
    """A functional ATen graph as native code. `donated`: inputs whose memory it may use again."""
    lowered = run("lower", ctx, lower, graph, ctx)
    program = run("mark_outputs", ctx, mark_outputs, lowered.program)
    program = run("fuse", ctx, fuse, program, ctx)
    program = run("check_first", ctx, check_first, program)
    program = run("merge_axes", ctx, merge_axes, program)
    if training:
        names = frozenset(name for i in donated if (name := program.inputs[i]) is not None)
        layout = run("plan_memory", ctx, plan_for_training, program, names)
    else:
        layout = run("plan_memory", ctx, plan_memory, program)
    rendering = run("render", ctx, render, program, layout, ctx)
    executable = run("build", ctx, Executable, rendering, program, layout, lowered.constants, ctx.target)
    calls = Counter(call.target for call in program.calls)
    ctx.built.append(Built(part, rendering.launches, rendering.kernels, calls, executable.placement.size))
    ctx.publish()
    return executable


def trace(
    function: Callable[..., Any], inputs: Sequence[Any], output_strides: Strides, ctx: Context, training: bool
) -> Joint:
    own = decompositions() | dict(ctx.options.decompositions or {})
    return trace_joint(function, inputs, output_strides, own, training)


def run(name: str, ctx: Context, stage: Callable[..., Any], *args: Any) -> Any:
    """One stage: timed, between the user's hooks, and, when asked, its result verified and kept as text."""
    assert name in STAGES, f"stage {name} is not listed"
    args = (hooked(ctx.options.before, name, args[0]), *args[1:])
    with ctx.timed(name), nullcontext() if name in AS_CALLED else apart_from_caller():
        result = stage(*args)
    result = hooked(ctx.options.after, name, result)
    program = result.program if isinstance(result, Lowered) else result
    if isinstance(program, Program):
        if ctx.options.verify:
            verify(program)
        ctx.snapshot(name, lambda: print_program(program))
    elif name == "render":
        ctx.snapshot(name, result.text)
    elif isinstance(result, Joint):
        ctx.snapshot(name, lambda: f"{result.signature}\n{result.graph.graph}")
    return result


def hooked(hooks: Mapping[str, Callable[[Any], Any]] | None, name: str, value: Any) -> Any:
    """What the user's hook makes of the value: itself, unless the hook returns another."""
    unknown = set(hooks or ()) - set(STAGES)
    if unknown:
        raise OptionError(f"there is no stage {min(unknown)!r} to hook", hint=f"the stages are {', '.join(STAGES)}")
    found = hooks[name](value) if hooks and name in hooks else None
    return value if found is None else found
