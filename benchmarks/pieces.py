"""Models that Dynamo runs in many pieces: audio codecs, whose layers look at their own padding.

`python -m benchmarks.pieces [encodec dac mimi]` prints the speed of `litz` and `inductor` as multiples of eager's, each
model and contender in a process of its own, since what Dynamo makes of a function is shared by all who call it. Every
process times eager as well, the two taking turns; `--one encodec litz` prints one such measurement as JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.models import tensors
from benchmarks.process import THREADS, in_fresh_process, litz_backend, without_caches
from benchmarks.steps import Watch, error_against, interleaved
from benchmarks.table import figure, ratio, render

BAR = 0.97  # times eager's speed
FIRST_CALLS = 5  # by then Dynamo has met all sizes, and Litz knows which pieces are worth it
ROUNDS, SECONDS = 60, 20.0
Case = tuple[torch.nn.Module, dict[str, Any]]


def encodec() -> Case:
    from transformers import EncodecConfig, EncodecModel

    config = EncodecConfig(num_filters=8, hidden_size=32, codebook_size=64, codebook_dim=32, num_lstm_layers=1)
    audio = torch.randn(1, 1, 6000)
    return EncodecModel(config), {"input_values": audio, "padding_mask": torch.ones_like(audio, dtype=torch.bool)}


def dac() -> Case:
    from transformers import DacConfig, DacModel

    sizes = {"encoder_hidden_size": 16, "decoder_hidden_size": 128, "n_codebooks": 4}
    return DacModel(DacConfig(**sizes, codebook_size=64, codebook_dim=4)), {"input_values": torch.randn(1, 1, 8192)}


def mimi() -> Case:
    from transformers import MimiConfig, MimiModel

    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "num_hidden_layers": 2}
    codebook = {"codebook_size": 64, "codebook_dim": 32, "vector_quantization_hidden_dimension": 32}
    sizes = {"num_filters": 8, "hidden_size": 64, "intermediate_size": 128, "num_quantizers": 4, "upsample_groups": 64}
    return MimiModel(MimiConfig(**heads, **codebook, **sizes)), {"input_values": torch.randn(1, 1, 12000)}


MODELS: dict[str, Callable[[], Case]] = {"encodec": encodec, "dac": dac, "mimi": mimi}


def measure(name: str, contender: str, watch: Watch) -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    model, kwargs = MODELS[name]()
    model.eval()
    compiled = torch.compile(copy.deepcopy(model), backend=litz_backend() if contender == "litz" else contender)
    with torch.no_grad():
        expected = [t.double() for t in tensors(model(**kwargs)) if t.is_floating_point()]
        begin = time.perf_counter()
        for _ in range(FIRST_CALLS):
            found = compiled(**kwargs)
        cold = time.perf_counter() - begin
        error = error_against([t for t in tensors(found) if t.is_floating_point()], expected)
        times = interleaved({"eager": lambda: model(**kwargs), contender: lambda: compiled(**kwargs)}, watch)
    results: dict[str, Any] = {"cold": cold, "error": error}
    for who, seconds in times.items():
        results[who] = {"best_ms": min(seconds) * 1e3, "median_ms": statistics.median(seconds) * 1e3}
    return results


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pieces")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--one", action="store_true", help="model and contender, measured in this process")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(*options.models, Watch(ROUNDS, SECONDS))))
        return 0
    rows, failures = [], []
    for model in options.models:
        row = [model]
        for contender in ("litz", "inductor"):
            environment = without_caches()
            found = in_fresh_process("benchmarks.pieces", "--one", model, contender, environment=environment)
            shutil.rmtree(environment["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)
            if "failed" in found:
                failures.append(f"{model} {contender}: {found['failed']}")
            speed = [
                ratio(found.get("eager", {}).get(kind), found.get(contender, {}).get(kind))
                for kind in ("best_ms", "median_ms")
            ]
            row += [*(figure(s) for s in speed), figure(found.get("cold"), ".1f")]
            if contender == "litz":
                row += [figure(found.get("error"), ".0e"), "met" if speed[0] and speed[0] >= BAR else "MISSED"]
        rows.append(row)
    header = ["model", "litz × eager", "(medians)", "cold s", "error", f"bar {BAR}"]
    print(render([*header, "inductor × eager", "(medians)", "cold s"], rows))
    print("\n".join(failures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
