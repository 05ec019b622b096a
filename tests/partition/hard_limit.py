"""Training under a limit that the operating system enforces.

`python -m tests.partition.hard_limit eager|inductor|litz|bounded <bytes>` prints the losses of some steps as JSON, or,
where memory ran out, what was said; `bounded` is Litz with `memory_budget` set to as many bytes. What is limited is the
process's address space (`RLIMIT_AS`): to what it has once everything is compiled and has run, with the step's
arguments, plus what those leave of the bytes. Tensors of a few pages are mapped one by one, so that what is given back
is the system's again.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from litz.runtime.arena import ARENA
from tests.debug.test_pareto import Stack

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS, LAYERS, STEPS = 49152, 3, 2
# As much of the heap as can be goes back at once.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "16384"}


def trained_under(most: int, way: str) -> dict[str, Any]:
    """In a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.partition.hard_limit", way, str(most)],
        cwd=ROOT, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def trained(way: str, most: int | None = None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Stack(LAYERS).eval()  # without dropout: all ways compute the same
    x = torch.randn(ROWS, 16)
    arguments = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers(), x))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    if way == "eager":
        run: Any = loss
    elif way == "bounded":
        run = torch.compile(loss, backend="litz", options={"memory_budget": most})
    else:
        run = torch.compile(loss, backend=way)

    def gradients() -> float:
        value = run(x)
        value.backward()
        return float(value.detach())

    for _ in range(2):  # compiled, threads started
        gradients()
        model.zero_grad(set_to_none=True)
    if most is not None:
        _limit(most - arguments)
    losses = []
    try:
        for _ in range(STEPS):
            losses.append(gradients())
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p -= 0.05 * p.grad
            model.zero_grad(set_to_none=True)
    except (RuntimeError, MemoryError) as error:
        return {"failed": str(error)}
    return {"losses": losses}


def _limit(more: int) -> None:
    gc.collect()
    ARENA.clear()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(json.dumps(trained(sys.argv[1], int(sys.argv[2]))))
