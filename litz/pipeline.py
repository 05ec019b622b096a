"""The compiler on one screen: each stage a line, in order, with a unique name.

In: a traced-to-be function and its inputs. Out: an `Executable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from litz.capture.trace import Captured, trace
from litz.codegen.render import render
from litz.context import Context
from litz.errors import CaptureError
from litz.graph.channels_last import channels_last_convolution
from litz.loop.ir import Program
from litz.loop.text import print_program
from litz.loop.verify import verify
from litz.ops.lower import lower
from litz.runtime.cpu import Executable
from litz.schedule.fuse import fuse
from litz.schedule.memory import plan_memory
from litz.schedule.simplify import mark_outputs, merge_axes

STAGES = ("trace", "lower", "mark_outputs", "fuse", "merge_axes", "plan_memory", "render", "build")


def compile_function(
    function: Callable[..., Any], inputs: Sequence[Any], output_strides: Sequence[tuple[int, ...] | None] | None, ctx: Context
) -> Executable:
    captured = run("trace", ctx, trace_channels_last, function, inputs, output_strides, ctx)
    lowered = run("lower", ctx, lower, captured.graph, ctx)
    program = run("mark_outputs", ctx, mark_outputs, lowered.program)
    program = run("fuse", ctx, fuse, program, ctx)
    program = run("merge_axes", ctx, merge_axes, program)
    layout = run("plan_memory", ctx, plan_memory, program)
    rendering = run("render", ctx, render, program, layout, ctx)
    return run("build", ctx, Executable, rendering, program, layout, lowered.constants, ctx.target)


def trace_channels_last(
    function: Callable[..., Any], inputs: Sequence[Any], output_strides: Sequence[tuple[int, ...] | None] | None, ctx: Context
) -> Captured:
    """The trace with convolutions channels last, if eager's output strides are known and nothing objects."""
    if output_strides is not None:
        try:
            return trace(function, inputs, output_strides, ctx, channels_last_convolution(ctx.target))
        except CaptureError as error:
            # A view that only the other layout allows, for one: the plain trace decides.
            ctx.note(f"convolutions keep their layout: {error}")
    return trace(function, inputs, output_strides, ctx)


def run(name: str, ctx: Context, stage: Callable[..., Any], *args: Any) -> Any:
    """One stage: timed, and, when asked, its result verified and kept as text."""
    assert name in STAGES, f"stage {name} is not listed"
    with ctx.timed(name):
        result = stage(*args)
    if isinstance(result, Program):
        if ctx.options.verify:
            verify(result)
        ctx.snapshot(name, lambda: print_program(result))
    elif name == "render":
        ctx.snapshot(name, result.text)
    elif name == "trace":
        ctx.snapshot(name, lambda: str(result.graph.graph))
    return result
