"""Compile a function straight through the pipeline, without Dynamo, and compare it with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz.context import Context, Report
from litz.options import Options
from litz.pipeline import compile_function
from litz.target import Target, detect


def compiled(
    function: Callable[..., Any], inputs: Sequence[Any], target: Target | None = None, **options: Any
) -> tuple[Callable[..., Any], Report]:
    ctx = Context(Options(verify=True, snapshots=True, **options), target or detect(threads=2))
    with torch.no_grad():
        # Tracing counts parameters: those that a lambda only binds must not show.
        made = compile_function(lambda *args: function(*args), inputs, None, ctx)
    return made, ctx.report()


def outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def agrees(
    function: Callable[..., Any], *inputs: Any, rtol: float = 1e-5, atol: float = 1e-5, **options: Any
) -> Report:
    """Results and updated inputs as in eager, twice over: the second call finds used memory."""
    made, report = compiled(function, inputs, **options)
    for _ in range(2):
        mine, eager = [[x.clone() if isinstance(x, torch.Tensor) else x for x in inputs] for _ in range(2)]
        with torch.no_grad():
            wanted = outputs(function(*eager))
            found = outputs(made(*mine))
        assert len(found) == len(wanted)
        for got, want in zip([*found, *mine], [*wanted, *eager], strict=True):
            if isinstance(want, torch.Tensor):
                assert got.dtype == want.dtype
                torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
            else:
                assert got == want
    return report
