"""Steps of optimizers, compiled: `torch.compile(optimizer.step)` against eager and `inductor`.

`make bench-optimizers`, or `python -m benchmarks.optimizers [--parameters transformer,resnet] [--optimizers adamw]`
prints the table and the bars; each row is measured in a process of its own, contenders taking turns. A row by itself,
`python -m benchmarks.optimizers resnet adamw`, prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.process import THREADS, describe, in_fresh_process, litz_backend, without_caches
from benchmarks.steps import CONTENDERS, Watch, interleaved
from benchmarks.table import figure, geometric_mean, ratio, render

BAR = 1.0  # times the speed of inductor, for each optimizer over all sets of parameters
COLD_CALLS = 3  # the state of some optimizers appears after the first, and changes what is compiled
ROUNDS, SECONDS = 200, 20.0
Shapes = list[tuple[int, ...]]


def transformer() -> Shapes:
    """Forty parameters of four small layers."""
    d = 256
    layer = [(3 * d, d), (3 * d,), (d, d), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,), (d,), (d,)]
    return [shape for _ in range(4) for shape in layer]


def bert() -> Shapes:
    from transformers import BertConfig, BertModel

    with torch.device("meta"):
        return [tuple(p.shape) for p in BertModel(BertConfig()).parameters()]


def resnet() -> Shapes:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_labels=1000)
    with torch.device("meta"):
        return [tuple(p.shape) for p in ResNetForImageClassification(config).parameters()]


PARAMETERS: dict[str, Callable[[], Shapes]] = {"transformer": transformer, "bert": bert, "resnet": resnet}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
}


def measure(parameters: str, optimizer: str, watch: Watch) -> dict[str, Any]:
    """For each contender its times, the seconds of its first calls, and how far its parameters are from eager's."""
    torch.set_num_threads(THREADS)
    shapes = PARAMETERS[parameters]()
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) * 0.1 for shape in shapes]
    gradients = [torch.randn(shape, generator=generator) * 0.01 for shape in shapes]
    results: dict[str, dict[str, Any]] = {}
    models: dict[str, list[torch.nn.Parameter]] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for contender in CONTENDERS:
        model = [torch.nn.Parameter(value.clone()) for value in start]
        for parameter, gradient in zip(model, gradients, strict=True):
            parameter.grad = gradient  # nobody writes to it
        try:
            call = _step(contender, OPTIMIZERS[optimizer](model))
            begin = time.perf_counter()
            for _ in range(COLD_CALLS):
                call()
            results[contender] = {"cold": time.perf_counter() - begin}
        except Exception as error:
            results[contender] = {"failed": describe(error)}
            continue
        models[contender], calls[contender] = model, call
    for contender, model in models.items():
        results[contender]["difference"] = _difference(model, models["eager"])
    for contender, seconds in interleaved(calls, watch).items():
        results[contender]["best_ms"] = min(seconds) * 1e3
        results[contender]["median_ms"] = statistics.median(seconds) * 1e3
        results[contender]["rounds"] = len(seconds)
    return {**results, "count": len(shapes), "elements": sum(t.numel() for t in start)}


def _step(contender: str, optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    if contender == "eager":
        return optimizer.step
    torch._dynamo.reset()  # what was compiled for another contender is kept by the callable it was compiled into
    backend = litz_backend() if contender == "litz" else contender
    return torch.compile(lambda: optimizer.step(), backend=backend)


def _difference(found: list[torch.nn.Parameter], wanted: list[torch.nn.Parameter]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimizers")
    parser.add_argument("row", nargs="*", help="parameters and optimizer, to measure that row in this process")
    parser.add_argument("--parameters", default=",".join(PARAMETERS))
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    options = parser.parse_args(arguments)
    if options.row:
        parameters, optimizer = options.row
        print(json.dumps(measure(parameters, optimizer, Watch(ROUNDS, SECONDS))))
        return 0
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for parameters in options.parameters.split(","):
        for optimizer in options.optimizers.split(","):
            print(f"{parameters} {optimizer} …", file=sys.stderr, flush=True)
            environment = without_caches()
            row = in_fresh_process("benchmarks.optimizers", parameters, optimizer, environment=environment)
            shutil.rmtree(environment["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)
            found[parameters, optimizer] = row
    print(report(found))
    print("\n".join(["", *bars(found, options.optimizers.split(","))]))
    return 0


def report(found: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    header = ["parameters", "optimizer", "eager ms", "inductor", "litz", "× eager", "× inductor", "(medians)"]
    header += ["cold inductor s", "cold litz s", "difference"]
    rows = []
    for (parameters, optimizer), row in found.items():
        best, median = (
            {name: row.get(name, {}).get(f"{kind}_ms") for name in CONTENDERS} for kind in ("best", "median")
        )
        cold = {name: row.get(name, {}).get("cold") for name in CONTENDERS}
        rows.append(
            [
                f"{parameters} ({row.get('count', '-')})",
                optimizer,
                *(figure(best[name], ".3f") for name in CONTENDERS),
                figure(ratio(best["eager"], best["litz"])),
                figure(ratio(best["inductor"], best["litz"])),
                figure(ratio(median["inductor"], median["litz"])),
                *(figure(cold[name], ".1f") for name in ("inductor", "litz")),
                figure(row.get("litz", {}).get("difference"), ".0e"),
            ]
        )
    failures = [
        f"{parameters} {optimizer} {name}: {why}"
        for (parameters, optimizer), row in found.items()
        for name, why in [
            ("process", row.get("failed")),
            *((name, row.get(name, {}).get("failed")) for name in CONTENDERS),
        ]
        if why
    ]
    return "\n".join([render(header, rows), *failures])


def bars(found: Mapping[tuple[str, str], Mapping[str, Any]], optimizers: list[str]) -> list[str]:
    lines = []
    for optimizer in optimizers:
        ratios = [
            ratio(row.get("inductor", {}).get("best_ms"), row.get("litz", {}).get("best_ms"))
            for (_, name), row in found.items()
            if name == optimizer
        ]
        mean = geometric_mean(ratios)
        verdict = "met" if mean is not None and mean >= BAR else "MISSED"
        lines.append(f"{optimizer}: {figure(mean)} × inductor (bar: at least {BAR:.2f}): {verdict}")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
