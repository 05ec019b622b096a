"""One case at several sizes through one program, compiled by way of Dynamo with `dynamic=True` and judged at each.

In: a `Case`. Out: a `Result`, with how many programs were compiled for all its sizes.

Here the numbers among an operator's arguments are arguments of the compiled function: symbolic, like the sizes.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch

from tests.opinfo.check import Result, judged
from tests.opinfo.samples import Case
from tests.opinfo.sizes import variants
from tests.opinfo.through_dynamo import Watched, executable, flat

MOST_COMPILES = 2  # of one graph: three sizes are one program, and a guard may cost another


def check_symbolic(case: Case) -> Result:
    """The case at its own size, at two others, and at its own again."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            case.function(*case.tensors)
        except Exception as error:
            return Result("refused", f"{type(error).__name__}: {error}")
        if not case.is_plain():
            return Result("eager", "not plain dense tensors")
        sizes = [case, *variants(case)]
        return _check([*sizes, replace(case, label=f"{case.label} again")] if len(sizes) > 1 else sizes)


def _check(sizes: list[Case]) -> Result:
    torch._dynamo.reset()
    watched = Watched()
    result = Result("right")
    function = torch.compile(flat(sizes[0]), backend=watched.backend, dynamic=True)
    graphs = 0
    with watched.watching():
        for case in sizes:
            message, conditioned = judged(case, executable(case, function))
            result.conditioned |= conditioned
            graphs = graphs or watched.graphs
            if message is not None:
                where = f"at {[tuple(t.shape) for t in case.tensors]}: " if case is not sizes[0] else ""
                result.status, result.message = "wrong", where + message.split("\n\nSet TORCHDYNAMO")[0]
                break
    result.kernels, result.calls = watched.kernels, watched.calls
    result.operators = min(result.kernels, 1)
    result.compiles = len(watched.contexts)
    result.compile_ms = round(1e3 * sum(sum(ctx.timings.values()) for ctx in watched.contexts), 2)
    if result.status == "wrong":
        return _excused(sizes, result)
    if watched.left_to_eager or not watched.graphs:
        result.status, result.message = "eager", next(iter(watched.left_to_eager), "Dynamo makes no graph of it")
    elif result.compiles > MOST_COMPILES * max(graphs, 1):
        why = f": {watched.per_size[0]}" if watched.per_size else ""
        result.message = f"{result.compiles} compiles for {len(sizes)} sizes of {graphs} graphs{why}"
    return result


def _excused(sizes: list[Case], result: Result) -> Result:
    """What Dynamo gets wrong whatever the backend says nothing of Litz; of tracing's own faults a hint is given."""
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        function = torch.compile(flat(sizes[0]), backend=backend, dynamic=True)
        messages = [judged(case, executable(case, function))[0] for case in sizes]
        if any(messages):
            if backend == "eager":
                return replace(result, status="known", message=f"Dynamo's, whatever the backend: {result.message}")
            result.message += f" [{backend}: {next(filter(None, messages))[:200]}]"
    return result


__all__ = ["check_symbolic"]
