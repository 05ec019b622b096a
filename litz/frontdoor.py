"""`litz.compile`: the same as `torch.compile(backend="litz")`, with the options as keywords; `litz.jvp`: the same of a
function's derivative.

In: a module or function. Out: what `torch.compile` returns for it. Options are checked here, at the call
that states them, and not at the first run of the model.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from litz.options import Options
from litz.target import refuse_system


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
    refuse_system(platform.system())
    Options.parse(options)
    if model_or_fn is None:
        return lambda fn: compile(fn, fullgraph=fullgraph, dynamic=dynamic, **options)

    import torch

    return torch.compile(model_or_fn, backend="litz", fullgraph=fullgraph, dynamic=dynamic, options=options or None)


def jvp(
    function: Callable[..., Any],
    *,
    has_aux: bool = False,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """`litz.jvp(f)(primals, tangents)` gives the outputs of `f(*primals)` and their tangents, as `torch.func.jvp(f,
    primals, tangents)` does, from one compiled graph; with `has_aux`, the rest of what `f` returns as well.

    Inside of another one, or of `torch.compile`, it is part of what is compiled there. The other keywords are those of
    `litz.compile`.
    """
    import torch

    if torch.compiler.is_compiling():
        return lambda primals, tangents: torch.func.jvp(function, primals, tangents, has_aux=has_aux)

    from litz.capture.forward_mode import as_primals_lie, derivative_of, or_as_written

    written = derivative_of(function, has_aux)
    compiled = compile(written, fullgraph=fullgraph, dynamic=dynamic, **options)
    if not fullgraph:
        compiled = or_as_written(compiled, written, Options.parse(options))

    def derivative(primals: Any, tangents: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.func.jvp(function, primals, tangents, has_aux=has_aux)
        return compiled(primals, as_primals_lie(function, primals, tangents))

    return derivative
