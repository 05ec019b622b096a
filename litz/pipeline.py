"""The compiler on one screen: each stage a line, in order, with a unique name.

In: a torch-level function and its inputs. Out: a callable that does the same, faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

from torch import fx

from litz.capture.autograd import Absent
from litz.capture.collector import COLLECTOR
from litz.capture.joint import trace_joint
from litz.capture.leave import leave_backward, must_be_raised
from litz.capture.outputs import known
from litz.capture.reach import refuse_reads_around_arguments
from litz.codegen.llvm.build import Building
from litz.codegen.llvm.render import render
from litz.codegen.plan import host_plan
from litz.context import Context
from litz.errors import OptionError
from litz.graph.carry_numbers import carry_numbers
from litz.graph.freeze.fold_frozen import fold_frozen
from litz.graph.freeze.freeze import freeze
from litz.graph.freeze.hoist import hoist
from litz.graph.freeze.lay_out_weights import lay_out_weights
from litz.graph.lay_out import lay_out
from litz.graph.partition.absent import without_tangents
from litz.graph.partition.again import Rules
from litz.graph.partition.cost import at_ceilings, ceilings
from litz.graph.partition.extract import Split
from litz.graph.partition.measured import measured
from litz.graph.partition.offload import Offload
from litz.graph.partition.split import Policy, split
from litz.graph.replay_draws import replay_draws
from litz.graph.rewrite_for_target import rewrite_for_target
from litz.graph.rewrite_joint import rewrite_joint
from litz.graph.rewrite_post_grad import rewrite_inference, rewrite_post_grad
from litz.graph.rewrite_pre_grad import rewrite_pre_grad
from litz.graph.signature import Joint, Tangent, Training
from litz.graph.write_in_place import write_in_place
from litz.loop.offload import usual_folder
from litz.loop.remember import forget
from litz.ops.decompose import decompositions
from litz.ops.lower import lower
from litz.options import bytes_of_budget
from litz.peak_budget import Scheduled, fit_in
from litz.report import Built
from litz.runtime.artifact import Artifact, Compiled
from litz.runtime.bind import Backward, bind
from litz.runtime.own_program import compile_by_own
from litz.runtime.within_calls import taken_within
from litz.schedule.accumulate import accumulate
from litz.schedule.check_first import check_first
from litz.schedule.derive import derive
from litz.schedule.fuse import fuse
from litz.schedule.join_small import join_small
from litz.schedule.memory import WORTH_A_PAUSE, WORTH_IT_UNDER_A_BOUND, plan_for_training, plan_memory
from litz.schedule.order import order
from litz.schedule.peak import arena_until, peak
from litz.schedule.place import Workspace, place
from litz.schedule.simplify import mark_outputs, merge_axes
from litz.schedule.split_reductions import split_reductions
from litz.stages import keeping, loader, run

Strides = Sequence[tuple[Any, ...] | None] | None


def compile_function(
    function: Callable[..., Any], inputs: Sequence[Any], output_strides: Strides, ctx: Context, training: bool = False
) -> Callable[..., Any]:
    """The whole of it. `output_strides` are those of eager's results, where known."""
    return bind(*compile_to_data(function, inputs, output_strides, ctx, training), function, loader(ctx), keeping(ctx))


def compile_to_data(
    function: Callable[..., Any], inputs: Sequence[Any], output_strides: Strides, ctx: Context, training: bool = False
) -> tuple[Compiled, Backward | None]:
    """The function as data; and, where it is differentiable, how to come by its backward."""
    with ctx.shown():
        return _compile_to_data(function, inputs, output_strides, ctx, training)


def _compile_to_data(
    function: Callable[..., Any], inputs: Sequence[Any], output_strides: Strides, ctx: Context, training: bool
) -> tuple[Compiled, Backward | None]:
    function = run("rewrite_pre_grad", ctx, rewrite_pre_grad, function, inputs, ctx)
    joint = run("trace", ctx, trace, function, inputs, output_strides, ctx, training)
    joint = run("freeze", ctx, freeze, joint, ctx)
    joint = run("carry_numbers", ctx, carry_numbers, joint, ctx)
    joint = run("rewrite_joint", ctx, rewrite_joint, joint, ctx)
    joint = run("fold_frozen", ctx, fold_frozen, joint, ctx)
    joint = run("rewrite_for_target", ctx, rewrite_for_target, joint, ctx)
    joint = run("replay_draws", ctx, replay_draws, joint, ctx)
    joint = run("lay_out", ctx, lay_out, joint, ctx)
    joint = run("lay_out_weights", ctx, lay_out_weights, joint, ctx)
    joint = run("hoist", ctx, hoist, joint, ctx)
    if not joint.signature.differentiable and ctx.options.inner_compile is not None:
        return Compiled(joint.signature, _by_own(joint.graph, ctx), None, joint.recipe), None
    if not joint.signature.differentiable:
        graph = run("rewrite_post_grad", ctx, rewrite_inference, joint.graph, ctx)
        graph = run("write_in_place", ctx, write_in_place, graph, ctx)
        return Compiled(joint.signature, compile_graph(graph, ctx), None, joint.recipe), None
    most = bytes_of_budget(ctx.options.memory_budget, ctx.target.memory_bytes)
    if most is not None:
        return fit_in(joint, ctx, most, policy_of(ctx), scheduled, _compile_training)
    return _compile_training(joint, ctx, policy_of(ctx))


def _compile_training(joint: Joint, ctx: Context, policy: Policy) -> tuple[Compiled, Backward]:
    parts = run("split", ctx, split, joint, policy)
    by_own = ctx.options.inner_compile is not None
    if by_own:
        forward = _by_own(parts.forward, ctx)
    else:
        graph = run("rewrite_post_grad", ctx, rewrite_post_grad, parts.forward, ctx)
        forward = compile_graph(graph, ctx, training=True)
    step = _training(joint, parts, forward)

    while_compiling = True

    @lru_cache(maxsize=None)
    @COLLECTOR.rests()
    def backward(absent: Absent) -> Artifact:
        graph = without_tangents(parts.backward, parts.taken, absent)
        if by_own:
            return _by_own(graph, ctx, "backward")
        try:
            graph = run("rewrite_post_grad", ctx, rewrite_post_grad, graph, ctx)
            return compile_graph(graph, ctx, "backward", True, step.donated, parts.in_memory)
        except Exception as error:
            # As long as the forward has not run, all of the function can be left to eager; a graph whose sizes vary
            # takes them as arguments that only compiled code is given.
            if while_compiling or joint.signature.sizes or must_be_raised(error, ctx):
                raise
            leave_backward(error, ctx)
            graph = without_tangents(parts.backward, parts.taken, absent)
            return _by_function(lambda as_it_is, inputs: as_it_is, graph, ctx, "backward")

    if ctx.options.backward == "eager" or joint.signature.sizes:
        # For calls in which every result has a tangent. Where sizes vary it cannot wait: what a stage asks of a size
        # becomes a guard only while Dynamo is still at work.
        backward(())
    while_compiling = False
    return Compiled(joint.signature, forward, step), backward


def policy_of(ctx: Context) -> Policy:
    """What the options ask of the split."""
    options = ctx.options
    asked = options.memory_budget
    fraction = float(asked) if isinstance(asked, (int, float)) and asked <= 1 else 1.0
    limits = ceilings(ctx.target)
    cost = measured(ctx.target, limits, ctx.cache, ctx.note_once) if options.cost == "profile" else at_ceilings(limits)
    return Policy(Rules.of_option(options.recompute), fraction, options.budget_solver, cost, _offload(ctx))


def _offload(ctx: Context) -> Offload | None:
    """What the options say of files. The folder is settled here: a default is part of the program."""
    asked = ctx.options.offload
    if asked is False:
        return None
    if ctx.target.device != "cpu":
        raise OptionError(
            "option 'offload' is for programs of a CPU so far", hint="memory_budget without it computes again"
        )
    return Offload(usual_folder() if asked is True else str(asked))


def _training(joint: Joint, split: Split, forward: Artifact) -> Training:
    fakes = [n.meta["val"] for n in joint.graph.graph.nodes if n.op == "placeholder"][joint.primals :]
    tangents = tuple(Tangent(tuple(map(known, f.shape)), tuple(map(known, f.stride())), f.dtype) for f in fakes)
    private = forward.private_outputs()
    own = [split.first_saved + i for i in range(split.saved) if joint.forward_outputs + i in private]
    return Training(tangents, joint.gradient_of, split.saved_primals, split.saved_results, split.saved, tuple(own))


def _by_own(graph: fx.GraphModule, ctx: Context, part: str = "forward") -> Artifact:
    """A split graph by the function that the user has given for it; where more is asked of an artefact than to be
    loaded, the option is refused."""
    assert ctx.options.inner_compile is not None
    return _by_function(ctx.options.inner_compile, graph, ctx, part)


def _by_function(function: Callable[..., Any], graph: fx.GraphModule, ctx: Context, part: str) -> Artifact:
    program = compile_by_own(function, graph, part)
    ctx.built.append(program.built)
    ctx.publish()
    return cast(Artifact, program)


def compile_graph(
    graph: fx.GraphModule, ctx: Context, part: str = "forward", training: bool = False,
    donated: Sequence[int] = (), dropped: Sequence[int] = (),
) -> Artifact:  # fmt: skip
    """A functional ATen graph as native code. `donated`: inputs whose memory it may use again; `dropped`: those that
    nobody else holds."""
    try:
        with ctx.shown():
            return _compile_graph(graph, ctx, part, training, donated, dropped)
    finally:
        forget()


def _compile_graph(
    graph: fx.GraphModule, ctx: Context, part: str, training: bool, donated: Sequence[int], dropped: Sequence[int]
) -> Artifact:
    lowered, program, layout = scheduled(graph, ctx, training, donated, dropped)
    building = Building(ctx.target, ctx.cache, listed=ctx.watcher is not None)
    rendering = run("render", ctx, render, program, layout, ctx, building.begin, lowered.origins)
    code = run("build", ctx, building.finish, rendering.modules)
    for why in code.left_to_driver:
        ctx.note(f"machine code of kernels is left to the driver: {why}")
    constants = tuple(lowered.constants)
    workspace, own = rendering.workspace, program.named(dropped)
    until = arena_until(program, layout, workspace, own) if training else None
    plan = host_plan(
        program, layout, rendering.runs, rendering.slots, len(constants), workspace, rendering.labels, until
    )
    calls = Counter(call.target for call in program.calls)
    likely = place(program.buffers, layout.shared, workspace=workspace)  # where sizes vary, for likely ones
    # Who asks about memory waits for the answer: each kind of call is run once.
    within = None if ctx.options.memory_budget is None else taken_within(ctx.target, ctx.note_once)
    memory = peak(program, layout, workspace, own, within=within, until=until)
    built = Built(part, rendering.launches, rendering.kernels, calls, likely.size, memory)
    ctx.built.append(built)
    ctx.publish()
    return Artifact(plan, code.objects, constants, ctx.target, built, code.kernels)


def scheduled(
    graph: fx.GraphModule, ctx: Context, training: bool, donated: Sequence[int] = (), dropped: Sequence[int] = ()
) -> Scheduled:
    """A graph as kernels and calls in order, and where their memory lies."""
    lowered = run("lower", ctx, lower, graph, ctx)
    program = run("mark_outputs", ctx, mark_outputs, lowered.program)
    program = run("fuse", ctx, fuse, program, ctx)
    program = run("check_first", ctx, check_first, program)
    program = run("merge_axes", ctx, merge_axes, program)
    program = run("accumulate", ctx, accumulate, program, ctx)
    program = run("split_reductions", ctx, split_reductions, program, ctx)
    program = run("join_small", ctx, join_small, program, ctx)
    if training:
        program = run("derive", ctx, derive, program, ctx)
        again, least = program.named(donated), _large(ctx)
        program = run("order", ctx, order, program, ctx, program.named(dropped), again, least)
        layout = run("plan_memory", ctx, plan_for_training, program, again, ctx.target.sums_first, least)
    else:
        layout = run("plan_memory", ctx, plan_memory, program, None, frozenset(), ctx.target.sums_first)
    return Scheduled(lowered, program, layout)


def workspace_of(made: Scheduled, ctx: Context) -> Workspace:
    """What its kernels take for themselves, without building them."""
    return render(made.program, made.layout, ctx, origins=made.lowered.origins).workspace


def _large(ctx: Context) -> int:
    """Bytes that are worth taking and returning in the midst of a step."""
    bounded = bytes_of_budget(ctx.options.memory_budget, ctx.target.memory_bytes) is not None
    return WORTH_IT_UNDER_A_BOUND if bounded else WORTH_A_PAUSE


def trace(
    function: Callable[..., Any], inputs: Sequence[Any], output_strides: Strides, ctx: Context, training: bool
) -> Joint:
    own = ctx.options.decompositions
    table = decompositions() if own is None else dict(own)
    joint = trace_joint(function, inputs, output_strides, table, training)
    if not ctx.target.reads_around_arguments:
        refuse_reads_around_arguments(joint)
    return joint
