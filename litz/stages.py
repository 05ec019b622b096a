"""How a stage is run, and the names of them all, in order. `pipeline.py` says what each one does.

In: a stage, and what it takes. Out: what it makes: timed, between the user's hooks, and, when asked, verified and kept
as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from types import MethodType
from typing import Any

import torch
from torch import fx

from litz.capture.apart import apart_from_caller
from litz.context import Context
from litz.errors import LitzError, OptionError, tell
from litz.graph.signature import Joint
from litz.loop.ir import Program
from litz.loop.text import print_program
from litz.loop.verify import verify
from litz.runtime.artifact import Artifact
from litz.runtime.captures import policy_for
from litz.runtime.executable import Executable
from litz.runtime.frozen import Keeping
from litz.runtime.graphs import Replays
from litz.runtime.own_program import OwnExecutable, OwnProgram
from litz.target import GpuTarget

STAGES = (
    "rewrite_pre_grad", "trace", "freeze", "carry_numbers", "rewrite_joint", "fold_frozen", "rewrite_for_target",
    "replay_draws", "lay_out", "lay_out_weights", "hoist",
    "split", "rewrite_post_grad", "write_in_place",
    "lower", "mark_outputs", "fuse", "check_first", "merge_axes", "accumulate", "split_reductions", "join_small",
    "derive", "order", "plan_memory",
    "render", "build", "load",
)  # fmt: skip
AS_CALLED = ("rewrite_pre_grad", "trace")  # stages that see what the caller has switched on


def run(name: str, ctx: Context, stage: Callable[..., Any], *args: Any) -> Any:
    """One stage: timed, between the user's hooks, and, when asked, its result verified and kept as text."""
    assert name in STAGES, f"stage {name} is not listed"
    args = (hooked(ctx.options.before, name, args[0]), *args[1:])
    before = ctx.timings.get(name, 0.0)
    if ctx.progress is not None:
        ctx.progress.at(name)
    with ctx.timed(name), nullcontext() if name in AS_CALLED else apart_from_caller():
        result = stage(*args)
    result = hooked(ctx.options.after, name, result)
    program = getattr(result, "program", result)  # of what was lowered, beside its constants
    if isinstance(program, Program) and ctx.options.verify:
        verify(program)
    text = text_of(name, program)
    if text is not None:
        ctx.snapshot(name, text)
    return result if ctx.watcher is None else ctx.watcher.ran(name, result, ctx.timings[name] - before)


def text_of(stage: str, result: Any) -> Callable[[], str] | None:
    """How to come by the text of what the stage has made, if that has one."""
    if stage == "render":
        return result.text
    if stage == "split":
        return lambda: f"forward {result.forward.graph}\nbackward {result.backward.graph}"
    if stage == "plan_memory":
        return lambda: "\n".join(f"{f.name}: {_in_order(getattr(result, f.name))}" for f in fields(result))
    match result:
        case Program():
            return lambda: print_program(result)
        case Joint():
            return lambda: f"{result.signature}\n{result.graph.graph}"
        case fx.GraphModule():
            return lambda: str(result.graph)
        case MethodType(__self__=fx.GraphModule() as owner):
            return lambda: str(owner.graph)
    return None


def _in_order(value: Any) -> Any:
    """The same in every process."""
    return sorted(value) if isinstance(value, frozenset) else value


def hooked(hooks: Mapping[str, Callable[[Any], Any]] | None, name: str, value: Any) -> Any:
    """What the user's hook makes of the value: itself, unless the hook returns another."""
    unknown = set(hooks or ()) - set(STAGES)
    if unknown:
        raise OptionError(f"there is no stage {min(unknown)!r} to hook", hint=f"the stages are {', '.join(STAGES)}")
    if not hooks or name not in hooks:
        return value
    try:
        found = hooks[name](value)
    except LitzError:
        raise
    except Exception as error:
        raise OptionError(f"the hook of stage {name!r} raised {type(error).__name__}: {error}") from error
    return value if found is None else found


def keeping(ctx: Context) -> Keeping:
    """How a frozen program treats what it is made of."""

    def say(text: str) -> None:
        ctx.note(text)
        ctx.publish()
        tell(text, ctx.occasion.source)

    return Keeping(ctx.state, ctx.options.freeze == "discard", say)


def loader(ctx: Context) -> Callable[[Artifact], Executable]:
    """The last stage: what was compiled, ready to be called; on the GPU that is the current one now, whichever is when
    a backward is loaded."""
    policy = policy_for(ctx.options.mode)
    replays = None if policy is None else Replays(policy, ctx.tell_of_graphs)
    gpu = torch.cuda.current_device() if isinstance(ctx.target, GpuTarget) else None

    def load(artifact: Artifact) -> Executable:
        if isinstance(artifact, OwnProgram):  # in its place
            return run("load", ctx, OwnExecutable, artifact)
        ready = run("load", ctx, Executable, artifact, replays, gpu)
        if ready.code.from_ptx:
            ctx.note(f"the driver made machine code of {ready.code.from_ptx} kernels while loading them")
            ctx.publish()
        return ready

    return load
