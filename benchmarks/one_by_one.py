"""Operators called one by one, in eager mode: microseconds of a call with torch's own kernels and with Litz's.

`python -m benchmarks.one_by_one` fills the cache in one process, and measures in another, which compiles nothing: each
operator before it is enabled and after, in turns, for small and for large tensors.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.process import THREADS, in_fresh_process
from benchmarks.table import figure, geometric_mean, render

ROUNDS = 9
SHAPES = ((64,), (64, 256), (512, 1024))
OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "aten::gelu": F.gelu,
    "aten::silu": F.silu,
    "aten::mish": F.mish,
    "aten::sigmoid": torch.sigmoid,
    "aten::_softmax": lambda x: torch.softmax(x, -1),
    "aten::native_layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
}


def measure() -> dict[str, Any]:
    import litz
    import litz.eager

    torch.set_num_threads(THREADS)
    inputs = [torch.randn(shape) for shape in SHAPES]
    found: dict[str, Any] = {}
    for name, call in OPERATORS.items():
        times: dict[str, list[list[float]]] = {"torch": [], "litz": []}
        for _ in range(ROUNDS):
            times["torch"].append([_microseconds(call, x) for x in inputs])
            litz.eager.enable(name)
            times["litz"].append([_microseconds(call, x) for x in inputs])
            litz.eager.disable()
        found[name] = {who: [min(column) for column in zip(*rows, strict=True)] for who, rows in times.items()}
    return {"operators": found, "compiles": len(litz.reports())}


def _microseconds(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> float:
    for _ in range(3):
        call(x)
    count = max(3, 100_000 // x.numel())
    start = time.perf_counter()
    for _ in range(count):
        call(x)
    return (time.perf_counter() - start) / count * 1e6


def main() -> None:
    if "--measure" in sys.argv:
        print(json.dumps(measure()))
        return
    folder = tempfile.mkdtemp(prefix="litz-one-by-one-")
    environment = {"LITZ_CACHE": "1", "LITZ_CACHE_DIR": folder}
    try:
        in_fresh_process("benchmarks.one_by_one", "--measure", environment=environment)
        second = in_fresh_process("benchmarks.one_by_one", "--measure", environment=environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if "failed" in second:
        sys.exit(second["failed"])
    header = ["", *(f"{'×'.join(map(str, shape))}: torch, Litz" for shape in SHAPES)]
    rows, ratios = [], []
    for name, times in second["operators"].items():
        pairs = list(zip(times["torch"], times["litz"], strict=True))
        rows.append([name, *(f"{figure(a)}, {figure(b)}" for a, b in pairs)])
        ratios += [b / a for a, b in pairs]
    print(render(header, rows))
    print(f"compiles in the second process: {second['compiles']}")
    print(f"of torch's time: {figure(geometric_mean(ratios))} on average, at worst {figure(max(ratios))}")


if __name__ == "__main__":
    main()
