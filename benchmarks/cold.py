"""Seconds of the first call in a fresh process with all caches off.

`python -m benchmarks.cold bert litz` measures one; without arguments, all models and backends. Model
construction and the import of torch and transformers are not counted; everything the backend needs to
load and do is. `eager` is Dynamo with no compiler behind it: the floor for any backend. `litz frozen` is Litz with
`freeze=True`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.process import THREADS, in_fresh_process, litz_backend, without_caches

BACKENDS = ("eager", "inductor", "litz")


def measure(model: str, backend: str) -> float:
    """Seconds of the first call, in this process."""
    import torch

    torch.set_num_threads(THREADS)
    if model == "warmup":
        function, kwargs = (lambda x: x + 1), {"x": torch.ones(8)}
    else:
        from benchmarks.models import build

        function, kwargs = build(model)
    start = time.perf_counter()
    options = {"freeze": True} if backend == "litz frozen" else None
    compiled = torch.compile(
        function, backend=litz_backend() if backend.startswith("litz") else backend, options=options
    )
    with torch.no_grad():
        compiled(**kwargs)
    return time.perf_counter() - start


def cold(models: Iterable[str], backends: Iterable[str] = BACKENDS, log: Any = None) -> dict[str, dict[str, Any]]:
    """For each model and backend, `{"seconds": …}` or `{"failed": why}`."""
    # Files that any first process reads from disk should be in memory for all of them.
    for backend in backends:
        _fresh("warmup", backend)
    results: dict[str, dict[str, Any]] = {}
    for model in models:
        results[model] = {}
        for backend in backends:
            results[model][backend] = _fresh(model, backend)
            if log is not None:
                log(f"cold {model} {backend}: {results[model][backend]}")
    return results


def _fresh(model: str, backend: str) -> dict[str, Any]:
    environment = without_caches()
    try:
        return in_fresh_process("benchmarks.cold", model, backend, environment=environment)
    finally:
        shutil.rmtree(environment["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps({"seconds": measure(sys.argv[1], sys.argv[2])}))
    else:
        from benchmarks.models import MODELS

        cold(MODELS, log=print)
