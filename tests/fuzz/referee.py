"""What the exact results of a program are, and how far they move.

In: its source and one of its cases. Out: the results in float64; and how far each moves when each input, each result
marked as rounded, and what each use of a value adds to its gradient moves by one unit in its last place.
"""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from tests.fuzz.numbers import numbers
from tests.fuzz.program import ROUNDS
from tests.fuzz.run_program import Outcome, Space, namespace, run
from tests.opinfo.check import default_dtype
from tests.opinfo.judge import ABSURD

PATTERNS = 12
# Twice, since where one type rounds up and the other down is a matter of luck.
_FROM_FLOAT32 = 2 * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
_NARROW = re.compile(r"torch\.(float32|bfloat16|float16)\b")
_CAST = re.compile(r"\.to\((torch\.\w+)\)(?=  " + ROUNDS + ")")
Case = tuple[Any, ...]


def referee(source: str, case: Case) -> Outcome:
    space = _wide(source)
    if space.get("AROUND") == "batched":
        space["AROUND"] = "in turn"  # for batches eager has other products, which leave zeros with other signs
    with default_dtype(torch.float64):
        return run(space, case)


def _wide(source: str, nudge: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Space:
    """The same program in float64."""

    def given(*args: Any) -> torch.Tensor:
        narrow = numbers(*args)
        if nudge is not None:
            return nudge(narrow)
        return narrow.to(torch.float64) if narrow.is_floating_point() else narrow

    return namespace(_widened(source), given)


def _widened(source: str) -> str:
    # A cast from one type to another makes a copy, in float64 as well.
    return _NARROW.sub("torch.float64", _CAST.sub(r".to(\1, copy=True)", source))


# -- how far results move ---------------------------------------------------------------------
def spread(source: str, case: Case) -> list[Any] | None:
    types: dict[str, torch.dtype] = {}
    narrow = namespace(source)

    def note(t: torch.Tensor, place: str) -> torch.Tensor:
        types[place] = t.dtype
        return t

    results = run(_stepped(narrow, source, note, note), case).everything
    middle = referee(source, case).everything
    far = [torch.zeros(t.shape, dtype=torch.float64) if isinstance(t, torch.Tensor) else None for t in middle]
    for pattern in range(PATTERNS):

        def move(t: torch.Tensor, place: str, pattern: int = pattern) -> torch.Tensor:
            dtype = types.get(place, torch.float64)
            return t * _factor(t.detach(), dtype, pattern) if dtype.is_floating_point else t

        def move_gradient(t: torch.Tensor, place: str, pattern: int = pattern) -> torch.Tensor:
            dtype = types.get(place, torch.float64)
            if not t.requires_grad or not dtype.is_floating_point:
                return t
            used = t.view_as(t)
            used.register_hook(lambda g: g * _factor(g + int(place.partition(".")[2]), dtype, pattern))
            return used

        def move_derivative(t: torch.Tensor, place: str, pattern: int = pattern) -> torch.Tensor:
            """By arithmetic, which transforms of any kind go through: nothing is added, but to what is derived."""
            dtype, still = types.get(place, torch.float64), t.detach()
            if not t.is_floating_point() or not dtype.is_floating_point:
                return t
            factor = _factor(still + int(place.partition(".")[2]), dtype, pattern)
            return t + torch.where(still.isfinite() & (still != 0), (t - still) * (factor - 1), -0.0)

        wide = _wide(source, lambda t, pattern=pattern: _nudged(t, t.dtype, pattern))
        used = move_derivative if "base" in wide else move_gradient
        with default_dtype(torch.float64):
            moved = run(_stepped(wide, _widened(source), move, used), case).everything
        if len(moved) != len(middle):
            return None
        for place, (a, b) in enumerate(zip(middle, moved, strict=True)):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.is_floating_point():
                # Where one of the two is no number, nothing is known of the distance.
                distance = torch.where(a == b, 0.0, (a - b).abs()).nan_to_num(0, 0, 0)
                far[place] = torch.maximum(far[place], distance)
    _add_errors_of_eager(source, case, results, far)
    return far


def _add_errors_of_eager(source: str, case: Case, results: list[Any], far: list[Any]) -> None:
    """One error is one draw: how far eager is off for inputs nearby as well. Float64 has no wider referee, and its
    errors are those of float32, scaled down."""
    single = _CAST.sub(r".to(\1, copy=True)", source).replace("torch.float64", "torch.float32")
    for pattern in range(PATTERNS):

        def given(dtype: str, *more: Any, pattern: int = pattern) -> torch.Tensor:
            drawn = numbers("float32" if dtype == "float64" else dtype, *more)
            return _nudged(drawn, drawn.dtype, pattern).to(drawn.dtype)

        def widened(*args: Any, given: Callable[..., torch.Tensor] = given) -> torch.Tensor:
            drawn = given(*args)
            return drawn.to(torch.float64) if drawn.is_floating_point() else drawn

        rough = run(namespace(single, given), case).everything
        with default_dtype(torch.float64):
            exact = run(namespace(_widened(source), widened), case).everything
        for place, (a, b) in enumerate(zip(rough, exact, strict=False)):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and b.is_floating_point() and b.numel():
                error = (a - b).abs().nan_to_num(0, 0, 0).max()
                if a.shape == b.shape and error <= ABSURD * b.abs().nan_to_num(0, 0, 0).max():
                    scale = _FROM_FLOAT32 if results[place].dtype is torch.float64 else 1.0
                    far[place] = torch.maximum(far[place], scale * error)


def _nudged(tensor: torch.Tensor, dtype: torch.dtype, pattern: int) -> torch.Tensor:
    """In float64, each number one unit in the last place of the type up or down; equal ones go the same way."""
    if not tensor.is_floating_point():
        return tensor
    wide = tensor.to(torch.float64)
    return torch.where(wide.isfinite(), wide * _factor(wide, dtype, pattern), wide)


def _factor(wide: torch.Tensor, dtype: torch.dtype, pattern: int) -> torch.Tensor:
    signs = torch.where(torch.sin(wide.nan_to_num(0, 0, 0) * 12345.678 + 2.5 * pattern) > 0, 1.0, -1.0)
    return 1 + torch.finfo(dtype).eps * signs


@dataclass(frozen=True)
class _Step:
    """A statement; the last one is the result."""

    code: Any
    rounded: str | None  # what the statement made or wrote, if it rounds
    writes: bool
    written: str | None = None  # the variable whose method writes to it, if so


Moved = Callable[[torch.Tensor, str], torch.Tensor]  # a tensor, and the place in the program -> it, moved


def _stepped(space: Space, source: str, after: Moved, used: Moved) -> Space:
    """The program with something done to what each statement rounds, and, where it is differentiated, to each use of a
    value; inside a transform to uses whose result is rounded: no other memory is that of what was used."""
    name = "base" if "base" in space else "program"
    (function,) = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == name)
    names = [argument.arg for argument in function.args.args]
    differentiated = name == "base" or bool(space.get("TRAINING"))
    steps = _steps(source.splitlines(), function, differentiated, only_rounded=name == "base")

    def run_stepwise(*given: Any) -> Any:
        values = {"torch": torch, "used": _of_tensors(used), **dict(zip(names, given, strict=True))}
        for place, step in enumerate(steps[:-1]):
            if differentiated and step.rounded is not None and step.written is not None:
                # Autograd keeps what a write makes, and would find it moved: it is done to a copy, and that is moved.
                target = values[step.written]
                values[step.written] = target.clone()
                exec(step.code, values)
                target.copy_(after(values[step.written], f"{place}"))
                values[step.written] = values[step.rounded] = target
                continue
            exec(step.code, values)
            if step.rounded is None:
                continue
            if not step.writes and differentiated:
                values[step.rounded] = after(values[step.rounded], f"{place}")
            elif not differentiated:
                # Whoever shares its memory sees it move as well.
                target = values[step.rounded]
                target.copy_(after(target, f"{place}"))
        return eval(steps[-1].code, values)

    space[name] = run_stepwise  # in the namespace itself, where `program` looks `base` up
    return space


def _steps(lines: list[str], function: ast.FunctionDef, marks_uses: bool, only_rounded: bool) -> list[_Step]:
    found = []
    reads = collections.Counter(
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    used_once = [name for name, count in reads.items() if count == 1]
    for place, statement in enumerate(function.body[:-1]):
        rounds = lines[statement.lineno - 1].endswith(ROUNDS)
        touched, is_write = _touched(statement) if rounds else None, _is_write(statement)
        # What a write is done to is the variable, and nothing like it.
        if marks_uses and not is_write and (rounds or not only_rounded):
            statement = ast.fix_missing_locations(_Uses(place).visit(statement))
        code = compile(ast.Module([statement], []), "<step>", "exec")
        found.append(_Step(code, touched, is_write, _written_by_method(statement) if is_write else None))
    last = function.body[-1]
    assert isinstance(last, ast.Return) and last.value is not None
    results = ast.Expression(last.value)
    if marks_uses:
        # A tangent is as it is given, until it is added to what other uses of the result add to its gradient.
        results = ast.fix_missing_locations(_Uses(len(found), used_once).visit(results))
    return [*found, _Step(compile(results, "<results>", "eval"), None, False)]


class _Uses(ast.NodeTransformer):
    """Each variable that a statement reads, `x`, as `used(x, "3.1")`, but for some."""

    def __init__(self, place: int, apart: Collection[str] = ()):
        self.place, self.count, self.apart = place, 0, {"torch", *apart}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not isinstance(node.ctx, ast.Load) or node.id in self.apart:
            return node
        self.count += 1
        return ast.Call(ast.Name("used", ast.Load()), [node, ast.Constant(f"{self.place}.{self.count}")], [])


def _of_tensors(moved: Moved) -> Callable[[Any, str], Any]:
    return lambda value, place: moved(value, place) if isinstance(value, torch.Tensor) else value


def _is_write(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return True
    assert isinstance(statement, ast.Assign)
    if isinstance(statement.targets[0], ast.Subscript):
        return True
    value = statement.value
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr.endswith("_")


def _written_by_method(statement: ast.stmt) -> str | None:
    """`x` of `x.tanh_()` and of `y = x.tanh_()`."""
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    return call.func.value.id if isinstance(call.func.value, ast.Name) else None


def _touched(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Expr):
        assert isinstance(statement.value, ast.Call) and isinstance(statement.value.func, ast.Attribute)
        place: ast.expr = statement.value.func.value
    else:
        assert isinstance(statement, ast.Assign)
        (place,) = statement.targets
        place = place.value if isinstance(place, ast.Subscript) else place
    assert isinstance(place, ast.Name), "only single results are rounded"
    return place.id


__all__ = ["referee", "spread"]
