"""Less memory: Litz's `memory_budget` in bytes against PyTorch's `activation_memory_budget`, on a Llama-style stack.

`make bench-pareto`, or `python -m benchmarks.pareto [--layers 8 --tokens 2048] [--budgets 1,0.5,0] [--peaks 8]`.
`inductor` is compiled at each budget, and its peak measured. At up to so many different peaks that it reaches, Litz is
compiled with that peak as its bound, and the two take turns. Then the least budget that Litz can meet is compiled, and
its peak measured. Peaks have arguments and gradients in them. It fails where Litz takes longer at a peak, takes more
memory than that, or does not go at least 20% lower than the lowest of PyTorch's.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.process import THREADS, in_fresh_process
from benchmarks.stack import LAYERS, TOKENS
from benchmarks.table import figure, ratio, render

BUDGETS = "1,0.9,0.8,0.7,0.6,0.5,0.4,0.3,0.2,0.1,0.05,0"
APART = 0.01  # peaks that are nearer than this are one
LOWER = 0.20
NOISE = 0.03  # what two runs of one step are apart
LONG = 3600.0  # seconds


@dataclass(frozen=True)
class Row:
    """At one of PyTorch's budgets."""

    budget: float
    bytes: int
    seconds: float
    litz_bytes: int | None = None
    litz_seconds: float | None = None
    failed: str | None = None


@dataclass(frozen=True)
class Found:
    rows: tuple[Row, ...]
    least: int | None  # bytes that Litz takes under the least bound


def judged(found: Found, peaks: int = 8) -> list[str]:
    """What was missed."""
    missed = [] if len(found.rows) >= peaks else [f"{len(found.rows)} peaks were compared, not {peaks}"]
    for row in found.rows:
        if row.failed is not None or row.litz_bytes is None or row.litz_seconds is None:
            missed.append(f"at {row.budget:g}: {row.failed}")
        elif row.litz_bytes > (1 + APART) * row.bytes:
            missed.append(f"at {row.budget:g}: {row.litz_bytes:,} bytes, more than {row.bytes:,}")
        elif row.litz_seconds > (1 + NOISE) * row.seconds:
            missed.append(f"at {row.budget:g}: {row.litz_seconds / row.seconds:.2f} of PyTorch's time")
    lowest = min((row.bytes for row in found.rows), default=0)
    if found.least is None or found.least > (1 - LOWER) * lowest:
        missed.append(f"the lowest peak is {figure(ratio(found.least, lowest))} of PyTorch's, not {1 - LOWER:g}")
    return missed


def spread(peaks: dict[float, int], count: int) -> list[float]:
    """Budgets whose peaks differ, the highest and the lowest among them."""
    different: list[float] = []
    for budget in sorted(peaks, key=lambda b: -peaks[b]):
        if not different or peaks[budget] < (1 - APART) * peaks[different[-1]]:
            different.append(budget)
    if len(different) <= count:
        return different
    last = len(different) - 1
    return [different[round(last * i / (count - 1))] for i in range(count)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--budgets", default=BUDGETS)
    parser.add_argument("--peaks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(asdict(measure(options))))
        return 0
    given = [f"--{name}={getattr(options, name)}" for name in ("layers", "tokens", "budgets", "peaks", "rounds")]
    answer = in_fresh_process("benchmarks.pareto", "--measure", *given, limit=LONG)
    if "failed" in answer:
        print(answer["failed"])
        return 1
    found = Found(tuple(Row(**row) for row in answer["rows"]), answer["least"])
    print(table(found))
    missed = judged(found, options.peaks)
    print("\n".join(["missed:", *missed]) if missed else "all bars are met")
    return 1 if missed else 0


def table(found: Found) -> str:
    rows = [
        [
            f"{row.budget:g}", _mib(row.bytes), _mib(row.litz_bytes), figure(row.seconds * 1e3, ".1f"),
            figure(None if row.litz_seconds is None else row.litz_seconds * 1e3, ".1f"),
            figure(ratio(row.litz_seconds, row.seconds)),
        ]
        for row in found.rows
    ]  # fmt: skip
    header = ["PyTorch's budget", "its peak MiB", "Litz's", "its step ms", "Litz's", "ratio"]
    lowest = min((row.bytes for row in found.rows), default=0)
    last = f"lowest peak: PyTorch {_mib(lowest)} MiB, Litz {_mib(found.least)}: {figure(ratio(found.least, lowest))}"
    return f"{render(header, rows)}\n{last}"


def _mib(count: int | None) -> str:
    return figure(None if count is None else count / 2**20, ".1f")


# -- in a process of its own --------------------------------------------------------------------
def measure(options: argparse.Namespace) -> Found:
    import torch
    import torch._functorch.config as settings

    import litz
    from benchmarks.stack import stack
    from litz.debug.step import Step, Subject, peak_of_step, seconds_of_steps

    torch.set_num_threads(THREADS)
    torch._dynamo.config.recompile_limit = 64
    model, kwargs = stack(options.layers, options.tokens)
    subject = Subject(model, (), kwargs, lambda output: output.loss)
    arguments = sum(t.numel() * t.element_size() for t in {id(t): t for t in subject.tensors}.values())
    cpu = torch.device("cpu")

    def compiled(backend: str, **how: Any) -> tuple[Step, int]:
        step = subject.step(partial(torch.compile, backend=backend, **how))
        step()
        step()
        return step, arguments + peak_of_step(subject, step)

    theirs: dict[float, tuple[Step, int]] = {}
    for budget in map(float, options.budgets.split(",")):
        with settings.patch(activation_memory_budget=budget):
            theirs[budget] = compiled("inductor")
        _say(f"inductor at {budget:g}: {theirs[budget][1]:,} bytes")
    rows = []
    for budget in spread({budget: peak for budget, (_, peak) in theirs.items()}, options.peaks):
        step, peak = theirs[budget]
        try:
            mine, own_peak = compiled("litz", options={"memory_budget": peak})
        except Exception as error:
            seconds = seconds_of_steps({"inductor": step}, options.rounds, cpu)
            rows.append(Row(budget, peak, seconds["inductor"], failed=str(error).strip().splitlines()[-1]))
        else:
            seconds = seconds_of_steps({"inductor": step, "litz": mine}, options.rounds, cpu)
            rows.append(Row(budget, peak, seconds["inductor"], own_peak, seconds["litz"]))
        _say(str(rows[-1]))
    del theirs
    curve = litz.pareto(model, kwargs=kwargs, loss=subject.loss, points=24, beside=())
    _say(str(curve))
    least = min((p for p in curve.points if p.bytes is not None), key=lambda p: p.bytes or 0)
    return Found(tuple(rows), compiled("litz", options={"memory_budget": least.bytes})[1])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
