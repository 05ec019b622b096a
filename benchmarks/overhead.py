"""The cost of a call: fifteen pointwise operators on 64 floats, where the arithmetic is nearly nothing.

`python -m benchmarks.overhead` prints one JSON object: microseconds a call, best of many, for eager, a
backend that does nothing (its graph's result is returned as it was at compile time: what Dynamo itself
costs), `inductor` and `litz`, taking turns in one process.
"""

from __future__ import annotations

import json
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.process import THREADS, describe, litz_backend

BATCHES = 40
CALLS = 2000


def chain(x: torch.Tensor) -> torch.Tensor:
    x = x * 1.5
    x = x + 0.25
    x = torch.sin(x)
    x = torch.abs(x)
    x = torch.sqrt(x)
    x = x - 0.5
    x = torch.tanh(x)
    x = torch.exp(x)
    x = x / 3.0
    x = torch.sigmoid(x)
    x = torch.cos(x)
    x = torch.relu(x)
    x = x * x
    x = torch.neg(x)
    return torch.clamp(x, -0.75, 0.75)


def nothing(graph_module: Any, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    result = graph_module(*inputs)
    return lambda *arguments: result


def overhead(batches: int = BATCHES, calls: int = CALLS) -> dict[str, Any]:
    """Microseconds a call by contender, or why there is none."""
    torch.set_num_threads(THREADS)
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    backends = {"eager": None, "nothing": nothing, "inductor": "inductor", "litz": litz_backend()}
    results: dict[str, Any] = {}
    contenders: dict[str, Callable[..., Any]] = {}
    with torch.no_grad():
        expected = chain(x)
        for name, backend in backends.items():
            try:
                function = chain if backend is None else torch.compile(_own_copy(name), backend=backend)
                torch.testing.assert_close(function(x), expected)
                contenders[name] = function
            except Exception as error:
                results[name] = {"failed": describe(error)}
        best = dict.fromkeys(contenders, float("inf"))
        for _ in range(batches):
            for name, function in contenders.items():
                start = time.perf_counter()
                for _ in range(calls):
                    function(x)
                best[name] = min(best[name], (time.perf_counter() - start) / calls)
    results.update({name: {"microseconds": seconds * 1e6} for name, seconds in best.items()})
    return results


def _own_copy(name: str) -> Callable[..., Any]:
    """The same function with a code object of its own: Dynamo looks compiled code up by code object."""
    code = chain.__code__.replace(co_name=f"chain_{name}")
    return types.FunctionType(code, chain.__globals__, f"chain_{name}")


if __name__ == "__main__":
    print(json.dumps(overhead()))
