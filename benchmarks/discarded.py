"""What a process holds after a model's first calls, frozen with `"discard"` or not frozen at all.

`python -m benchmarks.discarded bert discard` prints one JSON object: bytes of the weights, and resident memory that is
no file's, once what is free has been given back. The two processes do the same but for the weights, so the difference
is of those: of the originals, and of what was made of them.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path

from benchmarks.process import THREADS, litz_backend

CALLS = 3


def measure(model: str, how: str) -> dict[str, int]:
    import torch

    from benchmarks.models import build

    torch.set_num_threads(THREADS)
    module, kwargs = build(model)
    weights = sum({t.data_ptr(): t.nbytes for t in (*module.parameters(), *module.buffers())}.values())
    options = {"freeze": "discard"} if how == "discard" else None
    compiled = torch.compile(module, backend=litz_backend(), options=options)
    with torch.no_grad():
        for _ in range(CALLS):
            compiled(**kwargs)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return {"weights": weights, "resident": anonymous()}


def anonymous() -> int:
    """Bytes of this process that are in memory, and in no file."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2])))
