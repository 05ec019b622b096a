"""The bars of the GPU, judged on the rows that were measured so far.

In: the rows as `gpu.py` keeps them, and those of the operator sweep where there are some. Out: one `Bar` each. All are
ratios within one row, and all contenders of a row were measured in one process, in turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from benchmarks.bars import Bar, mean, worst
from benchmarks.gpu_kernels import JUDGED
from benchmarks.gpu_models import CONVOLUTIONS, MASKED, MODELS, NO_MASK, OF_IMAGES
from benchmarks.table import ratio

STEP_EACH, STEP_MEAN = 1.0, 1.2
COLD = 0.3
PEAK = 1.02
BANDWIDTH = 0.85
ERROR = 2.0
LOSS_FLOOR = 4 * 2.0**-8  # units in the last place of bfloat16: one number may be right by luck

Rows = Mapping[str, Any]
Measure = Callable[[str], Union[float, None]]
_BOTH = ("inference", "training")


def bars(found: Mapping[str, Any], operators: Mapping[str, Any] | None = None) -> list[Bar]:
    models, kernels = found.get("models", {}), found.get("kernels", {})
    eight = [f"{m}, {mode}" for m in MODELS if m not in CONVOLUTIONS for mode in _BOTH]
    convolutions = [f"{m}, {mode}" for m in CONVOLUTIONS for mode in _BOTH]
    masked = [f"{m}, {mode}" for m in MASKED for mode in _BOTH]
    one = [f"{m}, one" for m in MODELS if m not in OF_IMAGES]
    every = [*eight, *convolutions]
    fast, cheap, true = f"at least {STEP_EACH:.2f}", f"at most {COLD}", f"at most {ERROR}"
    speeds = [of_the_better(models, row) for row in eight] if any(row in models for row in eight) else []
    small = f"at most {PEAK}"

    def judged(name: str, rows: Sequence[str], measure: Measure, wanted: str, limit: float) -> Bar:
        at_least = wanted.startswith("at least")
        good = (lambda value: value >= limit) if at_least else (lambda value: value <= limit)
        measured = any(row in models or row in kernels for row in rows)
        values = {row: measure(row) for row in rows} if measured else {}
        return worst(name, values, wanted, good, min if at_least else max)

    return [
        judged("step: times as fast as the better of eager and inductor, each", eight,
               lambda row: of_the_better(models, row), fast, STEP_EACH),
        mean("the same, geometric mean", speeds, at_least=STEP_MEAN),
        judged("step: times as fast as inductor with the mask removed", masked,
               lambda row: against(models, row, NO_MASK), fast, STEP_EACH),
        judged("convolutions: times as fast as the better of the two", convolutions,
               lambda row: of_the_better(models, row), fast, STEP_EACH),
        judged('128 tokens: times as fast as inductor in mode "reduce-overhead"', one,
               lambda row: against(models, row, "inductor"), fast, STEP_EACH),
        *(judged(f"cold first call / inductor's, {mode}", [row for row in every if mode in row],
                 lambda row: cold(models, row), cheap, COLD) for mode in _BOTH),
        judged("peak in training / the smaller of eager's and inductor's", [row for row in every if "training" in row],
               lambda row: peak(models, row), small, PEAK),
        _operators(operators),
        judged("kernels: part of the copy bandwidth", JUDGED,
               lambda name: of_the_copy(kernels, name), f"at least {BANDWIDTH}", BANDWIDTH),
        judged("kernels: times as fast as inductor's", JUDGED,
               lambda name: ratio(kernels.get(name, {}).get("inductor"), kernels.get(name, {}).get("litz")),
               fast, STEP_EACH),
        judged("error against float64 / eager's", every, lambda row: error(models, row), true, ERROR),
    ]  # fmt: skip


def _figure(models: Rows, row: str, contender: str, what: str) -> Any:
    return models.get(row, {}).get(contender, {}).get(what)


def against(models: Rows, row: str, contender: str) -> float | None:
    """How many times as fast as the other Litz steps."""
    return ratio(_figure(models, row, contender, "best"), _figure(models, row, "litz", "best"))


def of_the_better(models: Rows, row: str) -> float | None:
    """None where one of the others has no figure: it might be the better one."""
    found = [against(models, row, other) for other in ("eager", "inductor")]
    return None if None in found else min(value for value in found if value is not None)


def cold(models: Rows, row: str) -> float | None:
    return ratio(_figure(models, row, "litz", "cold"), _figure(models, row, "inductor", "cold"))


def peak(models: Rows, row: str) -> float | None:
    others = [_figure(models, row, other, "peak") for other in ("eager", "inductor")]
    return None if None in others else ratio(_figure(models, row, "litz", "peak"), min(others))


def error(models: Rows, row: str) -> float | None:
    """The largest, over the results, of Litz's error as a multiple of eager's; of a loss, of what is above a few units
    in the last place."""
    ours, theirs = (_figure(models, row, contender, "errors") for contender in ("litz", "eager"))
    if not ours or not theirs:
        return None
    floor = {"loss": LOSS_FLOOR}
    quotients = [_quotient(value - floor.get(what, 0.0), theirs[what]) for what, value in ours.items()]
    return math.nan if any(map(math.isnan, quotients)) else max(quotients)


def _quotient(ours: float, theirs: float) -> float:
    if math.isnan(ours) or math.isnan(theirs):
        return math.nan
    return 0.0 if ours <= 0 else ours / theirs if theirs else math.inf


def of_the_copy(kernels: Rows, name: str) -> float | None:
    return ratio(kernels.get(name, {}).get("copy"), kernels.get(name, {}).get("litz"))


def _operators(found: Mapping[str, Any] | None) -> Bar:
    """Of the sweep on the device, which `make test-gpu-ops` makes."""
    name, wanted = "operators on the device", "0 wrong, 0 crashed"
    if not found:
        return Bar(name, wanted, "no figures", None)
    counts = found["counts"]
    done, all_of_it = found["done"], found["of"]
    text = ", ".join(f"{count} {what}" for what, count in counts.items()) + f"; {done} of {all_of_it} parts"
    wrong = counts.get("wrong") or counts.get("crashed")
    return Bar(name, wanted, text, False if wrong else None if done < all_of_it else True)


__all__ = ["against", "bars", "cold", "error", "of_the_better", "of_the_copy", "peak"]
