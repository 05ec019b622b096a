"""Memory of training steps: foretold against measured, over bounds, and under checkpoints.

`make bench-memory`, or `python -m benchmarks.memory [--only peaks,levels,bounds,fractions,checkpoints]
[--models bert,stack] [--budgets 1,0.5,0] [--bounds 20]`. Counted are all bytes beyond parameters and arguments, as
PyTorch's allocator counts them; `stack` is a Llama of 8 layers at 2,048 tokens (`benchmarks/stack.py`). Each model and
budget is measured in a process of its own.

`peaks`: the report's peak beside the measured one; a row fails where they are more than 5% apart. `bounds`: the stack
under `memory_budget` in bytes, from the least that can be to what is taken without a bound; it fails where a smaller
bound has a higher peak or a shorter step, is not kept to, or is foretold wrongly. `fractions`: the stack under as many
fractions from 1 to 0; it fails where a smaller one has a higher peak. `levels`: the same bounds, and what
would be compiled for them by what is foretold, which takes a minute. `checkpoints`: models of transformers
after `gradient_checkpointing_enable()`, in eager and compiled, steps taken in turn; it fails where the compiled one
takes more memory, or more time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.process import THREADS, in_fresh_process
from benchmarks.table import figure, ratio, render

APART = 0.05
SAME = 0.01  # peaks that are nearer than this are one
MODELS = "bert,gpt2,llama,vit,resnet,convnext,stack"
CHECKPOINTED = ("bert", "gpt2", "llama", "stack")
_PATIENCE = 3600.0
Step = Callable[[], Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="peaks,levels,bounds,fractions,checkpoints")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--budgets", default="1,0.5,0")
    parser.add_argument("--bounds", type=int, default=20)
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        what, *given = options.one
        asked = {
            "peak": measure, "levels": levels, "bounds": bounds, "fractions": fractions, "checkpoint": checkpointed
        }  # fmt: skip
        print(json.dumps(asked[what](*given)))
        return 0
    models, failed = options.models.split(","), []
    for part in options.only.split(","):
        if part == "peaks":
            failed += _peaks(models, options.budgets.split(","))
        elif part == "levels":
            failed += _levels(options.bounds)
        elif part == "bounds":
            failed += _bounds(options.bounds)
        elif part == "fractions":
            failed += _fractions(options.bounds)
        else:
            failed += _checkpoints([name for name in models if name in CHECKPOINTED])
    print(f"missed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


def _asked(*arguments: str) -> dict[str, Any]:
    found = in_fresh_process("benchmarks.memory", "--one", *arguments, limit=_PATIENCE)
    print(*arguments, found, file=sys.stderr, flush=True)
    return found


def _mib(value: float | None) -> str:
    return figure(None if value is None else value / 2**20, ".1f")


# -- foretold and measured ---------------------------------------------------------------------------
def _peaks(models: list[str], budgets: list[str]) -> list[str]:
    rows, failed = [], []
    for model in models:
        for budget in budgets:
            found = _asked("peak", model, budget)
            near = ratio(found.get("predicted"), found.get("measured"))
            if near is None or abs(near - 1) > APART:
                failed.append(f"{model} at {budget} is foretold wrongly")
            rows.append([model, budget, _mib(found.get("predicted")), _mib(found.get("measured")), figure(near, ".3f")])
    print(render(["model", "budget", "predicted MiB", "measured MiB", "ratio"], rows))
    return failed


def measure(model: str, budget: str) -> dict[str, Any]:
    module, step = _step(model, {"memory_budget": float(budget)})
    return _peaks_of(module, step)


def _step(model: str, options: dict[str, Any]) -> tuple[Any, Step]:
    """A model in training, and its step."""
    module, kwargs, loss = _in_training(model)
    return module, _of(module, kwargs, loss, options)


def _in_training(model: str) -> tuple[Any, dict[str, Any], Callable[..., Any]]:
    if model == "stack":
        from benchmarks import stack

        module, kwargs = stack.stack()
        return module, kwargs, stack.loss_of(module)
    from benchmarks.training_step import loss_of, model_in_training

    module, kwargs = model_in_training(model)
    return module, kwargs, loss_of(module)


def _peaks_of(module: Any, step: Step) -> dict[str, Any]:
    import litz

    measured = _measured(module, step)
    (report,) = litz.reports()
    return {"predicted": report.peak_bytes, "measured": measured, "again": report.again_seconds}


def _measured(module: Any, step: Step) -> int:
    from benchmarks.training_step import _return_memory, live_bytes

    for _ in range(2):
        step()
    module.zero_grad(set_to_none=True)
    _return_memory("litz")
    return live_bytes(step)


# -- levels ----------------------------------------------------------------------------------------
def _levels(count: int) -> list[str]:
    found = _asked("levels", str(count))
    if "failed" in found:
        return [f"levels: {found['failed']}"]
    points = found["points"]
    rows = [[_mib(p["bound"]), str(p["level"]), _mib(p["peak"]), f"{p['again'] * 1e3:.2f}"] for p in points]
    print(render(["bound MiB", "level", "foretold MiB", "ms again"], rows))
    failed = []
    if [p["peak"] for p in points] != sorted(p["peak"] for p in points):
        failed.append("the foretold peak is not monotonic")
    if [p["again"] for p in points] != sorted((p["again"] for p in points), reverse=True):
        failed.append("the foretold step is not monotonic")
    return failed


def levels(count: str) -> dict[str, Any]:
    """What would be chosen, by the peaks of all levels."""
    from dataclasses import replace

    from litz.context import Context
    from litz.graph.module import copied, graph_module
    from litz.graph.partition.split import at_level, plan
    from litz.graph.partition.within_peak import Peak, within_peak
    from litz.graph.signature import Joint
    from litz.options import Options
    from litz.peak_budget import foretell, unheard
    from litz.pipeline import policy_of, scheduled
    from litz.target import detect

    joints: list[Joint] = []

    def copy(joint: Joint) -> Joint:
        return replace(joint, graph=graph_module(joint.graph, copied(joint.graph.graph)))

    _step("stack", {"before": {"split": lambda joint: joints.append(copy(joint))}})[1]()
    (joint,) = joints
    ctx = unheard(Context(Options(), detect(THREADS)))
    policy = policy_of(ctx)
    found = plan(joint, policy)
    peaks = [foretell(copy(joint), at_level(found, n, policy), ctx, scheduled).peak.bytes for n in range(found.count)]
    least, most = min(peaks), peaks[0]
    points = []
    for at in range(int(count)):
        bound = least + (most - least) * at // (int(count) - 1)
        level, fitting = within_peak(
            bound, found.count, found.bound, lambda n: Peak(peaks[n]), lambda n: (n, Peak(peaks[n]))
        )
        points.append({"bound": bound, "level": level, "peak": fitting.peak.bytes, "again": found.at(level).seconds})
    return {"points": points}


# -- bounds ----------------------------------------------------------------------------------------
def _bounds(count: int) -> list[str]:
    found = _asked("bounds", str(count))
    if "failed" in found:
        return [f"bounds: {found['failed']}"]
    points, arguments = found["points"], found["arguments"]
    rows = [
        [_mib(p["bound"]), _mib(p["predicted"] + arguments), _mib(p["measured"] + arguments), f"{p['again'] * 1e3:.2f}"]
        for p in points
    ]
    print(render(["bound MiB", "predicted MiB", "measured MiB", "ms again"], rows))
    failed = []
    for name in ("predicted", "measured"):
        if [p[name] for p in points] != sorted(p[name] for p in points):
            failed.append(f"the {name} peak is not monotonic")
    if [p["again"] for p in points] != sorted((p["again"] for p in points), reverse=True):
        failed.append("the predicted step is not monotonic")
    for p in points:
        if p["measured"] + arguments > p["bound"]:
            failed.append(f"the bound of {_mib(p['bound'])} MiB is not kept to")
        if abs(p["predicted"] / p["measured"] - 1) > APART:
            failed.append(f"the peak at {_mib(p['bound'])} MiB is foretold wrongly")
    return failed


def _afresh() -> None:
    import torch

    import litz

    torch._dynamo.reset()
    litz.report.HISTORY.clear()


def bounds(count: str) -> dict[str, Any]:
    """From the least memory to what is taken without a bound, in steps that are alike."""

    def compiled(most: int) -> dict[str, Any]:
        _afresh()
        return _peaks_of(*_step("stack", {"memory_budget": most}))

    module, step = _step("stack", {"memory_budget": 1.0})
    usual = _peaks_of(module, step)
    arguments = sum(p.numel() * p.element_size() for p in {*module.parameters(), *module.buffers()})
    arguments += _in_training("stack")[1]["input_ids"].nbytes  # which are the labels too
    try:
        compiled(1 << 20)
        raise AssertionError("a step within one MiB")
    except Exception as error:
        told = re.search(r"a step takes ([\d,]+) at least", str(error))
        if told is None:
            raise
    least, most = int(told[1].replace(",", "")), usual["predicted"] + arguments
    points = []
    for at in range(int(count)):
        bound = least + (most - least) * at // (int(count) - 1)
        points.append({"bound": bound, **compiled(bound)})
        print(points[-1], file=sys.stderr, flush=True)
    return {"arguments": arguments, "points": points}


# -- fractions -------------------------------------------------------------------------------------
def _fractions(count: int) -> list[str]:
    found = _asked("fractions", str(count))
    if "failed" in found:
        return [f"fractions: {found['failed']}"]
    points = found["points"]
    rows = [[f"{p['fraction']:.3f}", _mib(p["predicted"]), _mib(p["measured"])] for p in points]
    print(render(["fraction", "predicted MiB", "measured MiB"], rows))
    failed = []
    for name in ("predicted", "measured"):
        if any(after[name] > (1 + SAME) * before[name] for before, after in itertools.pairwise(points)):
            failed.append(f"the {name} peak is not monotonic over fractions")
    return failed


def fractions(count: str) -> dict[str, Any]:
    """From all that is usual to the least."""
    points = []
    for at in range(int(count)):
        fraction = 1 - at / (int(count) - 1)
        _afresh()
        points.append({"fraction": fraction, **_peaks_of(*_step("stack", {"memory_budget": fraction}))})
        print(points[-1], file=sys.stderr, flush=True)
    return {"points": points}


# -- checkpoints -----------------------------------------------------------------------------------
def _checkpoints(models: list[str]) -> list[str]:
    rows, failed = [], []
    for model in models:
        found = _asked("checkpoint", model)
        memory = ratio(found.get("litz_bytes"), found.get("eager_bytes"))
        time = ratio(found.get("litz"), found.get("eager"))
        for name, value in (("memory", memory), ("time", time)):
            if value is None or value > 1:
                failed.append(f"{model} under checkpoints takes {figure(value)} of eager's {name}")
        sizes = [_mib(found.get(name)) for name in ("eager_bytes", "litz_bytes")]
        times = [figure(found[name] * 1e3 if name in found else None, ".1f") for name in ("eager", "litz")]
        rows.append([model, *sizes, figure(memory), *times, figure(time)])
    print(render(["checkpoints", "eager MiB", "litz MiB", "ratio", "eager ms", "litz ms", "ratio"], rows))
    return failed


def checkpointed(model: str, rounds: str = "7") -> dict[str, Any]:
    from benchmarks.steps import Watch, interleaved

    found: dict[str, Any] = {}
    running: dict[str, Step] = {}
    for name, options in (("eager", None), ("litz", {})):
        module, kwargs, loss = _in_training(model)
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        running[name] = _of(module, kwargs, loss, options)
        found[f"{name}_bytes"] = _measured(module, running[name])
    for name, seconds in interleaved(running, Watch(int(rounds))).items():
        found[name] = statistics.median(seconds)
    return found


def _of(module: Any, kwargs: dict[str, Any], loss: Callable[..., Any], options: dict[str, Any] | None) -> Step:
    """In eager without options."""
    import torch

    torch.set_num_threads(THREADS)
    run = loss if options is None else torch.compile(loss, backend="litz", options=options)

    def step() -> None:
        module.zero_grad(set_to_none=True)
        run(**kwargs).backward()

    return step


if __name__ == "__main__":
    sys.exit(main())
