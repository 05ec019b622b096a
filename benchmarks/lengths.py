"""Training over many lengths: how often Litz compiles, what a step costs, whether memory grows, whether losses agree.

`make bench-lengths`, or `python -m benchmarks.lengths [--models llama,encoder]` prints the tables and the bars; each
model is measured in a process of its own. `python -m benchmarks.lengths llama` measures one in this process and prints
one JSON object.

Two copies of a model see the same batches of twenty lengths, several steps each; eager trains one, Litz the other, and
they take turns. The first ten lengths have the shortest and the longest, so that the last ten bring nothing new: by
then Litz should have one program for all of them.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.bars import Bar
from benchmarks.process import THREADS, in_fresh_process, litz_backend, stand_in_warning
from benchmarks.table import figure, geometric_mean, ratio, render

LENGTHS = (64, 48, 100, 17, 128, 250, 33, 65, 256, 77, 90, 111, 200, 150, 31, 56, 180, 240, 129, 72)
SETTLED = 10  # lengths after which nothing new comes
STEPS = 6
BATCH = 4
VOCABULARY = 2048
COMPILES = 3
SLOWEST = 1.0  # litz / eager
GROWTH = 0.02  # of the most memory held over the first ten lengths
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def llama() -> tuple[nn.Module, Loss]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        vocab_size=VOCABULARY,
        use_cache=False,
    )
    return LlamaForCausalLM(config), lambda module, tokens: module(input_ids=tokens, labels=tokens).loss


class Classifier(nn.Module):
    """Tokens to one of ten classes, by the mean over what an encoder makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 256)
        layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 4)
        self.classify = nn.Linear(256, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.classify(self.encode(self.embed(tokens)).mean(1))


def encoder() -> tuple[nn.Module, Loss]:
    return Classifier(), lambda module, tokens: nn.functional.cross_entropy(module(tokens), tokens[:, 0] % 10)


MODELS: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {"llama": llama, "encoder": encoder}


def measure(name: str, steps: int = STEPS) -> dict[str, Any]:
    """For each length the best and the first step of both in ms, the losses' distance and the memory held after it."""
    import litz

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    module, loss = MODELS[name]()
    modules = {"eager": module.train(), "litz": copy.deepcopy(module).train()}
    runs = {"eager": loss, "litz": torch.compile(loss, backend=litz_backend())}
    trainings = {who: _step(runs[who], modules[who]) for who in runs}
    rows = []
    for place, length in enumerate(LENGTHS):
        times: dict[str, list[float]] = {who: [] for who in trainings}
        apart = []
        for step in range(steps):
            seed = place * steps + step
            tokens = torch.randint(0, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(seed))
            losses = {}
            for who in sorted(trainings, reverse=bool(step % 2)):
                torch.manual_seed(seed)  # dropout drops the same
                start = time.perf_counter()
                losses[who] = trainings[who](tokens)
                times[who].append((time.perf_counter() - start) * 1e3)
            apart.append(abs(losses["litz"] - losses["eager"]) / abs(losses["eager"]))
        best = {who: min(mine) for who, mine in times.items()}
        first = {who: mine[0] for who, mine in times.items()}
        row = {"length": length, "best": best, "first": first, "apart": _largest(apart), "resident": _resident()}
        rows.append(row)
    left = [report.left_to_eager for report in litz.reports() if report.left_to_eager]
    return {"lengths": rows, "compiles": len(litz.reports()), "why": [r.title for r in litz.reports()], "left": left}


def _step(loss: Loss, module: nn.Module) -> Callable[[torch.Tensor], float]:
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)

    def step(tokens: torch.Tensor) -> float:
        optimizer.zero_grad()
        value = loss(module, tokens)
        value.backward()
        optimizer.step()
        return value.item()

    return step


def _largest(values: list[float]) -> float:
    """A NaN is the largest: it compares false with everything, and must not pass for a small one."""
    return max(values, key=lambda value: math.inf if math.isnan(value) else value)


def _resident() -> int:
    """Bytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- what came of it ----------------------------------------------------------------------------------
def report(name: str, found: Mapping[str, Any]) -> str:
    if "failed" in found:
        return f"{name}: {found['failed']}"
    rows = []
    for row in found["lengths"]:
        best, first = row["best"], row["first"]
        cells = [figure(best["eager"]), figure(best["litz"]), figure(ratio(best["litz"], best["eager"]), ".3f")]
        cells += [figure(ratio(first["litz"], first["eager"])), figure(row["apart"], ".0e")]
        rows.append([str(row["length"]), *cells, f"{row['resident'] / 2**20:.0f}"])
    header = ["length", "eager ms", "litz", "litz/eager", "first step", "losses apart", "resident MiB"]
    return "\n".join([f"{name}, {BATCH} sequences a step", render(header, rows), *found["why"]])


def bars(name: str, found: Mapping[str, Any]) -> list[Bar]:
    if "failed" in found:
        return [Bar(name, "a result", found["failed"], False)]
    late = found["lengths"][SETTLED:]
    ratios = {row["length"]: ratio(row["best"]["litz"], row["best"]["eager"]) for row in late}
    mean = geometric_mean(list(ratios.values()))
    slowest = max(ratios, key=lambda length: ratios[length] or 0.0)
    # The allocator keeps some of what the longest took, and gives it back when it likes: only a new height is growth.
    before = max(row["resident"] for row in found["lengths"][:SETTLED])
    growth = (max(row["resident"] for row in late) - before) / before
    apart = _largest([row["apart"] for row in found["lengths"]])
    compiles = f"{found['compiles']} for {len(found['lengths'])} lengths"
    if found["left"]:
        compiles += f"; left to eager: {found['left'][0]}"
    return [
        Bar(f"{name}: compiles", f"at most {COMPILES}", compiles, found["compiles"] <= COMPILES and not found["left"]),
        Bar(
            f"{name}: step, last {len(late)} lengths, litz / eager, geometric mean",
            f"at most {SLOWEST}", figure(mean, ".3f"), mean is not None and mean <= SLOWEST,
        ),
        Bar(
            f"{name}: step, each of the last {len(late)} lengths",
            f"at most {SLOWEST}", f"worst {figure(ratios[slowest], '.3f')} (length {slowest})",
            (ratios[slowest] or 9.9) <= SLOWEST,
        ),
        Bar(
            f"{name}: growth of resident memory over the last {len(late)} lengths",
            f"at most {GROWTH:.0%}", f"{growth:+.1%} of {before / 2**20:.0f} MiB", growth <= GROWTH,
        ),
        Bar(f"{name}: losses apart, for their size", "at most 1e-4", figure(apart, ".1e"), apart <= 1e-4),
    ]  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lengths")
    parser.add_argument("model", nargs="?", choices=MODELS, help="measure this one here, and print one JSON object")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=STEPS, help="of each length")
    options = parser.parse_args(arguments)
    if options.model:
        print(json.dumps(measure(options.model, options.steps)))
        return 0
    print(stand_in_warning(), end="")
    verdicts = []
    for name in options.models.split(","):
        found = in_fresh_process("benchmarks.lengths", name, "--steps", str(options.steps))
        print(report(name, found) + "\n")
        verdicts += bars(name, found)
    print("\n".join(["bars:", *(f"  {bar}" for bar in verdicts)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
