"""Resident memory after a thousand compiles of different shapes and a reset, against what Dynamo alone keeps.

`python -m benchmarks.residency` runs Dynamo with no compiler behind it and Litz, each in a fresh process, and prints
what each has before and after; `--compiles 200` fewer of them.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
from pathlib import Path

from benchmarks.process import in_fresh_process, litz_backend

COMPILES = 1000
ALLOWED = 0.05  # of what the process had at the start


def measure(backend: str, compiles: int) -> dict[str, float]:
    import torch

    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10 * compiles
    function = torch.compile(_function, backend=backend, dynamic=False)
    for rows in range(20):
        function(torch.randn(2 + rows, 33))
    torch._dynamo.reset()
    start = _resident()
    for number in range(compiles):
        function(torch.randn(2 + number % 100, 20 + number // 100))
    most = _resident()
    torch._dynamo.reset()
    return {"start": start, "compiled": most, "end": _resident()}


def _function(x):  # type: ignore[no-untyped-def]
    import torch

    y = torch.nn.functional.gelu(x * 2 + 1)
    return (y.softmax(-1) @ x.mT).sum(0), y.cumsum(0)


def _resident() -> float:
    """MiB, once what is free was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiles", type=int, default=COMPILES)
    parser.add_argument("backend", nargs="?")
    options = parser.parse_args()
    if options.backend:
        print(json.dumps(measure(options.backend, options.compiles)))
        return
    found = {}
    for backend in ("eager", litz_backend()):
        found[backend] = in_fresh_process("benchmarks.residency", "--compiles", str(options.compiles), backend)
        print(f"{backend}: {found[backend]} MiB", flush=True)
    alone, litz = found["eager"], found[litz_backend()]
    if "failed" in alone or "failed" in litz:
        sys.exit("not measured")
    bound = litz["start"] * (1 + ALLOWED) + alone["end"] - alone["start"]
    verdict = "met" if litz["end"] <= bound else "MISSED"
    print(f"after {options.compiles} compiles and a reset: {litz['end']:.0f} MiB, at most {bound:.0f}: {verdict}")


if __name__ == "__main__":
    main()
