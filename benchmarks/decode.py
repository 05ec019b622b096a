"""Tokens one by one: a Llama with a static key-value cache, batch 1, at 64 positions; eager, `inductor` and Litz.

`make bench-decode`, or `python -m benchmarks.decode [--types float32,bfloat16,int8] [--only steps|generate]`. Each type
in a process of its own, contenders taking turns token by token. A token's products have one row, so all weights but the
embedding's are read for it: beside the time stands how many bytes of them a second that makes, as a share of what this
machine reads in the same turns. Then `generate()` of transformers with static and with growing caches. Prints tables
and the bars, and keeps the rows in `benchmarks/decode.json`. With `--threads 1` the processor's time counts, and not
the clock's: what other processes do then hardly shows.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.bars import Bar, worst
from benchmarks.process import ROOT, THREADS, describe, in_fresh_process, litz_backend, stand_in_warning, without_caches
from benchmarks.table import figure, ratio, render

OUTPUT = ROOT / "benchmarks" / "decode.json"
TYPES = ("float32", "bfloat16", "int8")
CONTENDERS = ("eager", "inductor", "litz", "litz frozen")
POSITIONS, PROMPT, ROOM = 64, 16, 256
CACHES = ("static", "dynamic")
SPEED, SHARE, COMPILES = 1.0, 0.85, 2
BLOCK = 1 << 28  # bytes, far more than any cache holds
Results = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.one:
        part, kind = options.one.split(",")
        torch.set_num_threads(options.threads)
        clock = time.process_time if options.threads == 1 else time.perf_counter
        print(json.dumps(steps(kind, clock) if part == "steps" else generated(kind, clock)))
        return 0
    path = Path(options.output)
    found: Results = json.loads(path.read_text()) if path.exists() else {}
    found = {"steps": {}, "generate": {}} | found
    if not options.report:
        for part in [options.only] if options.only else ("steps", "generate"):
            for kind in options.types.split(","):
                print(f"… {part}, {kind}", file=sys.stderr, flush=True)
                told = ("--one", f"{part},{kind}", "--threads", str(options.threads))
                environment = {**without_caches(), "OMP_NUM_THREADS": str(options.threads)}
                found[part][kind] = in_fresh_process("benchmarks.decode", *told, environment=environment)
                found[part][kind]["threads"] = options.threads
                path.write_text(json.dumps(found, indent=1) + "\n")
    print(stand_in_warning() + report(found), flush=True)
    return 0


# -- measuring --------------------------------------------------------------------------------------
def llama(kind: str) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, vocab_size=8192,
        max_position_embeddings=1024,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    if kind != "int8":
        return model.to(getattr(torch, kind))
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = model.to(torch.bfloat16)
    quantize_(model, Int8WeightOnlyConfig())
    return model


def steps(kind: str, clock: Callable[[], float]) -> Results:
    """Milliseconds a token of each contender, what it compiled, and how far its logits are from eager's."""
    results: Results = {who: {} for who in CONTENDERS}
    model = llama(kind)
    results["weights"] = _bytes_read(model)
    prompt = torch.randint(0, 8192, (1, PROMPT))
    seen: dict[str, list[torch.Tensor]] = {}
    with torch.no_grad():
        decoders: dict[str, _Decoder] = {}
        for who in CONTENDERS:
            try:
                decoder = _Decoder(who, model, prompt)
                seen[who] = [decoder.step().float() for _ in range(POSITIONS)]
                results[who]["compiles"] = decoder.compiles()
                decoders[who] = decoder
            except Exception as error:
                results[who] = {"failed": describe(error)}
        times, reads = _in_turns(decoders, _readers(), clock)
    for who, seconds in times.items():
        results[who] |= {"best_ms": min(seconds) * 1e3, "median_ms": statistics.median(seconds) * 1e3}
        scale = torch.stack(seen["eager"]).abs().max()
        apart = (torch.stack(seen[who]) - torch.stack(seen["eager"])).abs().max() / scale
        results[who]["apart"] = apart.item()
    results["bytes_per_second"] = max(BLOCK / min(seconds) for seconds in reads.values())
    return results


class _Decoder:
    """A model with a cache of its own, after the prompt. A step takes the same tokens whoever decodes."""

    def __init__(self, who: str, model: torch.nn.Module, prompt: torch.Tensor):
        from transformers import StaticCache

        self.model, self.prompt = model, prompt
        self.cache = StaticCache(config=model.config, max_cache_len=ROOM)
        self.tokens = torch.randint(0, 8192, (POSITIONS, 1, 1), generator=torch.Generator().manual_seed(1))
        self.position = POSITIONS
        torch._dynamo.utils.counters.clear()
        self._call: Callable[..., Any] = copy.copy(model) if who == "eager" else _compiled(who, model)
        self._begin()

    def _begin(self) -> None:
        """The prompt, by eager: what is compiled is the step."""
        self.cache.reset()
        self.model(input_ids=self.prompt, past_key_values=self.cache)
        self.position = 0

    def step(self) -> torch.Tensor:
        token = self.tokens[self.position]
        self.position += 1
        return self._call(input_ids=token, past_key_values=self.cache).logits

    def ready(self) -> None:
        if self.position == POSITIONS:
            self._begin()

    @staticmethod
    def compiles() -> int:
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def _compiled(who: str, model: torch.nn.Module) -> Callable[..., Any]:
    """By itself: `torch.compile` keeps what it compiled with the code, which all contenders share."""
    function = type(model).forward
    own = type(function)(
        function.__code__.replace(co_name=f"forward_{who.replace(' ', '_')}"),
        function.__globals__, function.__name__, function.__defaults__, function.__closure__,
    )  # fmt: skip
    own.__kwdefaults__ = function.__kwdefaults__
    options = {"freeze": True} if who == "litz frozen" else None
    backend = "inductor" if who == "inductor" else litz_backend()
    return torch.compile(own.__get__(model), backend=backend, options=options)


def _bytes_read(model: torch.nn.Module) -> int:
    """Of weights, for one token: all but the table of embeddings, of which it is a row."""
    table = model.get_input_embeddings().weight
    return sum(_bytes_of(p) for p in model.parameters() if p is not table)


def _bytes_of(weight: Any) -> int:
    """Of a tensor, or of those that it is made of."""
    if hasattr(weight, "__tensor_flatten__"):
        return sum(_bytes_of(getattr(weight, name)) for name in weight.__tensor_flatten__()[0])
    return weight.nbytes


def _readers() -> dict[str, Callable[[], Any]]:
    """Ways to read a block of memory once, of which the quickest counts."""
    block = torch.ones(BLOCK // 4)
    compiled = torch.compile(lambda x: x.amax(), backend=litz_backend())
    return {
        "sum": block.sum,
        "maximum": block.amax,
        "dot": lambda: torch.dot(block, block),
        "litz": lambda: compiled(block),
    }


def _in_turns(
    decoders: Mapping[str, _Decoder], readers: Mapping[str, Callable[[], Any]], clock: Callable[[], float]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    times: dict[str, list[float]] = {who: [] for who in decoders}
    reads: dict[str, list[float]] = {name: [] for name in readers}
    order = list(decoders)
    for turn in range(2 * POSITIONS):
        for who in order:
            decoders[who].ready()
            start = clock()
            decoders[who].step()
            times[who].append(clock() - start)
        order.append(order.pop(0))
        if turn % 8 == 0:
            for name, read in readers.items():
                start = clock()
                read()
                reads[name].append(clock() - start)
    return times, reads


def generated(kind: str, clock: Callable[[], float]) -> Results:
    """Tokens a second of `generate()`, the second time of the same lengths, and whether they are eager's."""
    from transformers import GenerationConfig

    model = llama(kind)
    ids = torch.randint(0, 8192, (1, PROMPT), generator=torch.Generator().manual_seed(2))
    results: Results = {}
    plain = type(model).forward.__get__(model)
    for cache in CACHES:
        config = GenerationConfig(
            max_new_tokens=POSITIONS, min_new_tokens=POSITIONS, do_sample=False, pad_token_id=0, disable_compile=True,
            cache_implementation="static" if cache == "static" else None,
        )  # fmt: skip
        results[cache] = {}
        wanted = None
        for who in ("eager", "inductor", "litz"):
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            model.forward = plain if who == "eager" else _compiled(who, model)
            try:
                with torch.no_grad():
                    seconds = []
                    for _ in range(3):
                        start = clock()
                        tokens = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
                        seconds.append(clock() - start)
            except Exception as error:
                results[cache][who] = {"failed": describe(error)}
                continue
            wanted = tokens if wanted is None else wanted
            results[cache][who] = {
                "tokens_per_second": POSITIONS / min(seconds[1:]), "first_seconds": seconds[0],
                "compiles": _Decoder.compiles(), "same": (tokens == wanted).float().mean().item(),
            }  # fmt: skip
    return results


# -- what was found ---------------------------------------------------------------------------------
def best(row: Mapping[str, Any]) -> float | None:
    """Litz's milliseconds a token, frozen or not."""
    mine = [row[who]["best_ms"] for who in ("litz", "litz frozen") if "best_ms" in row.get(who, {})]
    return min(mine, default=None)


def speed(row: Mapping[str, Any]) -> float | None:
    return ratio(row.get("inductor", {}).get("best_ms"), best(row))


def share(row: Mapping[str, Any], milliseconds: float | None) -> float | None:
    """Bytes of weights read a second, of what the machine reads."""
    if milliseconds is None or "bytes_per_second" not in row:
        return None
    return row["weights"] / (milliseconds / 1e3) / row["bytes_per_second"]


def bars(found: Mapping[str, Any]) -> list[Bar]:
    rows = found.get("steps", {})
    speeds, shares = ({kind: f(row) for kind, row in rows.items()} for f in (speed, lambda row: share(row, best(row))))
    compiled = {
        f"{kind}, {who}": row.get(who, {}).get("compiles")
        for kind, row in rows.items() for who in ("litz", "litz frozen")
    }  # fmt: skip
    return [
        worst("decoding, times as fast as inductor", speeds, f"at least {SPEED}", lambda x: x >= SPEED, min),
        worst("weights read / read bandwidth", shares, f"at least {SHARE}", lambda x: x >= SHARE, min),
        worst(f"graphs over {POSITIONS} positions", compiled, f"at most {COMPILES}", lambda x: x <= COMPILES, max),
    ]


def report(found: Mapping[str, Any]) -> str:
    rows, notes = [], []
    for kind, row in found.get("steps", {}).items():
        if "failed" in row:
            notes.append(f"  {kind}: failed: {row['failed']}")
            continue
        times = [row[who].get("best_ms") for who in CONTENDERS]
        reads = [figure(share(row, time)) for time in times]
        apart = [figure(row[who].get("apart"), ".0e") for who in CONTENDERS]
        rows.append(
            [
                kind,
                *map(figure, times),
                figure(speed(row)),
                *reads,
                figure(row["bytes_per_second"] / 1e9, ".1f"),
                *apart,
            ]
        )
        notes += [f"  {kind}: {who} failed: {row[who]['failed']}" for who in CONTENDERS if "failed" in row[who]]
    head = ["ms a token, best", *CONTENDERS, "inductor/litz", *(f"read: {who}" for who in CONTENDERS), "GB/s"]
    lines = [render([*head, *(f"apart: {who}" for who in CONTENDERS)], rows), *notes]
    rows = []
    for kind, caches in found.get("generate", {}).items():
        notes = [f"  generate, {kind}: failed: {caches['failed']}"] if "failed" in caches else []
        lines += notes
        for cache in CACHES:
            for who, one in caches.get(cache, {}).items():
                text = [one["failed"], "", "", ""] if "failed" in one else [
                    figure(one["tokens_per_second"], ".1f"), figure(one["first_seconds"], ".1f"), str(one["compiles"]),
                    f"{one['same']:.0%}",
                ]  # fmt: skip
                rows.append([f"generate, {kind}, {cache} cache, {who}", *text])
    lines += ["", render(["", "tokens/s", "first, s", "graphs", "eager's tokens"], rows)]
    return "\n".join([*lines, "", "bars:", *(f"  {bar}" for bar in bars(found))])


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.decode")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--only", choices=("steps", "generate"))
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--output", default=str(OUTPUT))
    parser.add_argument("--one", metavar="PART,TYPE", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
