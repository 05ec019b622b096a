"""Bind: compiled data in, a callable in place of the user's function out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litz.capture.autograd import Absent, Differentiable
from litz.capture.run_graph import as_written_once_called
from litz.capture.wrappers import wrap
from litz.errors import tell
from litz.runtime.artifact import Artifact, Compiled
from litz.runtime.executable import Executable
from litz.runtime.frozen import FrozenProgram, Keeping

UNNAMED = Keeping({}, False, tell)
Backward = Callable[[Absent], Artifact]  # given the tangents that do not exist


def bind(
    compiled: Compiled, backward: Backward | None, function: Callable[..., Any],
    load: Callable[[Artifact], Executable] = Executable, keeping: Keeping = UNNAMED,
) -> Callable[..., Any]:  # fmt: skip
    """`function`, the user's own, runs wherever the code cannot; `backward` is asked for when tangents arrive;
    `keeping` is about what a frozen program is made of."""
    eager = as_written_once_called(function)
    if compiled.recipe is not None:
        return FrozenProgram(
            compiled.recipe,
            lambda constants, rest: _for_inference(compiled, load(compiled.forward.with_constants(constants)), rest),
            eager,
            keeping,
        )
    forward = load(compiled.forward)
    if compiled.training is None:
        return _for_inference(compiled, forward, eager)
    assert backward is not None, "what is differentiable has a backward"
    step = Differentiable(
        compiled.signature, compiled.training, forward, lambda absent: load(backward(absent)).consume
    )  # fmt: skip
    if forward.graphs is not None:
        forward.graphs.lends = range(step.own, step.own + compiled.training.saved)
    return wrap(step, compiled.signature, eager)


def _for_inference(compiled: Compiled, forward: Executable, eager: Callable[..., Any]) -> Callable[..., Any]:
    wrapped = wrap(forward, compiled.signature, eager)
    if wrapped is forward:  # one call of it is one of the user's function
        forward.eager = eager
    return wrapped


__all__ = ["Backward", "bind"]
