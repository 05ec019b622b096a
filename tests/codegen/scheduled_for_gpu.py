"""The programs that a model becomes on a GPU, where there is none: traced on the CPU, scheduled for the GPU.

In: a module and its arguments. Out: the loop program of its forward, and in training that of its backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from litz.context import Context
from litz.graph.lay_out import lay_out
from litz.graph.partition.split import split
from litz.graph.rewrite_joint import rewrite_joint
from litz.graph.rewrite_post_grad import rewrite_post_grad
from litz.loop.ir import Program
from litz.loop.verify import verify
from litz.ops.lower import lower
from litz.options import Options
from litz.pipeline import trace
from litz.schedule.accumulate import accumulate
from litz.schedule.check_first import check_first
from litz.schedule.fuse import fuse
from litz.schedule.join_small import join_small
from litz.schedule.simplify import mark_outputs, merge_axes
from litz.schedule.split_reductions import split_reductions
from tests.codegen.emulate import gpu_target


def gpu_programs(model: torch.nn.Module, inputs: Mapping[str, Any], training: bool) -> list[Program]:
    ctx = Context(Options(), gpu_target())
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    flat = [t if training else t.detach() for t in (*state.values(), *inputs.values())]

    def function(*args: Any) -> tuple[Any, ...]:
        given = dict(zip(inputs, args[len(state) :], strict=True))
        found = torch.func.functional_call(model, dict(zip(state, args, strict=False)), (), given)
        return (found.loss if training else found.logits,)

    with torch.set_grad_enabled(training):
        joint = lay_out(rewrite_joint(trace(function, flat, None, ctx, training), ctx), ctx)
    graphs = [joint.graph]
    if training:
        parts = split(joint)
        graphs = [rewrite_post_grad(graph, ctx) for graph in (parts.forward, parts.backward)]
    programs = []
    for graph in graphs:
        program = merge_axes(check_first(fuse(mark_outputs(lower(graph, ctx).program), ctx)))
        programs.append(join_small(split_reductions(accumulate(program, ctx), ctx), ctx))
        verify(programs[-1])
    return programs


__all__ = ["gpu_programs"]
