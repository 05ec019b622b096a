"""Shapes that change: how often a language model is compiled, and what not knowing its length costs.

`python -m benchmarks.dynamic [gpt2|llama]` calls a model with fifteen sequence lengths, counts the graphs
Litz compiled, and times the program for all lengths against one compiled for the last length alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.models import build, tensors
from benchmarks.process import THREADS

LENGTHS = (64, 48, 100, 17, 128, 250, 33, 65, 77, 90, 111, 200, 150, 31, 256)
ROUNDS = 9


def dynamic(name: str) -> dict[str, Any]:
    import litz.capture.backend as backend

    torch.set_num_threads(THREADS)
    module, kwargs = build(name)
    vocabulary = module.config.vocab_size
    compiled = 0

    def counting(graph_module: Any, inputs: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return backend.litz(graph_module, inputs)

    with torch.no_grad():
        every = torch.compile(module, backend=counting)
        worst = 0.0
        for length in LENGTHS:
            tokens = torch.randint(0, vocabulary, (2, length))
            for mine, eager in zip(tensors(every(input_ids=tokens)), tensors(module(input_ids=tokens)), strict=True):
                worst = max(worst, ((mine - eager).abs().max() / eager.abs().max()).item())
        one = torch.compile(_copy_of(module), backend="litz", dynamic=False)
        kwargs = {"input_ids": torch.randint(0, vocabulary, (2, LENGTHS[-1]))}
        times = _interleaved({"all sizes": lambda: every(**kwargs), "one size": lambda: one(**kwargs)})
    ratio = times["all sizes"] / times["one size"]
    counts = {"lengths": len(LENGTHS), "compiled": compiled}
    return {"model": name, **counts, "difference": worst, "ms": times, "ratio": ratio}


def _copy_of(module: torch.nn.Module) -> torch.nn.Module:
    """Dynamo keeps what it compiled with the code object; a module of its own class is compiled afresh."""
    import copy

    return copy.deepcopy(module)


def _interleaved(contenders: dict[str, Callable[[], Any]]) -> dict[str, float]:
    best = dict.fromkeys(contenders, float("inf"))
    for run in contenders.values():
        run()
        run()
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


if __name__ == "__main__":
    for chosen in sys.argv[1:] or ["gpt2", "llama"]:
        found = dynamic(chosen)
        print(json.dumps(found))
        print(f"{chosen}: {found['compiled']} compiled for {found['lengths']} lengths (bar: at most 2)")
        print(f"{chosen}: {found['ratio']:.3f} × the time of a static program (bar: at most 1.10)")
