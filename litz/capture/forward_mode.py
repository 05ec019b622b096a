"""Forward-mode differentiation: `litz.jvp`, and a compiled function that is called with tangents of torch's own.

In: a function. Out: one of primals and tangents that gives outputs and theirs, for Dynamo to capture whole: torch makes
dual numbers of them while it is traced, and what is compiled is one graph without any.

A compiled function that is called inside of `torch.autograd.forward_ad` would lose the tangents of its arguments.
Dynamo does not guard it, so it is asked at each call, and the user's own function runs instead.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from litz.capture.leave import left_to_eager, warn_once
from litz.context import Context
from litz.errors import CallError
from litz.graph.rewrite import place_of
from litz.options import Options
from litz.report import Occasion
from litz.target import detect

INSTEAD = "litz.jvp(f)(primals, tangents) compiles a function together with its derivative"


def carries_tangents(values: Iterable[object]) -> bool:
    """Whether a tensor among them is a dual one. Asked at each call: outside a level it costs a comparison."""
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(v, torch.Tensor) and forward_ad.unpack_dual(v).tangent is not None for v in values)


def runs_as_written(values: Iterable[object]) -> bool:
    """Whether it does because of tangents, which is said once."""
    if not carries_tangents(values):
        return False
    warn_once(f"a compiled function that is given tangents runs as it was written; {INSTEAD}")
    return True


def derivative_of(function: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    """What Dynamo captures. Captures are remembered, and counted, by code: each function has its own, which says that
    it is written where the function is."""
    made = lambda primals, tangents: torch.func.jvp(function, primals, tangents, has_aux=has_aux)  # noqa: E731
    code = made.__code__.replace(co_name=f"derivative of {_name(function)}")
    file, line = place_of(getattr(function, "forward", function))
    if file and not file.startswith(str(Path(torch.__file__).parent)):
        code = code.replace(co_filename=file, co_firstlineno=line)
    return FunctionType(code, made.__globals__, code.co_name, None, made.__closure__)


def or_as_written(compiled: Callable[..., Any], written: Callable[..., Any], options: Options) -> Callable[..., Any]:
    """`compiled`, or, once Dynamo could not capture it, what was written, and word of it: inside of a derivative Dynamo
    raises what elsewhere breaks a graph, such as a look at data."""
    left: list[Callable[..., Any]] = []

    def run(*args: Any) -> Any:
        if left:
            return left[0](*args)
        try:
            return compiled(*args)
        except Exception as error:
            if not _is_dynamos(error):
                raise
            why = f"Dynamo does not capture the derivative: {str(error).strip().splitlines()[0]}"
            _let_go(error)
        result = written(*args)  # which may raise what Dynamo has met; nothing of it has run so far
        code = written.__code__
        occasion = Occasion(f"{code.co_filename}:{code.co_firstlineno}")
        left.append(left_to_eager(written, why, Context(options, detect(options.threads), occasion=occasion)))
        return result

    return run


def _let_go(error: BaseException | None) -> None:
    """The frames of a capture that failed half-way hold switches of the thread, which put back what they found when
    they are collected: now, while what they put back can be undone, and not in the middle of something else."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__


def _is_dynamos(error: Exception) -> bool:
    """Whether Dynamo says it of itself, and not of its backend."""
    known = sys.modules.get("torch._dynamo.exc")
    if known is None or isinstance(error, known.BackendCompilerFailed):
        return False
    return isinstance(error, known.TorchDynamoException)


def as_primals_lie(function: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """The tangents, each laid out as its primal: itself where it is so already, else a copy. What torch would refuse
    half-way through a trace is refused here."""
    what = f"litz.jvp({_name(function)})"
    hint = f"{what}((x,), (t,)) is for one argument: a tangent for each primal, and built alike"
    if not isinstance(primals, tuple):
        raise CallError(f"{what}: primals must be a tuple, not a {type(primals).__name__}", hint=hint)
    values, form = pytree.tree_flatten(primals)
    given, given_form = pytree.tree_flatten(tangents)
    if given_form != form:
        raise CallError(f"{what}: tangents are built as {given_form}, and primals as {form}", hint=hint)
    if not values:
        raise CallError(f"{what}: there is no tensor among the primals, so there is no derivative")
    _refuse_levels(what, values)
    pairs = enumerate(zip(values, given, strict=True))
    return pytree.tree_unflatten([_laid_out(what, place, *pair) for place, pair in pairs], form)


def _refuse_levels(what: str, values: Sequence[Any]) -> None:
    """Inside of a transform of `torch.func` there are levels too, and they may be nested."""
    if forward_ad._current_level < 0 or torch._C._functorch.get_dynamic_layer_stack_depth():
        return
    taken = [place for place, value in enumerate(values) if carries_tangents((value,))]
    why = f"primal {taken[0]} has a tangent at this level already" if taken else "a level is open already"
    raise CallError(
        f"{what} is called inside of torch.autograd.forward_ad.dual_level(): {why}, and torch nests no others in it",
        hint="call it outside of the level; for derivatives of derivatives, litz.jvp of a function that calls litz.jvp",
    )


def _laid_out(what: str, place: int, primal: Any, tangent: Any) -> torch.Tensor:
    for name, value in (("primal", primal), ("tangent", tangent)):
        if not isinstance(value, torch.Tensor):
            raise CallError(
                f"{what}: {name} {place} is a {type(value).__name__}, and must be a tensor",
                hint="bind what is no tensor into the function: lambda x: f(x, 3)",
            )
    if not (primal.is_floating_point() or primal.is_complex()):
        raise CallError(f"{what}: primal {place} holds {primal.dtype}, and only floating-point numbers have tangents")
    if tangent.shape != primal.shape or tangent.device != primal.device:
        raise CallError(
            f"{what}: tangent {place} is of shape {tuple(tangent.shape)} on {tangent.device}, and its primal of shape "
            f"{tuple(primal.shape)} on {primal.device}"
        )
    if _lie_alike(primal, tangent):
        return tangent
    if primal.layout is torch.strided and any(
        stride == 0 and size > 1 for size, stride in zip(primal.shape, primal.stride(), strict=True)
    ):
        raise CallError(
            f"{what}: elements of primal {place} share memory (strides {primal.stride()}), those of its tangent do not",
            hint=f"pass primal {place} as a tensor of its own: primal.contiguous()",
        )
    copy = torch.ops.aten._new_zeros_with_same_feature_meta(tangent, primal)
    copy = copy.conj() if primal.is_conj() else copy
    copy = torch._neg_view(copy) if primal.is_neg() else copy
    return copy.copy_(tangent)


def _lie_alike(primal: torch.Tensor, tangent: torch.Tensor) -> bool:
    """What torch asks of a tangent that it makes part of a dual number as it is."""
    if primal.layout is not torch.strided or tangent.layout is not torch.strided:
        return True  # which torch judges by itself
    return (
        tangent.stride() == primal.stride()
        and tangent.storage_offset() == primal.storage_offset()
        and torch.ops.aten._has_same_storage_numel(tangent, primal)
        and tangent.is_conj() == primal.is_conj()
        and tangent.is_neg() == primal.is_neg()
    )


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


__all__ = ["INSTEAD", "as_primals_lie", "carries_tangents", "derivative_of", "or_as_written", "runs_as_written"]
