"""`litz.compile`: the same as `torch.compile(backend="litz")`, with the options as keywords.

In: a module or function. Out: what `torch.compile` returns for it. Options are checked here, at the call
that states them, and not at the first run of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litz.options import Options


def compile(
    model_or_fn: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    **options: Any,
) -> Any:
    """Compiles a module or a function with Litz. Without one, returns a decorator.

    `fullgraph` and `dynamic` mean what they mean to `torch.compile`; all other keywords are fields of
    `litz.Options`.
    """
    Options.parse(options)
    if model_or_fn is None:
        return lambda fn: compile(fn, fullgraph=fullgraph, dynamic=dynamic, **options)

    import torch

    return torch.compile(model_or_fn, backend="litz", fullgraph=fullgraph, dynamic=dynamic, options=options or None)
