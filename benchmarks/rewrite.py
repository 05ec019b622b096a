"""How much of a cold compile rewriting takes, for each of the six models.

`python -m benchmarks.rewrite` prints one line a model: seconds of the first call in a fresh process, of them
rewriting, and the rules that fired. The bar is 8%. Then: the time to load the built-in rules (20 ms), and a
causal attention over 2,000 tokens written by hand, against the same graph unmatched (twice as fast).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.process import THREADS, in_fresh_process, litz_backend

BAR = 0.08
STAGES = ("rewrite_pre_grad", "rewrite_joint", "rewrite_post_grad")


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


def measure_loading(compiled: bool = True) -> dict[str, Any]:
    """Seconds of this process to load all built-in rules, once torch and the engine are there: from bytecode, as an
    installed package has it, or from source, where Python must not or cannot keep any."""
    import compileall
    import tempfile
    from pathlib import Path

    import torch

    import litz.graph.replacement
    import litz.graph.rewrite

    del torch
    with tempfile.TemporaryDirectory() as folder:
        sys.dont_write_bytecode, sys.pycache_prefix = True, folder
        if compiled:
            compileall.compile_dir(Path(litz.graph.__path__[0]) / "rules", quiet=1)
        start = time.process_time()
        import litz.graph.rules

        return {"seconds": time.process_time() - start}


def measure_long_attention() -> dict[str, Any]:
    """Best seconds of a hand-written causal attention, matched and not, and the arena of each; interleaved."""
    import torch

    import litz

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        visible = torch.arange(2000).unsqueeze(0) <= torch.arange(2000).unsqueeze(1)
        return torch.softmax((q @ k.mT / 8).masked_fill(~visible, float("-inf")), -1) @ v

    torch.set_num_threads(THREADS)
    inputs = [torch.randn(1, 4, 2000, 64) for _ in range(3)]
    compiled, arena = {}, {}
    with torch.no_grad():
        for name, options in (("matched", {}), ("unmatched", {"fuel": 0})):
            torch._dynamo.reset()
            compiled[name] = litz.compile(attend, **options)
            compiled[name](*inputs)
            report = litz.last_report()
            arena[name] = report.arena_bytes if report is not None else 0
        best = dict.fromkeys(compiled, float("inf"))
        for _ in range(10):
            for name, function in compiled.items():
                start = time.perf_counter()
                function(*inputs)
                best[name] = min(best[name], time.perf_counter() - start)
    return {"seconds": best, "arena": arena}


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
    loading, source = (
        min(in_fresh_process("benchmarks.rewrite", how)["seconds"] for _ in range(3))
        for how in ("--loading", "--loading-source")
    )
    print(f"loading all rules: {loading * 1e3:.1f} ms, at most 20 wanted; without bytecode {source * 1e3:.1f} ms")
    long = in_fresh_process("benchmarks.rewrite", "--long-attention")
    seconds, arena = long["seconds"], long["arena"]
    print(
        f"attention over 2,000 tokens: {seconds['unmatched'] * 1e3:.1f} ms, matched {seconds['matched'] * 1e3:.1f}: "
        f"{seconds['unmatched'] / seconds['matched']:.2f}x as fast, at least 2 wanted; "
        f"arena {arena['unmatched'] / 2**20:.1f} and {arena['matched'] / 2**20:.1f} MiB"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        special = {
            "--loading": measure_loading,
            "--loading-source": lambda: measure_loading(compiled=False),
            "--long-attention": measure_long_attention,
        }
        print(json.dumps(special[sys.argv[1]]() if sys.argv[1] in special else measure(sys.argv[1])))
    else:
        main()
