"""Predicted against measured: the peak of a training step, as the report says, and as PyTorch's allocator counts.

`make bench-memory`, or `python -m benchmarks.memory [--models bert,llama] [--budgets 1,0.5,0]`. Each model and budget
is measured in a process of its own. Counted are all bytes beyond parameters and arguments; a row fails where the two
are more than 5% apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.process import THREADS, in_fresh_process
from benchmarks.table import figure, ratio, render

APART = 0.05


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="bert,gpt2,llama,vit,resnet,convnext")
    parser.add_argument("--budgets", default="1,0.5,0")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.one[0], float(options.one[1]))))
        return 0
    rows, failed = [], []
    for model in options.models.split(","):
        for budget in options.budgets.split(","):
            found = in_fresh_process("benchmarks.memory", "--one", model, budget)
            near = ratio(found.get("predicted"), found.get("measured"))
            if near is None or abs(near - 1) > APART:
                failed.append(f"{model} at {budget}")
            sizes = [figure(found.get(n, 0) / 2**20, ".1f") for n in ("predicted", "measured")]
            rows.append([model, budget, *sizes, figure(near, ".3f")])
            print(" ".join(map(str, rows[-1])), file=sys.stderr, flush=True)
    print(render(["model", "budget", "predicted MiB", "measured MiB", "ratio"], rows))
    print(f"more than 5% apart: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def measure(model: str, budget: float) -> dict[str, Any]:
    import torch

    import litz
    from benchmarks.training_step import _return_memory, live_bytes, loss_of, model_in_training

    torch.set_num_threads(THREADS)
    module, kwargs = model_in_training(model)
    loss = torch.compile(loss_of(module), backend="litz", options={"memory_budget": budget})

    def step() -> None:
        module.zero_grad(set_to_none=True)
        loss(**kwargs).backward()

    for _ in range(2):
        step()
    (report,) = litz.reports()
    module.zero_grad(set_to_none=True)
    _return_memory("litz")
    return {"predicted": report.peak_bytes, "measured": live_bytes(step)}


if __name__ == "__main__":
    sys.exit(main())
