"""Inference in int8: models quantised by PyTorch's export (PT2E), Litz frozen against inductor frozen and ONNX Runtime.

`make bench-int8`, or `python -m benchmarks.int8 [--models resnet,bert] [--how static,dynamic]`. Each model in a
process of its own, contenders taking turns in it: the quantised model as it is (the reference), Litz and frozen
inductor on that same model, Litz on the float32 model, and ONNX Runtime with its own static quantisation of the same
export. With `--threads 1` the processor's time counts, and not the clock's. `torchao` quantises; without `onnxruntime`
and `onnxscript` that contender is left out, which the table says.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import MODELS, build, tensors
from benchmarks.process import THREADS, describe, in_fresh_process, litz_backend, stand_in_warning
from benchmarks.steps import Watch, interleaved
from benchmarks.table import figure, ratio, render

PEERS, OWN = 1.0, 1.8  # at least so many times as fast as the better of the peers, and as Litz on float32
CONTENDERS = ("reference", "litz float32", "inductor", "onnxruntime", "litz")
ROUNDS = 15
CALIBRATION = 4  # inputs that ranges are observed over


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.one:
        print(json.dumps(one(options.one, options.how, options.rounds, options.only.split(","), options.threads)))
        return 0
    results = {}
    for how in options.how.split(","):
        for model in options.models.split(","):
            print(f"… {model}, {how}", file=sys.stderr, flush=True)
            told = ("--one", model, "--how", how, "--rounds", str(options.rounds), "--only", options.only)
            results[model, how] = in_fresh_process(
                "benchmarks.int8", *told, "--threads", str(options.threads),
                environment={"OMP_NUM_THREADS": str(options.threads)},
            )  # fmt: skip
    print(stand_in_warning() + report(results))
    return 0


def one(model: str, how: str, rounds: int, only: list[str], threads: int) -> dict[str, Any]:
    """Every contender in this process. Errors are root mean squares, as parts of what quantisation itself changes."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    module, kwargs = build(model)
    found: dict[str, dict[str, Any]] = {}
    with torch.no_grad():
        exact = _first(module(**kwargs))
        quantised = quantise(module, kwargs, how == "dynamic")
        reference = _first(quantised(**kwargs))
        changed = _rms(reference - exact)
        makers: dict[str, Callable[[], Callable[..., Any]]] = {
            "reference": lambda: quantised,
            "litz float32": lambda: _litz(module),
            "inductor": lambda: _inductor(quantised),
            "onnxruntime": lambda: _onnxruntime(module, kwargs, threads),
            "litz": lambda: _litz(quantised),
        }
        calls = {}
        for name in [name for name in CONTENDERS if name in only]:
            if name == "onnxruntime" and how == "dynamic":
                continue
            try:
                run = makers[name]()
                given = _first(run(**kwargs))
                found[name] = {
                    "error": _rms(given - reference) / changed,
                    "same": (given.argmax(-1) == reference.argmax(-1)).float().mean().item(),
                }
                if name == "litz":
                    found[name].update(_products())
                calls[name] = lambda run=run: run(**kwargs)
            except Exception as error:
                found[name] = {"failed": describe(error)}
        for name, seconds in interleaved(calls, Watch(rounds, clock=clock)).items():
            found[name].update(best_ms=min(seconds) * 1e3, median_ms=statistics.median(seconds) * 1e3)
    return found


def quantise(module: torch.nn.Module, kwargs: dict[str, Any], is_dynamic: bool) -> torch.nn.Module:
    """By PT2E, with the quantiser for x86 of inductor's."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    exported = torch.export.export(module, (), kwargs).module(check_guards=False)
    quantiser = x86.X86InductorQuantizer()
    quantiser.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=is_dynamic))
    prepared = prepare_pt2e(exported, quantiser)
    for given in _calibration(kwargs):
        prepared(**given)
    return convert_pt2e(prepared)


def _calibration(kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """The input itself, and others of its kind."""
    generator = torch.Generator().manual_seed(1)

    def another(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.is_floating_point():
            return torch.randn(x.shape, generator=generator)
        return torch.randint(0, int(x.max()) + 1, x.shape, generator=generator)

    return [kwargs] + [{k: another(v) for k, v in kwargs.items()} for _ in range(CALIBRATION - 1)]


def _litz(module: torch.nn.Module) -> Callable[..., Any]:
    return torch.compile(module, backend=litz_backend(), options={"freeze": True})


def _inductor(module: torch.nn.Module) -> Callable[..., Any]:
    import torch._inductor.config as config

    config.freezing = True
    config.cpp.enable_kernel_profile = False
    return torch.compile(module, backend="inductor")


def _onnxruntime(module: torch.nn.Module, kwargs: dict[str, Any], threads: int) -> Callable[..., Any]:
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = iter([{k: v.numpy() for k, v in given.items()} for given in _calibration(kwargs)])

        def get_next(self) -> Any:
            return next(self.rest, None)

    with tempfile.TemporaryDirectory() as folder:
        plain, ready, made = (str(Path(folder) / name) for name in ("plain.onnx", "ready.onnx", "int8.onnx"))
        torch.onnx.export(module, (), plain, kwargs=kwargs, dynamo=True, external_data=False)
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        quantize_static(
            ready, made, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )  # fmt: skip
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(made, settings, providers=["CPUExecutionProvider"])

    def run(**given: torch.Tensor) -> Any:
        return [torch.from_numpy(x) for x in session.run(None, {k: v.numpy() for k, v in given.items()})]

    return run


def _products() -> dict[str, Any]:
    """What Litz made of the quantised model."""
    import litz

    found = litz.last_report()
    if found is None:
        return {}
    fired = {firing.rule: firing.times for firing in found.firings}
    near = sorted({miss.why for miss in found.near_misses if miss.rule == "quantised_product"})
    return {"products": fired.get("quantised_product", 0), "near_misses": near, "kernels": found.kernels}


def _first(outputs: Any) -> torch.Tensor:
    return tensors(outputs)[0].double()


def _rms(x: torch.Tensor) -> float:
    return x.pow(2).mean().sqrt().item()


def report(results: dict[tuple[str, str], dict[str, Any]]) -> str:
    rows, verdicts = [], []
    for (model, how), found in results.items():
        times = {name: found.get(name, {}).get("best_ms") for name in CONTENDERS}
        peers = [best for name in ("inductor", "onnxruntime") if (best := times[name]) is not None]
        gains = [ratio(min(peers, default=None), times["litz"]), ratio(times["litz float32"], times["litz"])]
        own = found.get("litz", {})
        errors = [found.get(name, {}).get("error") for name in ("inductor", "litz")]
        rows.append(
            [
                f"{model} {how}",
                *(figure(times[name]) for name in CONTENDERS),
                *(figure(gain) for gain in gains),
                *(figure(error, ".2f") for error in errors),
                figure(own.get("same"), ".1%"),
                str(own.get("products", "")),
            ]
        )
        for gain, least, what in zip(gains, (PEERS, OWN), ("the better peer", "Litz on float32"), strict=True):
            met = "met" if gain is not None and gain >= least else "MISSED"
            verdicts.append(f"  {met}: {model} {how}, {figure(gain)} times the speed of {what} (at least {least})")
        verdicts += [f"  failed: {model} {how} {c}: {f['failed']}" for c, f in found.items() if "failed" in (f or {})]
        if "failed" in found:
            verdicts.append(f"  failed: {model} {how}: {found['failed']}")
        verdicts += [f"  not recognised: {why}" for why in own.get("near_misses", ())]
    errors_head = ("error: inductor", "error: litz")
    header = [
        "ms, best", *CONTENDERS, "peer/litz", "float32/litz", *errors_head, "same argmax", "products",
    ]  # fmt: skip
    return "\n".join([render(header, rows), "", *verdicts])


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.int8")
    parser.add_argument("--models", default="resnet,bert", help="comma-separated: " + ", ".join(MODELS))
    parser.add_argument("--how", default="static", help="comma-separated: static, dynamic")
    parser.add_argument("--only", default=",".join(CONTENDERS), help="comma-separated contenders")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--one", help="one model, in this process")
    options = parser.parse_args(arguments)
    unknown = [model for model in options.models.split(",") if model not in MODELS]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)} (there are {', '.join(MODELS)})")
    return options


if __name__ == "__main__":
    sys.exit(main())
