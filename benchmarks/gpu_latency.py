"""One short sequence on one GPU, where starting the work takes longer than the work: Litz against eager and `inductor`.

`python -m benchmarks.gpu_latency` measures BERT, GPT-2 and a Llama at batch 1 and 128 tokens, in bfloat16 with random
weights, each model in a process of its own and all contenders in turns: milliseconds a step one after the other, and of
a step that is waited for; microseconds of the host until a step is started; the largest difference from eager; and
whether a result that is kept is still the same after later calls. `--models gpt2`, `--modes inference,training`,
`--without-inductor` for a part; `--output F` writes what was found.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.process import describe, in_fresh_process, without_caches
from benchmarks.table import figure, geometric_mean, render

TOKENS, ROUNDS, STEPS, WARM = 128, 15, 10, 16
CONTENDERS: dict[str, dict[str, str]] = {
    "inductor": {"backend": "inductor"},
    "inductor, reduce-overhead": {"backend": "inductor", "mode": "reduce-overhead"},
    "litz, no graphs": {"backend": "litz", "mode": "max-autotune-no-cudagraphs"},
    "litz": {"backend": "litz"},
    "litz, reduce-overhead": {"backend": "litz", "mode": "reduce-overhead"},
}
BAR = "inductor, reduce-overhead"


def _model(name: str) -> Any:
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
    )

    # Without dropout: the same numbers from all.
    if name == "bert":
        return BertForMaskedLM(BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config(use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    llama = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, vocab_size=32000,
        use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(llama)


def measure(name: str, mode: str, contenders: list[str]) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    training = mode == "training"
    model = _model(name).cuda().bfloat16().train(training)
    vocabulary = model.config.vocab_size
    first, second = (torch.randint(0, vocabulary, (1, TOKENS), device="cuda") for _ in range(2))

    def step(run: Any, ids: Any) -> Any:
        if not training:
            with torch.no_grad():
                return run(input_ids=ids).logits
        model.zero_grad(set_to_none=True)
        found = run(input_ids=ids, labels=ids)
        found.loss.backward()
        return found.loss.detach()

    wanted = step(model, first).float()
    found: dict[str, Any] = {"largest": float(wanted.abs().max())}
    runs: dict[str, Any] = {"eager": model}
    for contender in contenders:
        try:
            runs[contender] = torch.compile(model, **CONTENDERS[contender])
            start = time.perf_counter()
            got = step(runs[contender], first)
            torch.cuda.synchronize()
            cold = time.perf_counter() - start
            for _ in range(WARM):  # by then everyone has decided what to do
                got = step(runs[contender], first)
            apart = float((got.float() - wanted).abs().max())
            found[contender] = {"cold": cold, "apart": apart, "kept": False}
            for _ in range(3):
                step(runs[contender], second)
            with suppress(RuntimeError):  # "overwritten by a subsequent run"
                found[contender]["kept"] = float((got.float() - wanted).abs().max()) == apart
            if contender.startswith("litz"):
                found[contender]["graphs"] = _told()
        except Exception as error:
            runs.pop(contender, None)
            found[contender] = {"failed": describe(error)}
            print(f"{name}, {contender}: {describe(error)}", file=sys.stderr)
    found["eager"] = {"apart": 0.0, "kept": True}
    times: dict[str, list[tuple[float, float, float]]] = {contender: [] for contender in runs}
    for _ in range(ROUNDS):
        for contender, run in runs.items():
            times[contender].append(_times(lambda run=run: step(run, first)))
    for contender, rows in times.items():
        for what, column in zip(("step", "waited", "host"), zip(*rows, strict=True), strict=True):
            found[contender][what] = statistics.median(column)
    return found


def _told() -> list[str]:
    import litz

    return [line for report in litz.reports() for line in report.graphs]


def _times(run: Callable[[], Any]) -> tuple[float, float, float]:
    """Milliseconds of a step among others, of one that is waited for; and of the host, until one is started."""
    import torch

    def seconds(times: int, waits: bool) -> tuple[float, float]:
        torch.cuda.synchronize()
        start, started = time.perf_counter(), 0.0
        for _ in range(times):
            begun = time.perf_counter()
            run()
            started += time.perf_counter() - begun
            if waits:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / times, started / times

    run()
    together, _ = seconds(STEPS, False)
    alone, host = seconds(STEPS, True)
    return together * 1e3, alone * 1e3, host * 1e3


def report(found: dict[str, Any]) -> str:
    text = ""
    for key, row in found.items():
        if "failed" in row:
            text += f"{key}: {row['failed']}\n\n"
            continue
        bar = row.get(BAR, {}).get("step")
        lines = []
        for contender in ("eager", *CONTENDERS):
            one = row.get(contender)
            if one is None or "failed" in one:
                continue
            speed = bar / one["step"] if bar else None
            lines.append([
                contender, *(figure(one.get(what), ".3f") for what in ("step", "waited")),
                figure(one["host"] * 1e3, ".0f"), figure(speed), figure(one.get("cold"), ".1f"),
                figure(one["apart"], ".3g"), "yes" if one["kept"] else "no",
            ])  # fmt: skip
        head = [key, "ms a step", "waited for", "host µs", f"of {BAR}", "cold s", "from eager", "results kept"]
        text += render(head, lines) + f"\nlargest result {row['largest']:.3g}\n"
        for contender in CONTENDERS:
            for line in row.get(contender, {}).get("graphs", [])[-3:]:
                text += f"  {contender}: {line}\n"
        text += "\n"
    for contender in ("litz", "litz, reduce-overhead"):
        speeds = [
            row[BAR]["step"] / row[contender]["step"]
            for row in found.values()
            if "step" in row.get(BAR, {}) and "step" in row.get(contender, {})
        ]
        text += f"{contender} against {BAR}: {figure(geometric_mean(speeds))} (bar 1.0 on each)\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="bert,gpt2,llama")
    parser.add_argument("--modes", default="inference")
    parser.add_argument("--without-inductor", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    contenders = [c for c in CONTENDERS if not (options.without_inductor and c.startswith("inductor"))]
    if options.worker is not None:
        print(json.dumps(measure(*options.worker.split(":"), contenders)))
        return
    found: dict[str, Any] = {}
    flags = ["--without-inductor"] if options.without_inductor else []
    for model in options.models.split(","):
        for mode in options.modes.split(","):
            found[f"{model}, {mode}"] = row = in_fresh_process(
                "benchmarks.gpu_latency", "--worker", f"{model}:{mode}", *flags, environment=without_caches()
            )
            print(report({f"{model}, {mode}": row}), flush=True)
            if options.output is not None:
                options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(report(found))


if __name__ == "__main__":
    main()
