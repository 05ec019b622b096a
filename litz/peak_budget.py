"""A training step whose peak is at most so many bytes.

In: a joint graph, the bound, and the stages that follow. Out: what was compiled with the least time lost.

A plan has levels, each with less memory and more time lost than the one before. Those near the bound are tried on a
copy, as far as its memory plan, which says what a step will take; the first that fits is compiled, and asked once more,
now that what kernels take for themselves is known too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from litz.codegen.plan import private_outputs
from litz.context import Context
from litz.errors import OptionError
from litz.graph.module import copied, graph_module
from litz.graph.partition.absent import without_tangents
from litz.graph.partition.split import Policy, at_level, plan, split
from litz.graph.partition.within_peak import Peak, within_peak
from litz.graph.rewrite_post_grad import rewrite_post_grad
from litz.graph.signature import Joint
from litz.graph.sizes import likely
from litz.loop.ir import Program
from litz.loop.remember import forget
from litz.report import Memory, step_peak
from litz.runtime.artifact import Compiled
from litz.runtime.bind import Backward
from litz.runtime.within_calls import taken_within
from litz.schedule.memory import Layout
from litz.schedule.peak import arena_until, peak
from litz.schedule.place import NO_WORKSPACE, Workspace

Step = tuple[Compiled, Backward]
_LOG = logging.getLogger(__name__)  # with TORCH_LOGS="litz"


class Scheduled(NamedTuple):
    lowered: Any
    program: Program
    layout: Layout


def unheard(ctx: Context) -> Context:
    """For trials: the same options, without the user's hooks, and a report that nobody reads."""
    return Context(replace(ctx.options, before=None, after=None, snapshots=False, dump=None), ctx.target)


class Foretold(NamedTuple):
    """Of a step that is not compiled: its peak, and its forward and backward in the order in which they would run, with
    the memory that each takes."""

    peak: Peak
    memories: tuple[Memory, Memory]
    programs: tuple[Program, Program]


def fit_in(
    joint: Joint, ctx: Context, most: int, policy: Policy, schedule: Callable[..., Scheduled],
    compile_training: Callable[[Joint, Context, Policy], Step],
) -> Step:  # fmt: skip
    """`most`: bytes of arguments, gradients and all that the step takes."""
    there = ctx.target.memory_bytes
    if most > there:
        raise OptionError(
            f"memory_budget is {most:,} bytes, more than the {there:,} of the machine",
            hint='write a number of bytes such as "6GiB", or a share of its memory such as "80%"',
        )
    arguments = bytes_of_arguments(joint)
    quiet = unheard(ctx)
    begun, patience = time.monotonic(), ctx.options.budget_seconds
    levels = plan(joint, policy)

    def over() -> bool:
        return patience is not None and time.monotonic() - begun > patience

    def asked(level: int) -> tuple[Joint, Policy]:
        copy = graph_module(joint.graph, copied(joint.graph.graph))
        return replace(joint, graph=copy), at_level(levels, level, policy)

    known: dict[Any, Peak] = {}  # levels may be alike

    def foretold(level: int) -> Peak:
        copy, how = asked(level)
        choice = how.kept, how.offloaded
        if choice not in known:
            found = known[choice] = foretell(copy, how, quiet, schedule).peak
            _LOG.info("memory_budget: level %d of %d takes %s bytes", level, levels.count - 1, f"{found.bytes:,}")
        return known[choice]

    def compiled(level: int) -> tuple[Step, Peak]:
        ctx.built.clear()
        copy, how = asked(level)
        step = compile_training(copy, ctx, how)
        step[1](())
        return step, _step(arguments, [built.memory for built in ctx.built])

    step, fitting = within_peak(most, levels.count, levels.bound, foretold, compiled, over)
    ctx.again_seconds = levels.at(fitting.level).seconds
    on = "computing again" if policy.offload is None else "computing again and on files"
    ctx.note(
        f"memory_budget of {most:,} bytes: a step takes {fitting.peak.bytes:,} bytes at its peak, {arguments:,} of "
        f"them for arguments, and spends {ctx.again_seconds * 1e3:.1f} ms on {on}"
    )
    if fitting.ended:
        ctx.note(
            f"the search for what to keep ended after {patience:g} seconds (option 'budget_seconds') with the best "
            "found by then; with more of them a step may take less time"
        )
    ctx.publish()
    return step


def foretell(
    joint: Joint, policy: Policy, ctx: Context, schedule: Callable[..., Scheduled],
    workspace_of: Callable[[Scheduled, Context], Workspace] | None = None,
) -> Foretold:  # fmt: skip
    """A step up to its memory plan. The joint graph is written into: it is a copy; and nobody is told of it.
    `workspace_of`: what kernels take for themselves, which takes longer to find out than all the rest."""
    within = taken_within(ctx.target)

    def memory(made: Scheduled, dropped: Sequence[str] = ()) -> Memory:
        if workspace_of is None:
            return peak(made.program, made.layout, NO_WORKSPACE, dropped, within=within)
        workspace = workspace_of(made, ctx)
        until = arena_until(made.program, made.layout, workspace, dropped)
        return peak(made.program, made.layout, workspace, dropped, within=within, until=until)

    try:
        parts = split(joint, policy)
        forward = schedule(rewrite_post_grad(parts.forward, ctx), ctx, True)
        private = private_outputs(forward.program.outputs, forward.program.buffers, forward.layout.owned)
        donated = [parts.first_saved + i for i in range(parts.saved) if joint.forward_outputs + i in private]
        graph = without_tangents(parts.backward, parts.taken, ())
        backward = schedule(rewrite_post_grad(graph, ctx), ctx, True, donated, parts.in_memory)
        memories = memory(forward), memory(backward, backward.program.named(parts.in_memory))
        programs = forward.program, backward.program
        return Foretold(_step(bytes_of_arguments(joint), memories), memories, programs)
    finally:
        forget()


def bytes_of_arguments(joint: Joint) -> int:
    nodes = [n for n in joint.graph.graph.nodes if n.op == "placeholder"][: joint.primals]
    values = [n.meta.get("val") for n in nodes]
    return sum(likely(v.numel()) * v.element_size() for v in values if isinstance(v, torch.Tensor))


def _step(arguments: int, memories: Sequence[Memory]) -> Peak:
    forward, *backwards = memories
    largest = max(memories, key=lambda memory: memory.peak).largest
    return Peak(arguments + step_peak(forward, backwards), largest)


__all__ = ["Foretold", "Scheduled", "bytes_of_arguments", "fit_in", "foretell", "unheard"]
