"""One case, compiled by Litz and judged.

In: a `Case`. Out: a `Result`. Dynamo is left out: the compiler is called on the operator itself, as Dynamo's graph
of that one operator would be.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch

from litz.context import Context
from litz.errors import CaptureError
from litz.options import Options
from litz.pipeline import compile_function
from litz.target import Machine, detect, detect_gpu
from tests.opinfo import judge
from tests.opinfo.draws import Recorded, Replayed
from tests.opinfo.known import (
    DISAGREE,
    IN_FORWARD_MODE,
    OF_ORDER_ONE,
    SHARING,
    UNINITIALISED,
    ZERO_SIGNS,
    at_fault,
    unwritten,
)
from tests.opinfo.samples import DTYPES, Case, Derivative, copied, with_gradients
from tests.opinfo.through_dynamo import Watched, by_litz_jvp, executable, flat

SEED = 1234
# What counts from the start of an input's storage is left to eager by the front door, which sees it in Dynamo's graph.
FROM_STORAGE = "as_strided.partial_views"
TWO_DEVICES = "tensors are on two devices, and a graph is compiled for one"


@dataclass
class Result:
    """`status`: right, wrong, crashed; `eager` where the front door leaves the call to eager; `refused` where eager
    itself does not take the sample; `known` where `known.py` says why eager and tracing disagree."""

    status: str
    message: str = ""
    conditioned: bool = False  # right only because the inputs' own rounding allows as much
    kernels: int = 0
    operators: int = 0  # ATen operators that kernels were generated from
    calls: tuple[str, ...] = ()
    compile_ms: float = 0.0
    compiles: int = 1  # programs compiled for all sizes of the case

    @property
    def treatment(self) -> str:
        if self.status == "eager":
            return "eager"
        if self.calls:
            return "called"
        return "decomposed" if self.operators > 1 else "generated" if self.operators else "view"

    def row(self) -> dict[str, Any]:
        return asdict(self) | {"treatment": self.treatment}


@lru_cache(maxsize=None)
def _target(device: str) -> Machine:
    return detect(None) if device == "cpu" else detect_gpu(torch.cuda.current_device())


def check(case: Case) -> Result:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        refused = case.label.startswith("e")
        known = DISAGREE.get(f"{case.operator} {case.label}") if refused else at_fault(case)
        if known is not None:
            return Result("known", known)
        return _check_refusal(case) if refused else _check(case)


def check_jvp(case: Case) -> Result:
    """A case with tangents, by `litz.jvp` as users call it."""
    assert isinstance(case.call, Derivative), "only the kinds of case that begin with jvp- have tangents"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        known = IN_FORWARD_MODE.get(f"{case.operator} {case.label}")
        if known is not None:
            return Result("known", known)
        try:
            eager, _, _ = _eager(case)
        except Exception as error:
            return Result("refused", f"{type(error).__name__}: {error}")
        if not case.is_plain() or not all(_plain(r) for r in eager):
            return Result("eager", "not plain dense tensors")
        return _through_dynamo(case)


def _eager(case: Case) -> tuple[list[Any], list[torch.Tensor], bool]:
    """Results, the inputs afterwards, and whether random numbers were drawn."""
    inputs = case.tensors
    torch.manual_seed(SEED)
    before = random_state(case.device)
    results = case.function(*inputs)
    finish(case.device)
    drew = not torch.equal(before, random_state(case.device))
    return results, inputs, drew


def random_state(device: str) -> torch.Tensor:
    return torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()


def finish(device: str) -> None:
    """Waits for the device, so that what fails there is known to have failed here."""
    if device != "cpu":
        torch.cuda.synchronize()


def _check(case: Case) -> Result:
    try:
        eager, _, _ = _eager(case)
    except Exception as error:
        return Result("refused", f"{type(error).__name__}: {error}")
    if not case.is_plain() or not all(_plain(r) for r in eager):
        return Result("eager", TWO_DEVICES if len(case.devices()) > 1 else "not plain dense tensors")
    compiled = _compiled(case, eager)
    if isinstance(compiled, Result):
        return compiled
    executable, ctx = compiled
    message, conditioned = judged(case, executable)
    result = _described(ctx, conditioned)
    if message is not None:
        result.status, result.message = "wrong", message
    return result


def judged(case: Case, executable: Callable[..., Any]) -> tuple[str | None, bool]:
    """What is wrong with the executable's results for the case, or None; and whether that rests on the conditioning
    of the inputs. It is called with the case's tensors, and gives what `case.function` does."""
    eager, eager_inputs, random = _eager(case)
    inputs = case.tensors
    torch.manual_seed(SEED)
    try:
        found = list(executable(*inputs))
        finish(case.device)
    except Exception as error:
        return f"the call raised {type(error).__name__}: {error}", False
    if random and not torch.equal(random_state(case.device), _state_after_eager(case)):
        return "another number of random draws than eager's", False
    message = judge.untouched(case.tensors, eager_inputs, inputs)
    if message is None and case.operator not in SHARING:
        results = len(eager) - (sum(t.requires_grad for t in case.differentiated(inputs)) if case.backward else 0)
        message = judge.apart([*found[:results], *inputs], [*eager[:results], *eager_inputs])
    if message is not None:
        return message, False
    if case.operator in UNINITIALISED:
        found = [torch.zeros_like(f) for f in found]
        eager = [torch.zeros_like(e) for e in eager]
    for place in unwritten(case):
        found[place], eager[place] = torch.zeros_like(found[place]), torch.zeros_like(eager[place])
    # What was written to the inputs is a result as well.
    found, eager = [*found, *inputs], [*eager, *eager_inputs]
    referee = None if case.operator in UNINITIALISED else _referee(case, random)
    if case.operator.startswith(OF_ORDER_ONE):
        spread = lambda: [_constant(r, torch.finfo(r.dtype).eps) for r in eager]  # noqa: E731
    elif random:
        spread = lambda: _spread_of_draws(case, eager)  # noqa: E731
    else:
        spread = lambda: _spread(case, referee)  # noqa: E731
    biggest = max((_size(x) for x in (*eager, *case.tensors)), default=0.0)
    return judge.compare(found, eager, referee, spread, biggest, case.operator not in ZERO_SIGNS)


def _compiled(case: Case, eager: Sequence[Any]) -> tuple[Any, Context] | Result:
    if isinstance(case.call, Derivative) and case.operator == FROM_STORAGE:
        return _through_dynamo(case)
    ctx = Context(Options(verify=True, snapshots=True), _target(_device_of(case, eager)))
    strides = [r.stride() if isinstance(r, torch.Tensor) else None for r in eager]
    try:
        if case.backward:
            with torch.enable_grad():
                forward = compile_function(case.forward, case.differentiated(case.tensors), strides, ctx, True)
            executable = lambda *tensors: with_gradients(forward, case.differentiated(tensors))  # noqa: E731
        else:
            executable = compile_function(case.function, case.tensors, strides, ctx)
    except CaptureError:
        return _through_dynamo(case)
    except Exception as error:
        return Result("wrong", f"compiling raised {type(error).__name__}: {error}")
    return executable, ctx


def _device_of(case: Case, eager: Sequence[Any]) -> str:
    """Where it runs, which is what the front door compiles for: the database has samples that name no device."""
    made = [] if case.positions else [r.device.type for r in eager if isinstance(r, torch.Tensor)]
    return made[0] if made else case.device


def _described(ctx: Context, conditioned: bool) -> Result:
    """What was compiled, the backward included once it has run."""
    operators = [o for o in _OPERATOR.findall(ctx.report().snapshot("trace")) if not _is_view(o)]
    return Result(
        "right", "", conditioned, sum(built.kernels for built in ctx.built), len(operators),
        tuple(sorted({name for built in ctx.built for name in built.calls})),
        round(1e3 * sum(ctx.timings.values()), 2),  # checks between stages are not counted
    )  # fmt: skip


def _through_dynamo(case: Case) -> Result:
    """What cannot be traced at once may be compiled in pieces, which is for Dynamo and the front door to say."""
    torch._dynamo.reset()
    watched = Watched()
    with watched.watching():
        if isinstance(case.call, Derivative):
            message, conditioned = judged(case, by_litz_jvp(case))
        else:
            message, conditioned = judged(case, executable(case, torch.compile(flat(case), backend=watched.backend)))
    if message is not None:
        return Result("wrong", f"through Dynamo: {message}")
    if watched.left_to_eager or not watched.contexts:
        return Result("eager", next(iter(watched.left_to_eager), "Dynamo makes no graph of it"))
    return Result("right", "", conditioned, watched.kernels, min(watched.kernels, 1), watched.calls)


_OPERATOR = re.compile(r"target=torch\.ops\.(\w+\.\w+\.\w+)\]")


@lru_cache(maxsize=None)
def _is_view(name: str) -> bool:
    namespace, packet, overload = name.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), packet), overload)._schema
    return any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments)


def _check_refusal(case: Case) -> Result:
    """Eager refuses the sample: Litz must raise an error of the same type, at the latest when called."""
    try:
        eager, *_ = _eager(case)
    except Exception as error:
        expected = error
    else:
        return Result("refused", "eager does not refuse it on the CPU")
    try:
        front_door(case)
    except Exception as error:
        if type(error) is type(expected):
            return Result("right")
        if _raised_by_dynamo(case, type(error)):
            return Result("known", f"Dynamo raises {type(error).__name__} whatever the backend")
        return Result("wrong", f"raised {type(error).__name__}: {error}; eager {type(expected).__name__}: {expected}")
    return Result("wrong", f"raised nothing; eager {type(expected).__name__}: {expected}")


def front_door(case: Case, backend: str = "litz") -> list[Any]:
    """The results by way of `torch.compile`, as a user gets them."""
    torch._dynamo.reset()
    torch.manual_seed(SEED)
    return torch.compile(case.function, backend=backend)(*case.tensors)


def _raised_by_dynamo(case: Case, kind: type[Exception]) -> bool:
    try:
        front_door(case, "eager")
    except Exception as error:
        return type(error) is kind
    return False


def _plain(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_quantized
    )


def _state_after_eager(case: Case) -> torch.Tensor:
    _eager(case)
    return random_state(case.device)


def _referee(case: Case, random: bool) -> list[Any] | None:
    """Results and inputs afterwards in float64; None where there is no wider type or no such run. What was drawn at
    `random` is drawn again."""
    if not judge.is_narrow(DTYPES[case.dtype]):
        return None
    try:
        same_draws: AbstractContextManager[Any] = nullcontext()
        if random:
            with Recorded() as recorded:
                _eager(case)
            same_draws = Replayed(recorded.drawn)
        with default_dtype(torch.float64 if not case.positions else torch.get_default_dtype()), same_draws:
            results, inputs, _ = _eager(case.in_double())
    except Exception:
        return None
    return [*results, *inputs]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What a case without tensors takes for its type when none is named."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _spread_of_draws(case: Case, eager: Sequence[Any]) -> list[Any]:
    """For random operators, which draw other numbers in float64: how far eager's own results move when its inputs
    move by one unit in the last place, and at least such a unit of the largest element."""
    spreads = [
        _constant(r, float(r.abs().nan_to_num(0, 0, 0).max()) * torch.finfo(r.dtype).eps)
        if isinstance(r, torch.Tensor) and r.is_floating_point() and r.numel()
        else None
        for r in eager
    ]
    for pattern in range(judge.PATTERNS):
        inputs = [copied(judge.nudged(t, t, pattern).to(t.dtype)) for t in case.tensors]
        torch.manual_seed(SEED)
        moved = [*case.function(*inputs), *inputs]
        for position, (before, after) in enumerate(zip(eager, moved, strict=True)):
            if spreads[position] is not None and before.shape == after.shape:
                far = (before.double() - after.double()).abs().nan_to_num(0, 0, 0)
                spreads[position] = torch.maximum(spreads[position], far)
    return spreads


def _size(value: Any) -> float:
    if not isinstance(value, torch.Tensor) or not value.numel() or value.dtype is torch.bool:
        return 0.0
    value = value.abs() if value.is_complex() else value  # not all whole numbers have one
    return float(value.to(torch.float64).abs().nan_to_num(0, 0, 0).max())


def _constant(like: torch.Tensor, value: float) -> torch.Tensor:
    return torch.full_like(like, value, dtype=torch.float64)


def _spread(case: Case, referee: Sequence[Any] | None) -> list[Any] | None:
    """How far each result in float64 moves when every input moves by one unit in its last place, or how far eager
    then is from it."""
    wide = case.in_double()
    floating = any(t.is_floating_point() or t.is_complex() for t in case.tensors)
    try:
        middle = referee if referee is not None else [*(run := _eager(wide))[0], *run[1]]
        spreads: list[Any] = [None] * len(middle)
        for pattern in range(judge.PATTERNS):
            # Whole numbers move as well where there is nothing else: they are cast before they are used.
            narrow = [t if floating else t.to(torch.float64) for t in case.tensors]
            inputs = [copied(judge.nudged(n, w, pattern)) for w, n in zip(wide.tensors, narrow, strict=True)]
            torch.manual_seed(SEED)
            moved = [*wide.function(*inputs), *inputs]
            for position, (a, b) in enumerate(zip(middle, moved, strict=True)):
                if (
                    not isinstance(a, torch.Tensor)
                    or not (a.is_floating_point() or a.is_complex())
                    or a.shape != b.shape
                ):
                    continue
                # Where one of the two is no number, nothing is known of the distance.
                far = (a - b).abs().to(torch.float64).nan_to_num(0, 0, 0)
                spreads[position] = far if spreads[position] is None else torch.maximum(far, spreads[position])
        if referee is None:
            # Float64 has no wider referee: its error is taken from that of float32, scaled down.
            scale = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
            _add_errors_of_draws(case.in_single(), case, scale, spreads)
        else:
            _add_errors_of_draws(case, wide, 1.0, spreads)
        for position, far in enumerate(spreads):
            if far is not None and middle[position].is_complex():
                spreads[position] = torch.complex(far, far)
        return spreads
    except Exception:
        return None


def _add_errors_of_draws(rough: Case, exact: Case, scale: float, spreads: list[Any]) -> None:
    """Eager's largest error over several draws, with inputs a last place apart: one alone may be small by luck."""
    try:
        for pattern in range(judge.PATTERNS):
            inputs = [judge.nudged(t, t, pattern).to(t.dtype) for t in rough.tensors]
            torch.manual_seed(SEED)
            found = rough.function(*[copied(t) for t in inputs])
            torch.manual_seed(SEED)
            true = exact.function(
                *[t.to(w.dtype) for t, w in zip([copied(t) for t in inputs], exact.tensors, strict=True)]
            )
            for position, (r, e) in enumerate(zip(found, true, strict=True)):
                if spreads[position] is not None and r.shape == e.shape and r.dtype != e.dtype and r.numel():
                    error = (e - r).abs().to(torch.float64).nan_to_num(0, 0, 0).max()
                    spreads[position] = torch.maximum(spreads[position], scale * error)
    except Exception:
        return  # an operator that does not take the other type
