"""How long a page takes, beside the compile it is about: `python -m benchmarks.explain`, or with names for some.

Each in a process of its own, by turns: a first step compiled by Litz, as ever; and `litz.explain` of the same, from the
call to the file, with that compile, the runs that are timed, the machine code that is listed and the page itself in it.
The bar: the page takes at most 1.5 times what the compile takes. Its bytes are those of the file. Seconds of the
processors are told too, of all threads together: what else the machine does is not in them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import litz
from benchmarks.process import THREADS

MODELS = ("bert", "breaks", "budget")
ROUNDS = 3
BAR, MOST_BYTES = 1.5, 5_000_000


def subject(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """A function, its arguments, and options: BERT training; five graph breaks; BERT training in less memory."""
    if name == "breaks":
        from tests.explanation.models import Broken

        return Broken(), (torch.randn(8, 64),), {}, {}
    from benchmarks.training_step import loss_of, model_in_training

    module, kwargs = model_in_training("bert")
    return loss_of(module), (), kwargs, {"memory_budget": 0.5} if name == "budget" else {}


def measure(kind: str, name: str) -> dict[str, float]:
    torch.set_num_threads(THREADS)
    function, args, kwargs, options = subject(name)
    start, busy = time.perf_counter(), time.process_time()
    if kind == "compile":
        result = litz.compile(function, **options)(*args, **kwargs)
        result.sum().backward()
        return {"seconds": time.perf_counter() - start, "busy": time.process_time() - busy}
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        explanation = litz.explain(function, *args, path=page, options=options, **kwargs)
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        return {"seconds": seconds, "busy": busy, "bytes": page.stat().st_size, "pieces": len(explanation.pieces)}


def _in_process(kind: str, name: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.explain", kind, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(names: tuple[str, ...]) -> int:
    missed = 0
    for name in names:
        rounds = [(_in_process("compile", name), _in_process("explain", name)) for _ in range(ROUNDS)]
        compiling = min(before["seconds"] for before, _ in rounds)
        page = min(after["seconds"] for _, after in rounds)
        size = int(rounds[0][1]["bytes"])
        busy = min(after["busy"] for _, after in rounds) / min(before["busy"] for before, _ in rounds)
        well = page <= BAR * compiling and size < MOST_BYTES
        missed += not well
        print(
            f"{name:8} first step {compiling:6.2f} s   explained {page:6.2f} s   {page / compiling:.2f} times "
            f"(at most {BAR}), "
            f"{busy:.2f} of the processors' seconds   {size:,} bytes   {'' if well else 'MISSED'}",
            flush=True,
        )
    return int(missed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] in (["compile"], ["explain"]):
        print(json.dumps(measure(*sys.argv[1:3])))
        sys.exit(0)
    sys.exit(main(tuple(sys.argv[1:]) or MODELS))
