"""One program, compiled by Litz and judged.

In: its source. Out: a `Verdict`. The judge is the operator sweep's: the float64 run is the referee. What it asks of
an ill-conditioned result is asked of a whole program (`referee.py`). Plain programs are compiled without Dynamo, as
in the sweep; those with cases or transforms go through it, all cases through one compiled function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch

from litz.context import Context
from litz.errors import CaptureError
from litz.options import Options
from litz.pipeline import compile_function
from litz.schedule import derive
from litz.target import detect
from tests.fuzz.left_to_eager import reason_for
from tests.fuzz.referee import referee, spread
from tests.fuzz.run_program import Outcome, Space, cases_of, is_traced, mode_of, namespace, run
from tests.opinfo import judge
from tests.opinfo.through_dynamo import Watched

_NORM = re.compile(r"\b(layer|group|batch|instance|rms)_norm\b")


@dataclass(frozen=True)
class Verdict:
    """`status`: right, wrong; `eager` where capture leaves the program to eager for a reason that is listed; `dynamo`
    where Dynamo gets it wrong whatever the backend."""

    status: str
    message: str = ""
    conditioned: bool = False
    compiles: int = 1


@lru_cache(maxsize=1)
def _target() -> Any:
    return detect(None)


def check(source: str) -> Verdict:
    space = namespace(source)
    # Programs are small: what is done for large buffers is done for all of theirs.
    with mode_of(space), patch.object(derive, "_LEAST", 0):
        return _check_traced(source, space) if is_traced(space) else _check(source, space)


def _left(message: str) -> Verdict:
    """What is left to eager for no listed reason is as bad as a wrong result: nobody would notice."""
    known = reason_for(message)
    return Verdict("eager", known) if known is not None else Verdict("wrong", f"left to eager: {message}")


# -- without Dynamo ---------------------------------------------------------------------------
def _check(source: str, space: Space) -> Verdict:
    eager = run(space, ())
    compiling = space["inputs"]()
    try:
        ctx = Context(Options(verify=True), _target())
        executable = compile_function(space["program"], compiling, [r.stride() for r in eager.returned], ctx)
    except CaptureError:  # what cannot be traced at once may be compiled in pieces, which is for Dynamo to say
        return _check_traced(source, space)
    except Exception as error:
        return Verdict("wrong", f"compiling raised {type(error).__name__}: {error}")
    if not all(map(judge.identical, compiling, space["inputs"]())):
        return Verdict("wrong", "compiling wrote to the inputs")
    calls = [run(space, (), executable) for _ in range(2)]
    message, conditioned = judged(source, space, (), calls[0], eager)
    if message is None and not all(map(judge.identical, calls[0].everything, calls[1].everything)):
        message = "the second call gives something else than the first"
    kept = [x.clone() if isinstance(x, torch.Tensor) else x for x in calls[0].everything]
    overwrite(calls[1])
    if message is None and not all(map(judge.identical, kept, run(space, (), executable).everything)):
        message = "a write to a result is seen in the next call"
    return Verdict("right" if message is None else "wrong", message or "", conditioned)


def judged(source: str, space: Space, case: tuple[Any, ...], found: Outcome, eager: Outcome) -> tuple[str | None, bool]:
    """What is wrong, or None; and whether that rests on the conditioning of the program."""
    if found.error is not eager.error:
        return f"raised {_error(found)}, with eager {_error(eager)}", False
    before = space["inputs"](*case)
    if eager.error is not None and all(map(judge.identical, found.inputs, before)):
        return None, False  # nothing was written before it raised, where eager's writes come one by one
    biggest = max((_size(x) for x in eager.everything), default=0.0)
    message, conditioned = judge.compare(
        found.everything, eager.everything, referee(source, case).everything, lambda: spread(source, case), biggest,
        zero_signs=not _differentiates_a_norm(source, space),
    )  # fmt: skip
    message = message or judge.apart([*found.returned, *found.inputs], [*eager.returned, *eager.inputs])
    return message or judge.untouched(before, eager.inputs, found.inputs), conditioned


def _differentiates_a_norm(source: str, space: Space) -> bool:
    """Where nothing but zeros comes back to a norm, the sign of what it hands on is its formula's: of eager's two, that
    for CPUs and that for GPUs, each has its own."""
    return ("base" in space or bool(space.get("TRAINING"))) and _NORM.search(source) is not None


def overwrite(outcome: Outcome) -> None:
    """As the user may do with his results. What is stored with the code must not be among them."""
    for result in outcome.returned:
        if isinstance(result, torch.Tensor):
            result.untyped_storage().fill_(1)


def _error(outcome: Outcome) -> str:
    if outcome.error is None:
        return "nothing"
    return f"{outcome.error.__name__}: {outcome.message}".split("\n\nSet TORCHDYNAMO")[0][:600]


def _size(value: Any) -> float:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return 0.0
    return float(value.abs().nan_to_num(0, 0, 0).max())


# -- through Dynamo ---------------------------------------------------------------------------
def _check_traced(source: str, space: Space) -> Verdict:
    watched = Watched()
    with watched.watching():
        message, conditioned = _through(source, space, watched.backend)
    if message is not None:
        if _through(source, space, "eager")[0] is not None or _is_of_dynamos_fakes(source, space, message):
            return Verdict("dynamo", message, compiles=len(watched.contexts))
        return Verdict("wrong", message, compiles=len(watched.contexts))
    if watched.left_to_eager:
        return _left(watched.left_to_eager[0])
    return Verdict("right", conditioned=conditioned, compiles=len(watched.contexts))


def _is_of_dynamos_fakes(source: str, space: Space, message: str) -> bool:
    """Whether a result lies as Dynamo's fakes say, or has their type, and not eager's: inside a transform those are all
    there is to go by, and any backend that traces goes by them. (Eager's tangent of `addcmul(x, i, i)` is float64 for
    float32 and integers, that of its fakes float32.)"""
    of_fakes = "strides" in message or "instead of torch." in message
    return "base" in space and of_fakes and _through(source, space, "aot_eager")[0] == message


def _through(source: str, space: Space, backend: Callable[..., Any] | str) -> tuple[str | None, bool]:
    torch._dynamo.reset()
    dynamic = True if "CASES" in space else None
    compiled = torch.compile(space["program"], backend=backend, dynamic=dynamic)
    cases = cases_of(space)
    conditioned = False
    for case in [*cases, cases[0]]:
        found = run(space, case, compiled)
        message, rests = judged(source, space, case, found, run(space, case))
        if message is not None:
            return f"{f'case {case}: ' if case else ''}{message}", False
        conditioned |= rests
        overwrite(found)
    return None, conditioned


__all__ = ["Verdict", "check"]
