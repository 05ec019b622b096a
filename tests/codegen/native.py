"""Run a loop program as machine code, and build the small programs that the tests of this folder need."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from litz.codegen.llvm.build import build as objects_of
from litz.codegen.llvm.render import render
from litz.codegen.plan import host_plan
from litz.context import Context
from litz.loop.dtype import from_torch
from litz.loop.expr import Axis, constant, expr
from litz.loop.ir import Apply, Buffer, Kernel, Load, Op, Program, Store, View
from litz.loop.verify import verify
from litz.options import Options
from litz.report import Built
from litz.runtime.artifact import Artifact
from litz.runtime.executable import Executable
from litz.schedule.memory import plan_memory
from litz.target import Target, detect


def build(program: Program, target: Target | None = None) -> Executable:
    ctx = Context(Options(), target or detect(threads=2))
    verify(program)
    layout = plan_memory(program, sums_first=ctx.target.sums_first)
    rendering = render(program, layout, ctx)
    plan = host_plan(program, layout, rendering.runs, rendering.slots, 0, rendering.workspace)
    objects = objects_of(rendering.modules, ctx.target)
    return Executable(Artifact(plan, objects, (), ctx.target, Built("forward", 0, 0, {}, 0)))


def run(program: Program, inputs: Sequence[torch.Tensor], target: Target | None = None) -> list[torch.Tensor]:
    return list(build(program, target)(*inputs))


def over_each(inputs: Sequence[torch.Tensor], op: str, result: str) -> Program:
    """`op` applied to every element of some vectors of one length."""
    length = inputs[0].numel()
    axis = Axis("i0", length)
    types = [from_torch(x.dtype) or "" for x in inputs]
    loads: list[Op] = [Load(f"v{k}", dtype, f"in{k}", expr(axis)) for k, dtype in enumerate(types)]
    applied = Apply("out", result, op, tuple(f"v{k}" for k in range(len(inputs))))
    buffers = {f"in{k}": Buffer(f"in{k}", dtype, expr(length), "input") for k, dtype in enumerate(types)}
    buffers["y"] = Buffer("y", result, expr(length), "output")
    kernel = Kernel("each", (axis,), (), (*loads, applied, Store("y", expr(axis), "out")))
    view = View("y", result, (expr(length),), (constant(1),))
    return Program(buffers, tuple(f"in{k}" for k in range(len(inputs))), (view,), (kernel,))


def ulps(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """How far `found` is from `exact` (a float64 result), in units of the last place of `found`'s type."""
    near = exact.to(found.dtype)
    unit = (torch.nextafter(near.abs(), torch.full_like(near, torch.inf)) - near.abs()).double()
    distance = (found.double() - exact).abs() / unit
    same = (found == near) | (found.isnan() & near.isnan())
    return torch.where(same, distance.nan_to_num(0.0, 0.0, 0.0).clamp(max=0.5), distance)
