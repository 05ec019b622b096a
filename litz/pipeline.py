"""The compiler on one screen: each stage a line, in order, with a unique name.

In: a torch-level function and its inputs. Out: a callable that does the same, faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from litz.capture.autograd import Differentiable
from litz.capture.joint import trace_joint
from litz.capture.wrappers import wrap
from litz.codegen.render import render
from litz.context import Built, Context, set_last_report
from litz.errors import CaptureError
from litz.graph.channels_last import channels_last_convolution
from litz.graph.partition.mincut import split_by_minimum_cut
from litz.graph.signature import Joint
from litz.loop.ir import Program
from litz.loop.text import print_program
from litz.loop.verify import verify
from litz.ops.lower import Lowered, lower
from litz.runtime.cpu import Executable
from litz.schedule.fuse import fuse
from litz.schedule.memory import plan_memory
from litz.schedule.simplify import mark_outputs, merge_axes

STAGES = ("trace", "split", "lower", "mark_outputs", "fuse", "merge_axes", "plan_memory", "render", "build")
Strides = Sequence[tuple[int, ...] | None] | None


def compile_function(
    function: Callable[..., Any], inputs: Sequence[Any], output_strides: Strides, ctx: Context, training: bool = False
) -> Callable[..., Any]:
    """The whole of it. `output_strides` are those of eager's results, where known."""
    joint = run("trace", ctx, trace, function, inputs, output_strides, ctx, training)
    if not joint.gradient_of:
        executable = compile_graph(joint.graph, ctx)
        executable.eager = function
        return wrap(executable, joint.signature, function)
    split = run("split", ctx, split_by_minimum_cut, joint)
    forward = compile_graph(split.forward, ctx)
    core = Differentiable(joint, split, forward, lambda: compile_graph(split.backward, ctx))
    return wrap(core, joint.signature, function)


def compile_graph(graph: fx.GraphModule, ctx: Context) -> Executable:
    """A functional ATen graph as native code."""
    lowered = run("lower", ctx, lower, graph, ctx)
    program = run("mark_outputs", ctx, mark_outputs, lowered.program)
    program = run("fuse", ctx, fuse, program, ctx)
    program = run("merge_axes", ctx, merge_axes, program)
    layout = run("plan_memory", ctx, plan_memory, program)
    rendering = run("render", ctx, render, program, layout, ctx)
    executable = run("build", ctx, Executable, rendering, program, layout, lowered.constants, ctx.target)
    ctx.built.append(Built(rendering.launches, rendering.kernels, Counter(c.target for c in program.calls), layout.size))
    set_last_report(ctx.report())
    return executable


def trace(function: Callable[..., Any], inputs: Sequence[Any], output_strides: Strides, ctx: Context, training: bool) -> Joint:
    """The trace with convolutions channels last, if eager's output strides are known and nothing objects."""
    own = dict(ctx.options.decompositions or {})
    if output_strides is not None:
        try:
            return trace_joint(function, inputs, output_strides, channels_last_convolution(ctx.target) | own, training)
        except CaptureError as error:
            # A view that only the other layout allows, for one: the plain trace decides.
            ctx.note(f"convolutions keep their layout: {error}")
    return trace_joint(function, inputs, output_strides, own, training)


def run(name: str, ctx: Context, stage: Callable[..., Any], *args: Any) -> Any:
    """One stage: timed, and, when asked, its result verified and kept as text."""
    assert name in STAGES, f"stage {name} is not listed"
    with ctx.timed(name):
        result = stage(*args)
    program = result.program if isinstance(result, Lowered) else result
    if isinstance(program, Program):
        if ctx.options.verify:
            verify(program)
        ctx.snapshot(name, lambda: print_program(program))
    elif name == "render":
        ctx.snapshot(name, result.text)
    elif name == "trace":
        ctx.snapshot(name, lambda: f"{result.signature}\n{result.graph.graph}")
    return result
