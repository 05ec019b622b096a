"""How much of a cold compile rewriting takes, for each of the six models.

`python -m benchmarks.rewrite` prints one line a model: seconds of the first call in a fresh process, of them
rewriting, and the rules that fired. The bar is 8%.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.process import THREADS, in_fresh_process, litz_backend

BAR = 0.08
STAGES = ("rewrite_joint", "rewrite_post_grad")


def measure(model: str) -> dict[str, Any]:
    """Seconds of the first call in this process, and of rewriting in it."""
    import torch

    from benchmarks.models import build

    torch.set_num_threads(THREADS)
    module, kwargs = build(model)
    start = time.perf_counter()
    compiled = torch.compile(module, backend=litz_backend())
    with torch.no_grad():
        compiled(**kwargs)
    cold = time.perf_counter() - start

    import litz

    report = litz.last_report()
    if report is None:
        return {"failed": "nothing was compiled"}
    timings = dict(report.timings)
    rewriting = sum(timings.get(stage, 0.0) for stage in STAGES)
    return {"cold": cold, "rewriting": rewriting, "fired": {f.rule: f.times for f in report.firings}}


def main() -> None:
    from benchmarks.models import MODELS

    for model in MODELS:
        found = in_fresh_process("benchmarks.rewrite", model)
        if "failed" in found:
            print(f"{model:9s} failed: {found['failed']}")
            continue
        share = found["rewriting"] / found["cold"]
        fired = ", ".join(f"{rule} × {times}" for rule, times in found["fired"].items())
        verdict = "within" if share <= BAR else "OVER"
        print(
            f"{model:9s} cold {found['cold']:5.2f} s, rewriting {found['rewriting'] * 1e3:5.0f} ms: "
            f"{share:5.1%}, {verdict} {BAR:.0%}; {fired}",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
