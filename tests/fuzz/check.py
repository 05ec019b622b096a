"""One program, compiled by Litz and judged.

In: its source. Out: None, or what is wrong. Dynamo is left out, as in the operator sweep, and the judge is the
sweep's: the float64 run is the referee. What it asks of an ill-conditioned result is asked of a whole program: how
far the exact results move when each input, and each result marked as rounded, moves by one unit in its last place.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from litz.context import Context
from litz.errors import CaptureError
from litz.options import Options
from litz.pipeline import compile_function
from litz.target import detect
from tests.fuzz.numbers import numbers
from tests.fuzz.program import ROUNDS
from tests.opinfo import judge

PATTERNS = 12
_NARROW = re.compile(r"torch\.(float32|bfloat16|float16)\b")
_CAST = re.compile(r"\.to\((torch\.\w+)\)(?=  " + ROUNDS + ")")


@dataclass(frozen=True)
class Verdict:
    """`status`: right, wrong, or `eager` where capture leaves the program to eager."""

    status: str
    message: str = ""
    conditioned: bool = False


@lru_cache(maxsize=1)
def _target() -> Any:
    return detect(None)


def check(source: str) -> Verdict:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return _check(source)


def _check(source: str) -> Verdict:
    plain = _namespace(source, numbers)
    program: Callable[..., list[torch.Tensor]] = plain["program"]
    inputs = plain["inputs"]()
    eager = program(*inputs)
    compiling = plain["inputs"]()
    try:
        ctx = Context(Options(verify=True), _target())
        executable = compile_function(program, compiling, [r.stride() for r in eager], ctx)
    except CaptureError as error:
        return Verdict("eager", f"not traced: {error.message}")
    except Exception as error:
        return Verdict("wrong", f"compiling raised {type(error).__name__}: {error}")
    before = plain["inputs"]()
    if not all(map(judge.identical, compiling, before)):
        return Verdict("wrong", "compiling wrote to the inputs")
    calls = []
    for _ in range(2):
        given = plain["inputs"]()
        try:
            found = list(executable(*given))
        except Exception as error:
            return Verdict("wrong", f"the call raised {type(error).__name__}: {error}")
        calls.append([*found, *given])
    everything = [*eager, *inputs]
    biggest = max((float(t.abs().nan_to_num(0, 0, 0).max()) for t in everything if _is_counted(t)), default=0.0)
    message, conditioned = judge.compare(calls[0], everything, _referee(source), lambda: _spread(source), biggest)
    if message is None and not all(map(judge.identical, *calls)):
        message = "the second call gives something else than the first"
    message = message or judge.apart(calls[0], everything) or judge.untouched(before, inputs, calls[0][len(eager) :])
    return Verdict("right" if message is None else "wrong", message or "", conditioned)


def _is_counted(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0


# -- the referee ------------------------------------------------------------------------------
def _namespace(source: str, given: Callable[..., torch.Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(source, found)
    found["numbers"] = given
    return found


def _wide(source: str, nudge: Callable[[torch.Tensor], torch.Tensor] | None = None) -> dict[str, Any]:
    """The same program in float64."""

    def given(*args: Any) -> torch.Tensor:
        narrow = numbers(*args)
        if nudge is not None:
            return nudge(narrow)
        return narrow.to(torch.float64) if narrow.is_floating_point() else narrow

    return _namespace(_widened(source), given)


def _widened(source: str) -> str:
    # A cast from one type to another makes a copy, in float64 as well.
    return _NARROW.sub("torch.float64", _CAST.sub(r".to(\1, copy=True)", source))


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _referee(source: str) -> list[torch.Tensor] | None:
    wide = _wide(source)
    with _default_dtype(torch.float64):
        inputs = wide["inputs"]()
        return [*wide["program"](*inputs), *inputs]


def _spread(source: str) -> list[Any] | None:
    """How far each exact result moves with the last places of inputs and roundings."""
    steps = _steps(source)
    narrow = _namespace(source, numbers)
    types: list[torch.dtype] = []
    results = _stepwise(narrow, steps, narrow["inputs"](), lambda t: types.append(t.dtype))
    middle = _referee(source)
    assert middle is not None
    far = [torch.zeros(t.shape, dtype=torch.float64) for t in middle]
    for pattern in range(PATTERNS):
        waiting = iter(types)

        def move(t: torch.Tensor, pattern: int = pattern, waiting: Iterator[torch.dtype] = waiting) -> None:
            dtype = next(waiting)
            if dtype.is_floating_point:
                t.copy_(_nudged(t, dtype, pattern))

        wide = _wide(source, lambda t, pattern=pattern: _nudged(t, t.dtype, pattern))
        try:
            with _default_dtype(torch.float64):
                moved = _stepwise(wide, _steps(_widened(source)), wide["inputs"](), move)
        except Exception:
            return None
        for place, (a, b) in enumerate(zip(middle, moved, strict=True)):
            if a.is_floating_point():
                # Where one of the two is no number, nothing is known of the distance.
                distance = torch.where(a == b, 0.0, (a - b).abs()).nan_to_num(0, 0, 0)
                far[place] = torch.maximum(far[place], distance)
    _add_error_of_float32(source, results, middle, far)
    return far


def _add_error_of_float32(
    source: str, results: Sequence[torch.Tensor], middle: Sequence[torch.Tensor], far: list[torch.Tensor]
) -> None:
    """Float64 has no wider referee. Eager's error there is taken from its error in float32, scaled down."""
    single = _namespace(
        _CAST.sub(r".to(\1, copy=True)", source).replace("torch.float64", "torch.float32"),
        lambda dtype, *more: numbers("float32" if dtype == "float64" else dtype, *more),
    )
    inputs = single["inputs"]()
    scale = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    for place, rough in enumerate([*single["program"](*inputs), *inputs]):
        if results[place].dtype is torch.float64 and rough.numel():
            far[place] += scale * (middle[place] - rough).abs().nan_to_num(0, 0, 0).max()


def _nudged(tensor: torch.Tensor, dtype: torch.dtype, pattern: int) -> torch.Tensor:
    """In float64, each number one unit in the last place of the type up or down; equal ones go the same way."""
    if not tensor.is_floating_point():
        return tensor
    wide = tensor.to(torch.float64)
    signs = torch.where(torch.sin(wide.nan_to_num(0, 0, 0) * 12345.678 + 2.5 * pattern) > 0, 1.0, -1.0)
    return torch.where(wide.isfinite(), wide * (1 + torch.finfo(dtype).eps * signs), wide)


@dataclass(frozen=True)
class _Step:
    """A statement; the last one is the list of results."""

    code: Any
    rounded: tuple[str, ...]  # what the statement made or wrote, if it rounds


def _steps(source: str) -> list[_Step]:
    lines = source.splitlines()
    (function,) = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "program")
    found = []
    for statement in function.body[:-1]:
        rounds = lines[statement.lineno - 1].endswith(ROUNDS)
        code = compile(ast.Module([statement], []), "<step>", "exec")
        found.append(_Step(code, _touched(statement) if rounds else ()))
    last = function.body[-1]
    assert isinstance(last, ast.Return) and last.value is not None
    return [*found, _Step(compile(ast.Expression(last.value), "<results>", "eval"), ())]


def _touched(statement: ast.stmt) -> tuple[str, ...]:
    if isinstance(statement, ast.Expr):
        assert isinstance(statement.value, ast.Call) and isinstance(statement.value.func, ast.Attribute)
        place: ast.expr = statement.value.func.value
    else:
        assert isinstance(statement, ast.Assign)
        (place,) = statement.targets
        place = place.value if isinstance(place, ast.Subscript) else place
    assert isinstance(place, ast.Name), "only single results are rounded"
    return (place.id,)


def _stepwise(
    namespace: dict[str, Any], steps: Sequence[_Step], inputs: list[Any], after: Callable[[torch.Tensor], None]
) -> list[torch.Tensor]:
    program = namespace["program"]
    names = program.__code__.co_varnames[: program.__code__.co_argcount]
    values = {"torch": torch, **dict(zip(names, inputs, strict=True))}
    for step in steps[:-1]:
        exec(step.code, values)
        for name in step.rounded:
            after(values[name])
    return [*eval(steps[-1].code, values), *inputs]


__all__ = ["Verdict", "check"]
