"""`litz bench`: a script's model, eager, by `inductor` and by Litz.

In: a script that defines `model` and `inputs`. Out: a `Row` for each contender: its first call, with compiling, the
time of a call, and how far its results are from eager's. The contenders take turns in one process, so that whatever
else the machine does, it does to all of them.
"""

from __future__ import annotations

import math
import runpy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litz.errors import CallError, OptionError
from litz.report import HISTORY, Report

if TYPE_CHECKING:
    from collections.abc import Iterator

EAGER, LITZ = "eager", "litz"
CONTENDERS = (EAGER, "inductor", LITZ)
NAME = "litz_bench"  # of the script's module: what it does under `__main__` is left out


@dataclass(frozen=True)
class Row:
    """Seconds; `failed` says why there are none. `apart`: the largest difference from eager's results, as a part of the
    largest number among them."""

    contender: str
    first: float = 0.0
    best: float = 0.0
    median: float = 0.0
    apart: float = 0.0
    failed: str | None = None


def bench(
    script: Path, *, model: str = "model", inputs: str = "inputs", training: bool = False, seconds: float = 2.0,
    contenders: Sequence[str] | None = None,
) -> list[Row]:  # fmt: skip
    """`model` and `inputs` are the names of both in the script; `seconds` go to each contender."""
    import torch

    if not 0 < seconds < math.inf:
        raise OptionError(f"a time of {seconds} seconds is not one to measure in", hint="such as --seconds 5")
    function, (args, kwargs) = _defined(script, model, inputs)
    if isinstance(function, torch.nn.Module):
        function.train(training)
    rows: dict[str, Row] = {}
    steps: dict[str, Callable[[], list[Any]]] = {}
    expected: list[Any] | None = None
    torch._dynamo.reset()  # once: what the first has compiled goes with a second one
    for name in contenders or CONTENDERS:
        run = function if name == EAGER else torch.compile(function, backend=name)
        step = _step(run, args, kwargs, training)
        before = HISTORY.mark()
        start = time.perf_counter()
        try:
            results = step()
        except Exception as error:
            if name == EAGER:
                raise CallError(
                    f"{script} runs, but calling {model} with {inputs} raised {type(error).__name__}: {error}",
                    hint="it is called as it is in the script, without any compiler: run it by itself first",
                ) from error
            rows[name] = Row(name, failed=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}")
            continue
        if name == LITZ:
            _refuse_nothing(script, HISTORY.since(before))
        expected = results if expected is None else expected
        rows[name] = Row(name, time.perf_counter() - start, apart=_apart(results, expected))
        steps[name] = step
    for name, taken in _in_turns(steps, seconds).items():
        rows[name] = Row(name, rows[name].first, min(taken), statistics.median(taken), rows[name].apart)
    return list(rows.values())


def _defined(script: Path, model: str, inputs: str) -> tuple[Callable[..., Any], tuple[Sequence[Any], dict[str, Any]]]:
    """The script's model, and what it is called with."""
    if not script.is_file():
        raise CallError(
            f"there is no file {script}", hint=f"litz bench takes a script that defines {model} and {inputs}"
        )
    with _beside(script):
        try:
            found = runpy.run_path(str(script), run_name=NAME)
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            raise CallError(f"{script} raised {why}", hint="nothing was measured: run it by itself first") from error
    for name in (model, inputs):
        if name not in found:
            raise CallError(
                f"{script} defines no {name!r}",
                hint="litz bench takes a script that defines a function or module, and what to call it with (a tensor, "
                "a tuple, or a dict of keywords); --model and --inputs say by which names. What it does where "
                "__name__ is '__main__' is not run",
            )
    given = found[inputs]
    if not callable(found[model]):
        raise CallError(f"{model!r} in {script} is a {type(found[model]).__name__}, which cannot be called")
    if isinstance(given, dict):
        return found[model], ((), given)
    return found[model], (tuple(given) if isinstance(given, (tuple, list)) else (given,), {})


@contextmanager
def _beside(script: Path) -> Iterator[None]:
    """What lies beside a script can be imported from it."""
    path = list(sys.path)
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.path[:] = path


def _step(run: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], training: bool) -> Callable[[], Any]:
    """A call of it; in training, with the gradients of the sum of its results."""
    import torch
    from torch.utils._pytree import tree_leaves

    def step() -> list[Any]:
        with torch.set_grad_enabled(training):
            results = [leaf for leaf in tree_leaves(run(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
            if training:
                losses = [result.float().sum() for result in results if result.requires_grad]
                if not losses:
                    raise CallError("no result of it has a gradient", hint="without --training there need be none")
                torch.stack(losses).sum().backward()
                results = [result.detach() for result in results]
        if any(result.is_cuda for result in results):
            torch.cuda.synchronize()
        return results

    return step


def _refuse_nothing(script: Path, made: Sequence[Report]) -> None:
    """A comparison of eager with itself would tell nothing."""
    if any(report.built for report in made):
        return
    why = next((report.left_to_eager for report in made if report.left_to_eager), "there is nothing to compute in it")
    raise CallError(f"Litz compiled nothing of {script}: {why}")


def _apart(results: Sequence[Any], expected: Sequence[Any]) -> float:
    """NaN where they cannot be compared, or one is NaN and the other is not."""
    if [(r.shape, r.dtype) for r in results] != [(e.shape, e.dtype) for e in expected]:
        return float("nan")
    worst = 0.0
    for result, right in zip(results, expected, strict=True):
        if right.numel() and not right.is_complex():
            found, wanted = result.double(), right.double()
            if not bool((found.isnan() == wanted.isnan()).all()):
                return float("nan")
            difference = float((found - wanted).nan_to_num(0.0).abs().max())
            worst = max(worst, difference / max(float(wanted.nan_to_num(0.0).abs().max()), 1e-30))
    return worst


def _in_turns(steps: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds * len(steps)
    while True:
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            taken[name].append(time.perf_counter() - start)
        if time.perf_counter() >= end:
            return taken


__all__ = ["CONTENDERS", "EAGER", "LITZ", "Row", "bench"]
