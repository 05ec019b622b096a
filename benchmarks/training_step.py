"""One training step of one model, measured: cold, warm, its errors, its peak memory.

`python -m benchmarks.training_step cold bert litz` (or `peak`) measures one backend, `… steps bert` all of them
taking turns in one process, `… dropout bert` the losses with dropout on; each prints one JSON object. A step is the
loss and its backward; parameters are not updated, so that every step is the same one. The loss is the sum over the
outputs of the mean of their squares.

The models train: batch norms see their batch. Every dropout is 0, so that all contenders compute the same.

A gradient's error is its distance from the float64 one, for the size of that: of the tensor as a whole (root mean
square, as in PyTorch's own accuracy check), and, for information, of its worst element. The `control` is eager once
more with every input moved by one unit in its last place: what it scores is luck. Where a rounding turns a unit of a
ReLU on or off, a few elements are wholly different, and their quotients tell control and contenders apart no more.
For the tensor that a contender gets worst, two figures say what the quotient means: its size for the largest
gradient's, and what eager scores there with every parameter moved by one unit in its last place.
"""

from __future__ import annotations

import copy
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.models import build, tensors
from benchmarks.process import THREADS, describe, litz_backend
from benchmarks.steps import Watch, interleaved
from litz.debug.step import live_bytes

Gradients = dict[str, torch.Tensor]  # and the loss
CONTENDERS = ("eager", "inductor", "litz")
ROUNDS = 9
# A gradient that eager gets exactly right is allowed this many units of its largest element.
FLOOR = 4 * torch.finfo(torch.float32).eps


def model_in_training(name: str, dropout: float = 0.0) -> tuple[torch.nn.Module, dict[str, Any]]:
    module, kwargs = build(name)
    for part in module.modules():
        _set_dropout(part, dropout)
        if isinstance(part, torch.nn.Dropout):
            part.p = dropout
    _set_dropout(module.config, dropout)
    return module.train(), kwargs


def _set_dropout(owner: Any, rate: float) -> None:
    for name, value in list(vars(owner).items()):
        if "drop" in name and isinstance(value, float):
            setattr(owner, name, rate)


def loss_of(module: torch.nn.Module) -> Callable[..., torch.Tensor]:
    def loss(**kwargs: Any) -> torch.Tensor:
        return sum(t.square().mean() for t in tensors(module(**kwargs)) if t.is_floating_point())  # type: ignore[return-value]

    return loss


def compiled(contender: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if contender == "eager":
        return function
    return torch.compile(function, backend=litz_backend() if contender == "litz" else contender)


def step_of(contender: str, module: torch.nn.Module, kwargs: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """A step that leaves gradients in the parameters and returns the loss."""
    loss = compiled(contender, loss_of(module))

    def step() -> torch.Tensor:
        module.zero_grad(set_to_none=True)
        value = loss(**kwargs)
        value.backward()
        return value.detach()

    return step


# -- cold -------------------------------------------------------------------------------------------
def cold(name: str, contender: str) -> dict[str, Any]:
    """Seconds of the first step: forward and backward compiled. `eager` is Dynamo with no compiler behind it."""
    torch.set_num_threads(THREADS)
    module, kwargs = model_in_training(name)
    start = time.perf_counter()
    loss = torch.compile(loss_of(module), backend=litz_backend() if contender == "litz" else contender)
    loss(**kwargs).backward()
    return {"seconds": time.perf_counter() - start}


# -- warm -------------------------------------------------------------------------------------------
def steps(name: str, rounds: int = ROUNDS, contenders: tuple[str, ...] = CONTENDERS) -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    return {**compared(name, Watch(rounds), contenders), "rounds": rounds}


def compared(name: str, watch: Watch, contenders: tuple[str, ...]) -> dict[str, Any]:
    """The contenders' errors and times."""
    module, kwargs = model_in_training(name)
    state = copy.deepcopy(module.state_dict())
    exact = _gradients(copy.deepcopy(module).double(), _in_double(kwargs))
    results: dict[str, dict[str, Any]] = {}
    running: dict[str, Callable[[], Any]] = {}
    control = _gradients(module, _nudged(kwargs))
    module.zero_grad(set_to_none=True)
    module.load_state_dict(_nudged(state))
    parameters_moved = _gradients(module, kwargs)
    module.zero_grad(set_to_none=True)
    module.load_state_dict(state)
    eager: dict[str, torch.Tensor] = {}
    for contender in contenders:
        try:
            step = step_of(contender, module, kwargs)
            loss = step()
            found = {"loss": loss.double(), **_copied_gradients(module)}
            eager = eager or found
            results[contender] = _errors(found, eager, exact)
            results[contender].update(_meaning(results[contender]["worst"], parameters_moved, eager, exact))
            if contender == "litz":
                results[contender].update(_compiled_by_litz())
            running[contender] = step
        except Exception as error:
            results[contender] = {"failed": describe(error)}
        module.load_state_dict(state)
    running["control"] = step_of("eager", module, kwargs)
    results["control"] = _errors(control, eager, exact)
    for contender, seconds in interleaved(running, watch).items():
        results[contender]["best_ms"] = min(seconds) * 1e3
        results[contender]["median_ms"] = statistics.median(seconds) * 1e3
    return results


def _gradients(module: torch.nn.Module, kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    value = loss_of(module)(**kwargs)
    value.backward()
    return {"loss": value.detach(), **_copied_gradients(module)}


def _copied_gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.double().clone() for name, p in module.named_parameters() if p.grad is not None}


def _nudged(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Floating tensors moved by one unit in the last place, each way at random."""
    generator = torch.Generator().manual_seed(0)
    moved = dict(kwargs)
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            signs = 2 * torch.randint(0, 2, value.shape, generator=generator) - 1
            moved[name] = value * (1 + torch.finfo(value.dtype).eps * signs)
    return moved


def _in_double(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in kwargs.items()}


def _errors(found: Gradients, eager: Gradients, exact: Gradients) -> dict[str, Any]:
    """The loss's error, and the worst of the quotients of errors by eager's: of tensors, and of worst elements."""
    if found.keys() != exact.keys():
        raise AssertionError(f"gradients of {sorted(found.keys() ^ exact.keys())[:3]} exist on one side only")
    by_norm = _quotients(found, eager, exact, torch.linalg.vector_norm)
    by_element = _quotients(found, eager, exact, lambda t: t.abs().max())
    # A NaN compares false with everything: it must not be missed.
    worst = max(by_norm, key=lambda name: math.inf if math.isnan(by_norm[name]) else by_norm[name])
    loss = float((found["loss"] - exact["loss"]).abs() / exact["loss"].abs())
    return {
        "quotient": by_norm[worst],
        "worst": worst,
        "element": max(by_element.values()),
        "loss": float(found["loss"]),
        "loss_error": loss,
    }


def _meaning(worst: str, moved: Gradients, eager: Gradients, exact: Gradients) -> dict[str, Any]:
    largest = max(float(torch.linalg.vector_norm(true)) for true in exact.values())
    return {
        "worst_size": float(torch.linalg.vector_norm(exact[worst])) / largest,
        "worst_moved": _quotients(moved, eager, exact, torch.linalg.vector_norm)[worst],
    }


def _quotients(
    found: Gradients, eager: Gradients, exact: Gradients, size: Callable[[Any], torch.Tensor]
) -> dict[str, float]:
    largest = max(float(size(true)) for true in exact.values())
    quotients = {}
    for name, true in exact.items():
        # A gradient that is zero but for rounding has no scale of its own (a key's bias under softmax, for one).
        scale = max(float(size(true)), 1e-6 * largest)
        mine, theirs = (float(size(x[name].double() - true)) / scale for x in (found, eager))
        quotients[name] = mine / (theirs + FLOOR / 2)
    return quotients


def _compiled_by_litz() -> dict[str, Any]:
    import litz

    report = litz.last_report()
    if report is None or report.launches == 0:
        return {"not_compiled": "the report shows no kernel and no call"}
    return {
        "kernels": report.kernels,
        "calls": sum(count for _, count in report.calls),
        "fallbacks": sorted({fallback.operator for fallback in report.fallbacks}),
        "seconds": {stage: round(seconds, 3) for stage, seconds in report.timings},
    }


# -- dropout ----------------------------------------------------------------------------------------
def dropout(name: str) -> dict[str, Any]:
    """The loss of eager and of Litz with every dropout at 0.1, from one seed and from another."""
    torch.set_num_threads(THREADS)
    module, kwargs = model_in_training(name, 0.1)
    state = copy.deepcopy(module.state_dict())
    losses: dict[str, list[float]] = {}
    for contender in ("eager", "litz"):
        step = step_of(contender, module, kwargs)
        for seed in range(2):
            module.load_state_dict(state)
            torch.manual_seed(seed)
            losses.setdefault(contender, []).append(float(step()))
    eager, litz = losses["eager"], losses["litz"]
    if eager[0] == eager[1]:
        return {"apart": None, **losses}  # nothing was dropped
    return {"apart": max(abs(a - b) / abs(a) for a, b in zip(eager, litz, strict=True)), **losses}


# -- memory -----------------------------------------------------------------------------------------
def peak(name: str, contender: str) -> dict[str, Any]:
    """Bytes live at the peak of a warm step, beyond parameters and inputs, as PyTorch's allocator reports them.

    Every allocation by PyTorch, by generated code and by Litz's arena goes through that allocator; what oneDNN
    and MKL take for themselves is the same for all and not counted. `resident` is the step's growth of the
    process's high-water mark, for comparison: it also has what the allocator keeps.
    """
    torch.set_num_threads(THREADS)
    module, kwargs = model_in_training(name)
    step = step_of(contender, module, kwargs)
    for _ in range(2):
        step()
    module.zero_grad(set_to_none=True)
    _return_memory(contender)
    before = _status("VmRSS")
    _reset_high_water()
    step()
    resident = _status("VmHWM") - before
    module.zero_grad(set_to_none=True)
    _return_memory(contender)
    return {"bytes": live_bytes(step), "resident": resident}


def _return_memory(contender: str) -> None:
    """Nothing that a step needs may be left over from the step before, or it would not be counted."""
    gc.collect()
    if contender == "litz":
        from litz.runtime.arena import ARENA

        ARENA.clear()
    import ctypes

    ctypes.CDLL("libc.so.6").malloc_trim(0)


def _reset_high_water() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _status(field: str) -> int:
    with open("/proc/self/status") as file:
        (line,) = (text for text in file if text.startswith(field))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "steps":
        print(json.dumps(steps(arguments[0], *(int(n) for n in arguments[1:]))))
    else:
        print(json.dumps({"cold": cold, "peak": peak, "dropout": dropout}[what](*arguments)))
