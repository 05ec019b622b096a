"""How the time of each stage grows with the program: families of programs at n and at 4n.

`python -m benchmarks.scaling [FAMILY…]` prints a table a family, one for inference and one for training: seconds
of each stage at n and at 4n, and their ratio; `whole` is the first call of the compiled function, `dynamo` what of it
passed outside the backend and the backward, `other` what no stage has, and `processor` the time that all threads of
the process ran, which says more than `whole` where the machine has other work. The bar: at most 5 times the time for
4 times the program, and a chain of 4,000 pointwise nodes in under 12 seconds. Stages of less than a tenth of a second
at 4n, and Dynamo's own work, are left out of the verdict. Each measurement runs in a process of its own.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.process import THREADS, in_fresh_process, litz_backend, without_caches
from benchmarks.table import render

GROWTH = 4
BAR = 5.0
WORTH_JUDGING = 0.1  # seconds at 4n


class Program(NamedTuple):
    function: Callable[..., Any]
    inputs: tuple[Any, ...]


class Family(NamedTuple):
    build: Callable[[int], Program]
    least: int  # n
    modes: tuple[str, ...] = ("inference", "training")


def chain(n: int) -> Program:
    """Pointwise nodes, each reading the one before."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for i in range(n // 2):
            x = x.sin() + 0.1 * i
        return x

    return Program(function, (torch.randn(64, requires_grad=True),))


def perceptron(n: int) -> Program:
    """Layers of a multilayer perceptron."""
    layers = [layer for _ in range(n) for layer in (nn.Linear(32, 32), nn.GELU())]
    return Program(nn.Sequential(*layers), (torch.randn(8, 32, requires_grad=True),))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.mix(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


def transformer(n: int) -> Program:
    """Layers of a decoder."""
    return Program(nn.Sequential(*(Block(64, 4) for _ in range(n))), (torch.randn(2, 16, 64, requires_grad=True),))


class Dense(nn.Module):
    """Each layer reads all that came before it, in blocks of 16 layers as such nets have."""

    def __init__(self, layers: int, growth: int = 8):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(growth * (1 + i % 16), growth) for i in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = [x]
        for i, layer in enumerate(self.layers):
            made = torch.relu(layer(torch.cat(seen, 1)))
            seen = [made] if i % 16 == 15 else [*seen, made]
        return seen[-1]


def dense(n: int) -> Program:
    """Layers of a DenseNet."""
    return Program(Dense(n), (torch.randn(16, 8, requires_grad=True),))


def branches(n: int) -> Program:
    """Small parallel branches, each of four nodes, from one input to one sum."""
    weights = [torch.randn(64, requires_grad=True) for _ in range(n // 4)]

    def function(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        return [torch.tanh(x * w + 1.0) * w for w in weights]

    return Program(function, (torch.randn(64, requires_grad=True), *weights))


def optimizer(n: int) -> Program:
    """AdamW over n parameters."""
    parameters = [nn.Parameter(torch.randn(16 + 4 * (i % 5), 8)) for i in range(n)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    adam = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
    return Program(adam.step, ())


def one_read_by_all(n: int) -> Program:
    """One value read by n nodes whose results are all kept."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.exp()
        return [y * float(i) for i in range(n)]

    return Program(function, (torch.randn(2048, requires_grad=True),))


def wide_cat(n: int) -> Program:
    """One cat of n pieces, each computed."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * float(i) for i in range(n)])

    return Program(function, (torch.randn(64, requires_grad=True),))


def woven(n: int) -> Program:
    """A random graph of n nodes, each reading two of the last twenty."""
    draw = random.Random(0)
    reads = [(draw.randrange(max(0, i - 20), i + 1), draw.randrange(max(0, i - 20), i + 1)) for i in range(n // 2)]

    def function(x: torch.Tensor) -> torch.Tensor:
        made = [x]
        for a, b in reads:
            made.append(torch.sin(made[a]) * made[b])
        return made[-1] + sum(made[-20:])

    return Program(function, (torch.randn(64, requires_grad=True),))


def reductions(n: int) -> Program:
    """Softmaxes and norms in a row."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n // 2):
            x = F.layer_norm(x + torch.softmax(x, -1), (64,))
        return x

    return Program(function, (torch.randn(8, 64, requires_grad=True),))


FAMILIES: dict[str, Family] = {
    "chain": Family(chain, 1000),
    "perceptron": Family(perceptron, 75),
    "transformer": Family(transformer, 12),
    "dense": Family(dense, 64),
    "branches": Family(branches, 500),
    "optimizer": Family(optimizer, 125, ("inference",)),
    "one_read_by_all": Family(one_read_by_all, 500),
    "wide_cat": Family(wide_cat, 250),
    "woven": Family(woven, 2500, ("inference",)),
    "reductions": Family(reductions, 100),
}


def measure(family: str, n: int, training: bool) -> dict[str, Any]:
    """Seconds of the first call in this process, and of each stage in it."""
    import litz

    torch.set_num_threads(THREADS)
    # Dynamo recurses along chains when it walks a graph's source; thousands of nodes need room.
    sys.setrecursionlimit(100_000)
    program = FAMILIES[family].build(n)
    backend, inside = torch._dynamo.lookup_backend(litz_backend()), 0.0

    def timed(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        nonlocal inside
        begun = time.perf_counter()
        made = backend(graph, inputs)
        inside += time.perf_counter() - begun
        return made

    compiled = torch.compile(program.function, backend=timed)
    with torch.enable_grad() if training else torch.no_grad():
        litz.compile(lambda x: (x * 2).sum())(torch.randn(3))  # what a process loads once
        torch._dynamo.reset()
        start, ran = time.perf_counter(), time.process_time()
        result = compiled(*program.inputs)
        dynamo = time.perf_counter() - start - inside
        if training:
            results = [result] if isinstance(result, torch.Tensor) else result
            torch.autograd.backward(results, [torch.ones_like(r) for r in results])
        whole, ran = time.perf_counter() - start, time.process_time() - ran
    report = litz.last_report()
    if report is None:
        return {"failed": "nothing was compiled"}
    stages = {**dict(report.timings), "dynamo": dynamo}
    stages |= {"other": whole - sum(stages.values()), "whole": whole, "processor": ran}
    return {"kernels": report.kernels, "stages": stages}


def compare(family: str, mode: str) -> None:
    n = FAMILIES[family].least
    found = [
        in_fresh_process("benchmarks.scaling", "--measure", family, str(size), mode, environment=without_caches())
        for size in (n, GROWTH * n)
    ]
    failed = [f["failed"] for f in found if "failed" in f]
    if failed:
        print(f"{family}, {mode}: failed: {failed[0]}\n")
        return
    rows, worst = [], ("", 0.0)
    for stage in dict.fromkeys((*found[0]["stages"], *found[1]["stages"])):
        small, large = (one["stages"].get(stage, 0.0) for one in found)
        growth = large / small if small else float("inf")
        rows.append((stage, f"{small:.3f}", f"{large:.3f}", f"{growth:.1f}"))
        if stage != "dynamo" and large >= WORTH_JUDGING and growth > worst[1]:
            worst = (stage, growth)
    rows.append(("kernels", *(str(one["kernels"]) for one in found), ""))
    print(render((f"{family}, {mode}", f"n = {n}", str(GROWTH * n), "ratio"), rows))
    verdict = "within" if worst[1] <= BAR else "OVER"
    print(f"steepest: {worst[0] or 'none'} {worst[1]:.1f}, {verdict} {BAR:.0f}\n", flush=True)


def main(arguments: list[str]) -> None:
    unknown = set(arguments) - set(FAMILIES)
    if unknown:
        raise SystemExit(f"no family {min(unknown)!r}; there are {', '.join(FAMILIES)}")
    for family in arguments or FAMILIES:
        for mode in FAMILIES[family].modes:
            compare(family, mode)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "training")))
    else:
        main(sys.argv[1:])
