"""Steps on one GPU: Litz, eager and `inductor` in turns, in bfloat16 with random weights.

`python -m benchmarks.gpu` measures four models in inference and training, each pair in a process of its own: the first
call with all caches off, the step, the peak of memory, and the largest difference from eager's result; then single
kernels against the copy bandwidth. `--models bert,vit`, `--modes training`, `--only models|kernels` for a part;
`--without-inductor` leaves the longest part out; `--output F` writes what was found (default `benchmarks/gpu.json`).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT, in_fresh_process, without_caches
from benchmarks.table import figure, geometric_mean, render

OUTPUT = ROOT / "benchmarks" / "gpu.json"
ROUNDS, STEPS = 7, 3
RACE = 12  # steps in which Litz may let eager have turns, and which are not counted
BEST_EACH, BEST_MEAN, COLD, PEAK = 1.0, 1.2, 0.3, 1.02


def _models() -> dict[str, Callable[[], tuple[Any, dict[str, Any]]]]:
    import torch
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        ViTConfig,
        ViTForImageClassification,
    )

    def ids(vocabulary: int, *shape: int) -> dict[str, Any]:
        return {"input_ids": torch.randint(0, vocabulary, shape)}

    llama = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, vocab_size=32000,
        use_cache=False,
    )  # fmt: skip
    return {
        "bert": lambda: (BertForMaskedLM(BertConfig()), ids(30522, 32, 512)),
        "gpt2": lambda: (GPT2LMHeadModel(GPT2Config(use_cache=False)), ids(50257, 16, 1024)),
        "llama": lambda: (LlamaForCausalLM(llama), ids(32000, 8, 1024)),
        "vit": lambda: (ViTForImageClassification(ViTConfig()), {"pixel_values": torch.randn(64, 3, 224, 224)}),
    }


def measure_model(name: str, mode: str, contenders: list[str]) -> dict[str, Any]:
    """All contenders on one model, in turns."""
    import torch

    torch.manual_seed(0)
    model, inputs = _models()[name]()
    training = mode == "training"
    model = model.cuda().bfloat16().train(training)
    for module in model.modules():  # the same numbers from all
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    inputs = {k: (v.bfloat16() if v.is_floating_point() else v).cuda() for k, v in inputs.items()}
    if training:
        first = next(iter(inputs.values()))
        inputs["labels"] = inputs.get("input_ids", torch.zeros(len(first), dtype=torch.long, device="cuda"))

    def step(run: Any) -> Any:
        if not training:
            with torch.no_grad():
                return run(**inputs).logits
        model.zero_grad(set_to_none=True)
        loss = run(**inputs).loss
        loss.backward()
        return loss.detach()

    runs = {"eager": model} | {c: torch.compile(model, backend=c) for c in contenders}
    wanted = step(model).float()
    torch.cuda.synchronize()
    found: dict[str, Any] = {c: {} for c in runs}
    for contender, run in runs.items():
        start = time.perf_counter()
        got = step(run)
        torch.cuda.synchronize()
        found[contender]["cold"] = time.perf_counter() - start
        found[contender]["apart"] = float((got.float() - wanted).abs().max())
        del got
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step(run)
        torch.cuda.synchronize()
        found[contender]["peak"] = torch.cuda.max_memory_allocated()
        found[contender]["times"] = []
    found["largest"] = float(wanted.abs().max())
    del wanted
    for _ in range(RACE):
        step(runs["litz"])
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        for contender, run in runs.items():
            found[contender]["times"].append(_milliseconds(lambda run=run: step(run), STEPS))
    for contender in runs:
        times = found[contender].pop("times")
        found[contender] |= {"best": min(times), "median": statistics.median(times)}
    return found


def _milliseconds(run: Callable[[], Any], times: int) -> float:
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times * 1e3


# -- single kernels -----------------------------------------------------------------------------------
def _kernels() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], int, bool]]:
    """A function, its arguments, the bytes it must move, and whether its backward is what is meant."""
    import torch
    from torch.nn import functional as F

    def given(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    x, w = given(8192, 4096), given(4096)
    rows, labels = given(4096, 32000), torch.randint(0, 32000, (4096,), device="cuda")
    ln = lambda x, w: F.dropout(F.gelu(F.layer_norm(x, (4096,), w, w)), 0.1)  # noqa: E731
    rms = lambda x, w: F.rms_norm(x, (4096,), w)  # noqa: E731
    softmax = lambda x: torch.softmax(x, -1)  # noqa: E731
    loss = lambda x, y: F.cross_entropy(x.float(), y)  # noqa: E731
    return {
        "layer norm, gelu, dropout": (ln, (x, w), 2 * x.nbytes, False),
        "rms norm": (rms, (x, w), 2 * x.nbytes, False),
        "softmax": (softmax, (rows,), 2 * rows.nbytes, False),
        "cross entropy": (loss, (rows, labels), rows.nbytes, False),
        "layer norm, gelu, dropout, backward": (ln, (x, w), 3 * x.nbytes, True),
        "rms norm, backward": (rms, (x, w), 3 * x.nbytes, True),
        "softmax, backward": (softmax, (rows,), 3 * rows.nbytes, True),
        "cross entropy, backward": (loss, (rows, labels), 2 * rows.nbytes, True),
    }


def measure_kernels(contenders: list[str]) -> dict[str, Any]:
    """Microseconds of the kernels alone, as the device counts them, and what a copy of as many bytes takes."""
    import torch

    found: dict[str, Any] = {}
    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = _device_microseconds(lambda: target.copy_(source)) / (2 * source.nbytes)
    for name, (function, args, moved, backward) in _kernels().items():
        row: dict[str, float] = {"copy": copy * moved}
        for contender in contenders:
            torch._dynamo.reset()
            run = torch.compile(function, backend=contender) if contender != "eager" else function
            try:
                row[contender] = _kernel_time(run, args, backward)
            except Exception as error:
                print(f"{name}, {contender}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
        found[name] = row
    return found


def _kernel_time(run: Callable[..., Any], args: tuple[Any, ...], backward: bool) -> float:
    import torch

    if not backward:
        with torch.no_grad():
            return _device_microseconds(lambda: run(*args))
    learns = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
    out = run(*learns)
    tangent = torch.randn_like(out)
    wanted = [a for a in learns if a.requires_grad]
    return _device_microseconds(lambda: torch.autograd.grad(out, wanted, tangent, retain_graph=True))


def _device_microseconds(run: Callable[[], Any], times: int = 20) -> float:
    import torch

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(times):
            run()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / times


# -- the whole ----------------------------------------------------------------------------------------
def report(found: dict[str, Any]) -> str:
    lines = []
    for key, row in found.get("models", {}).items():
        if "failed" in row:
            lines.append([key, row["failed"]])
            continue
        best = {c: row[c]["best"] for c in ("eager", "inductor", "litz") if c in row}
        others = [v for c, v in best.items() if c != "litz"]
        row["speed"] = min(others) / best["litz"]
        cold = row["litz"]["cold"] / row["inductor"]["cold"] if "inductor" in row else None
        peak = row["litz"]["peak"] / min(row[c]["peak"] for c in best if c != "litz")
        lines.append([key, *(figure(best.get(c)) for c in ("eager", "inductor", "litz")), figure(row["speed"]),
                      figure(cold), figure(peak), figure(row["litz"]["apart"]), figure(row["largest"])])  # fmt: skip
    text = ""
    if lines:
        head = ["ms a step", "eager", "inductor", "litz", "of the better", "cold", "peak", "from eager", "largest"]
        text = render(head, lines)
        speeds = [row["speed"] for row in found["models"].values() if "speed" in row]
        mean = figure(geometric_mean(speeds))
        text += f"\ngeometric mean of the better: {mean} (bar {BEST_MEAN}; each {BEST_EACH})\n"
    rows = [
        [name, *(figure(row.get(c)) for c in ("copy", "eager", "inductor", "litz")),
         figure(row["copy"] / row["litz"] if "litz" in row else None)]
        for name, row in found.get("kernels", {}).items()
    ]  # fmt: skip
    if rows:
        text += "\n" + render(["microseconds", "copy", "eager", "inductor", "litz", "of the copy"], rows)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="bert,gpt2,llama,vit")
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--only", choices=("models", "kernels"))
    parser.add_argument("--without-inductor", action="store_true")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    contenders = ["litz"] if options.without_inductor else ["litz", "inductor"]
    if options.worker is not None:
        kind, *rest = options.worker.split(":")
        made = measure_kernels(["eager", *contenders]) if kind == "kernels" else measure_model(kind, *rest, contenders)
        print(json.dumps(made))
        return
    found: dict[str, Any] = {"models": {}, "kernels": {}}
    flags = ["--without-inductor"] if options.without_inductor else []
    if options.only != "models":
        found["kernels"] = in_fresh_process(
            "benchmarks.gpu", "--worker", "kernels", *flags, environment=without_caches()
        )
    if options.only != "kernels":
        for model in options.models.split(","):
            for mode in options.modes.split(","):
                row = in_fresh_process(
                    "benchmarks.gpu", "--worker", f"{model}:{mode}", *flags, environment=without_caches()
                )
                found["models"][f"{model}, {mode}"] = row
                print(f"{model}, {mode}: {json.dumps(row)}", flush=True)
                options.output.write_text(json.dumps(found, indent=1) + "\n")
    if "failed" in found["kernels"]:
        print(found.pop("kernels"))
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(report(found))


if __name__ == "__main__":
    main()
