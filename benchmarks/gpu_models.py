"""Models on one GPU, in bfloat16 with random weights: what they are, and all contenders on one of them, in turns.

In: a model, a mode ("inference", "training", or "one": a single sequence of 128 tokens, inference) and who takes part.
Out: for each contender the first call, the step, the peak of memory and the error against float64.

`small=True` is for trying this out where there is no GPU.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from benchmarks.process import describe, litz_backend

MODELS = ("bert", "gpt2", "llama", "vit", "resnet", "convnext")
OF_IMAGES = ("vit", "resnet", "convnext")
CONVOLUTIONS = ("resnet", "convnext")
MASKED = ("bert", "vit")  # for which transformers makes a mask that hides nothing
MODES = ("inference", "training", "one")
_CLASSES = 1000  # of images. With two, the gradient of a bias is two numbers, and its largest error a matter of luck
NO_MASK = "inductor, no mask"
ROUNDS, STEPS = 7, 3
GRADIENTS = 6  # that are compared, spread over the model
_ROWS_IN_DOUBLE = 4  # that go through the model in float64 at a time
_NOTHING = 1e-9
_AT_ONCE = 1 << 26  # numbers that are compared

Inputs = dict[str, Any]


def rows() -> list[str]:
    """Every model in every mode there is."""
    return [f"{model}, {mode}" for model in MODELS for mode in MODES if mode != "one" or model not in OF_IMAGES]


# -- models -----------------------------------------------------------------------------------------
def make(name: str, mode: str, device: str, small: bool = False) -> tuple[torch.nn.Module, Inputs]:
    """The model and its arguments, in bfloat16 and, where it has convolutions, channels last."""
    torch.manual_seed(0)
    training = mode == "training"
    batch, length = (1, 128) if mode == "one" else _SHAPES[name]
    if small:
        batch, length = (min(batch, 2), 32 if name in OF_IMAGES else 16)
    with torch.device(device):
        model, vocabulary = _model(name, small)
        if vocabulary is None:
            inputs: Inputs = {"pixel_values": torch.randn(batch, 3, length, length).bfloat16()}
        else:
            inputs = {"input_ids": torch.randint(0, vocabulary, (batch, length))}
        if training:
            inputs["labels"] = inputs.get("input_ids", torch.arange(batch) % 2)
    model = model.bfloat16().train(training)
    for module in model.modules():  # the same numbers from all
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if name in CONVOLUTIONS:
        model = model.to(memory_format=torch.channels_last)
        inputs["pixel_values"] = inputs["pixel_values"].to(memory_format=torch.channels_last)
    return model, inputs


# Sequences and tokens, or images and their width.
_SHAPES = {
    "bert": (32, 512), "gpt2": (16, 1024), "llama": (8, 1024), "vit": (64, 224), "resnet": (64, 224),
    "convnext": (64, 224),
}  # fmt: skip


def _model(name: str, small: bool) -> tuple[torch.nn.Module, int | None]:
    """And how many words it knows, if it is one of language."""
    import transformers as hf

    few = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64} if small else {}
    if name == "bert":
        config = hf.BertConfig(**few, **({"intermediate_size": 64} if small else {}))
        return hf.BertForMaskedLM(config), config.vocab_size
    if name == "gpt2":
        config = hf.GPT2Config(use_cache=False, **({"n_embd": 32, "n_layer": 2, "n_head": 2} if small else {}))
        return hf.GPT2LMHeadModel(config), config.vocab_size
    if name == "llama":
        large = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "vocab_size": 32000}
        config = hf.LlamaConfig(intermediate_size=64 if small else 2816, use_cache=False, **(few or large))
        return hf.LlamaForCausalLM(config), config.vocab_size
    if name == "vit":
        few.pop("vocab_size", None)
        config = hf.ViTConfig(**few, **({"intermediate_size": 64, "image_size": 32} if small else {}))
        return hf.ViTForImageClassification(config), None
    if name == "resnet":  # the 50 layers of it, unless told otherwise
        short = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1]} if small else {}
        return hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=_CLASSES, **short)), None
    short = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2} if small else {}
    return hf.ConvNextForImageClassification(hf.ConvNextConfig(num_labels=_CLASSES, **short)), None


# -- contenders -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Contender:
    """How the model is compiled, and what must hold while it runs."""

    name: str
    compiled: Callable[[torch.nn.Module], Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


def contenders(name: str, mode: str, inductor: bool) -> list[Contender]:
    """Who takes part: Litz's first call comes first, so that what all compilers share in a process is never in its
    favour."""
    how = {"mode": "reduce-overhead"} if mode == "one" else {}
    found = [
        Contender("eager", lambda model: model),
        Contender("litz", lambda model: torch.compile(model, backend=litz_backend(), **how)),
    ]
    if inductor:
        found.append(Contender("inductor", lambda model: torch.compile(model, backend="inductor", **how)))
    if inductor and name in MASKED and mode != "one":
        found.append(Contender(NO_MASK, lambda model: torch.compile(model, backend=_inductor), without_masks))
    return found


def _inductor(graph_module: Any, example_inputs: Any) -> Any:
    """`inductor` under another name: Dynamo takes what it has captured for one backend for that one alone."""
    from torch._dynamo import lookup_backend

    return lookup_backend("inductor")(graph_module, example_inputs)


@contextmanager
def without_masks() -> Iterator[None]:
    """Attention is not told the mask, of models that would be told one that hides nothing."""
    attention = torch.nn.functional.scaled_dot_product_attention

    def unmasked(query: Any, key: Any, value: Any, attn_mask: Any = None, **how: Any) -> Any:
        return attention(query, key, value, **how)

    with mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", unmasked):
        yield


# -- steps ------------------------------------------------------------------------------------------
def step_of(model: torch.nn.Module, inputs: Inputs, mode: str) -> Callable[[Any], Any]:
    """One step of a contender: its logits, or the loss with the gradients in the parameters."""

    def step(run: Any) -> Any:
        if mode != "training":
            with torch.no_grad():
                return run(**inputs).logits
        model.zero_grad(set_to_none=True)
        loss = run(**inputs).loss
        loss.backward()
        return loss.detach()

    return step


def measure_model(
    name: str, mode: str, taking_part: Sequence[Contender], device: str = "cuda", small: bool = False
) -> dict[str, Any]:
    """All contenders on one model, in turns. One that fails has the reason in place of its figures."""
    model, inputs = make(name, mode, device, small)
    step = step_of(model, inputs, mode)
    ours = _Shared(_begin_dynamo(device), _allocated(device))
    found: dict[str, Any] = {}
    runs: dict[str, tuple[Any, Contender]] = {}
    for contender in taking_part:
        try:
            with contender.around():
                found[contender.name], runs[contender.name] = _begin(contender, model, step, ours, device)
        except Exception as error:
            found[contender.name] = {"failed": describe(error)[:300]}
        if contender.name == "litz":
            found["litz"] |= what_litz_did()
    if mode != "one":
        for contender_name, errors in _errors(model, inputs, mode, step, runs).items():
            found[contender_name]["errors"] = errors
    times: dict[str, list[float]] = {c: [] for c in runs}
    for _ in range(2 if small else ROUNDS):
        for contender_name, (run, contender) in runs.items():
            with contender.around():
                times[contender_name].append(milliseconds(lambda run=run: step(run), STEPS, device))
    for contender_name, taken in times.items():
        found[contender_name] |= {"best": min(taken), "median": statistics.median(taken)}
    return found


@dataclass(frozen=True)
class _Shared:
    """What each contender would have in a process of its own, and has from another in this one."""

    seconds: float  # until Dynamo is there
    memory: int  # bytes of the model and its arguments


def _begin_dynamo(device: str) -> float:
    """Seconds until Dynamo has compiled anything at all."""
    start = time.perf_counter()
    torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1, device=device))
    return time.perf_counter() - start


def _begin(
    contender: Contender, model: torch.nn.Module, step: Callable[[Any], Any], ours: _Shared, device: str
) -> tuple[dict[str, Any], tuple[Any, Contender]]:
    """The first call, and the peak of memory in a later one."""
    compiles = contender.name != "eager"
    if not compiles:
        step(model)  # the libraries' own beginnings
    model.zero_grad(set_to_none=True)
    held = _allocated(device) - ours.memory  # by those before
    run = contender.compiled(model)
    synchronize(device)
    start = time.perf_counter()
    step(run)
    synchronize(device)
    row: dict[str, Any] = {"cold": time.perf_counter() - start + (ours.seconds if compiles else 0.0)}
    step(run)
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step(run)
        synchronize(device)
        row["peak"] = torch.cuda.max_memory_allocated() - held
    return row, (run, contender)


def what_litz_did() -> dict[str, Any]:
    """How much of the model it generated, what it called, and what it left to eager."""
    import litz

    reports = [report for report in litz.reports() if report.built or report.left_to_eager]
    calls: dict[str, int] = {}
    for report in reports:
        for name, count in report.calls:
            calls[name] = calls.get(name, 0) + count
    return {
        "kernels": sum(report.kernels for report in reports),
        "calls": calls,
        "left": sorted({report.left_to_eager for report in reports if report.left_to_eager}),
        "fallbacks": sorted({f"{f.operator}: {f.why}" for report in reports for f in report.fallbacks}),
    }


# -- errors -----------------------------------------------------------------------------------------
def _errors(
    model: torch.nn.Module, inputs: Inputs, mode: str, step: Callable[[Any], Any], runs: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """For eager and Litz, how far each result is from float64's, for the size of that."""
    exact = _in_double(model, inputs, mode)
    largest = max(float(e.abs().max()) for e in exact.values())
    # A gradient that is nothing in truth (of a bias that attention is blind to) is nothing but errors.
    exact = {what: e for what, e in exact.items() if float(e.abs().max()) > _NOTHING * largest}
    found = {}
    for name in ("eager", "litz"):
        if name in runs:
            results = {"logits": step(runs[name][0])}
            if mode == "training":
                results = {"loss": results["logits"], **gradients(model)}
            found[name] = {what: distance(results[what], exact[what]) for what in exact}
            del results
    return found


def _in_double(model: torch.nn.Module, inputs: Inputs, mode: str) -> dict[str, torch.Tensor]:
    """The step in float64, a few rows at a time where each row counts for itself."""
    wide = copy.deepcopy(model).double()
    wide.zero_grad(set_to_none=True)
    given = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
    batch = len(next(iter(given.values())))
    together = any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules()) and mode == "training"
    size = batch if together else _ROWS_IN_DOUBLE
    logits, loss = [], torch.zeros((), dtype=torch.float64)
    for first in range(0, batch, size):
        part = {key: value[first : first + size] for key, value in given.items()}
        if mode != "training":
            with torch.no_grad():
                logits.append(wide(**part).logits)
            continue
        share = len(next(iter(part.values()))) / batch
        scaled = wide(**part).loss * share
        scaled.backward()
        loss = loss + scaled.detach().double().cpu()
    return {"logits": torch.cat(logits)} if mode != "training" else {"loss": loss, **gradients(wide)}


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Of a few parameters, from the first to the last."""
    every = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    chosen = {round(i * (len(every) - 1) / (GRADIENTS - 1)) for i in range(GRADIENTS)}
    return {every[i][0]: every[i][1].detach() for i in sorted(chosen)}  # type: ignore[misc]


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference, as a part of the largest number."""
    pairs = zip(found.reshape(-1).split(_AT_ONCE), exact.to(found.device).reshape(-1).split(_AT_ONCE), strict=True)
    apart = torch.stack([(a.double() - b).abs().max() for a, b in pairs]).max()
    return float(apart / exact.abs().max())


# -- the clock, and memory --------------------------------------------------------------------------
def _allocated(device: str) -> int:
    if device != "cuda":
        return 0
    gc.collect()
    return torch.cuda.memory_allocated()


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(run: Callable[[], Any], times: int, device: str = "cuda") -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(times):
        run()
    synchronize(device)
    return (time.perf_counter() - start) / times * 1e3


__all__ = [
    "CONVOLUTIONS", "MASKED", "MODELS", "MODES", "NO_MASK", "OF_IMAGES", "Contender", "contenders", "distance", "make",
    "measure_model", "rows", "step_of", "without_masks",
]  # fmt: skip
