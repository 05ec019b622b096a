"""The bars Litz has to clear, judged on the results of one run of the benchmarks.

In: the results as `bench.py` collects them. Out: one `Bar` each, met, missed or not measured. All bars are
ratios within one run, never times of one machine held against another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.table import geometric_mean, ratio

COLD_EACH = 1 / 4
COLD_MEAN = 1 / 6
STEP_MEAN = 1.05
STEP_EACH = 1.0
OVERHEAD = 1.0
ERROR = 2.0
# Above this, the machine was too busy for the step ratios of the run to mean much.
NOISE = 0.03


@dataclass(frozen=True)
class Bar:
    """`measured` says what was found; `met` is None where nothing was measured."""

    name: str
    wanted: str
    measured: str
    met: bool | None

    def __str__(self) -> str:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        return f"{verdict:12}  {self.name}: wanted {self.wanted}; {self.measured}"


def seconds(results: Mapping[str, Any], model: str, backend: str) -> float | None:
    return results.get("cold", {}).get(model, {}).get(backend, {}).get("seconds")


def step(results: Mapping[str, Any], model: str, contender: str, what: str = "best_ms") -> Any:
    return results.get("steps", {}).get(model, {}).get(contender, {}).get(what)


def noise(results: Mapping[str, Any], model: str) -> float | None:
    """How far eager is from itself when measured twice in the run, as a fraction: 0.02 is two per cent."""
    same = ratio(step(results, model, "eager"), step(results, model, "control"))
    return None if same is None else abs(same - 1)


def cold_ratio(results: Mapping[str, Any], model: str) -> float | None:
    """Litz's first call as a fraction of inductor's."""
    return ratio(seconds(results, model, "litz"), seconds(results, model, "inductor"))


def speedup(results: Mapping[str, Any], model: str, other: str) -> float | None:
    """How many times as fast as the other Litz steps."""
    return ratio(step(results, model, other), step(results, model, "litz"))


def bars(results: Mapping[str, Any]) -> list[Bar]:
    """All bars for which this run measured something."""
    found: list[Bar] = []
    if "cold" in results:
        models = list(results["cold"])
        found.append(_each("cold first call / inductor's, each model", results["cold"], cold_ratio, results, COLD_EACH))
        found.append(
            mean(
                "cold first call / inductor's, geometric mean",
                [cold_ratio(results, model) for model in models],
                at_most=COLD_MEAN,
            )
        )
    if "steps" in results:
        models = list(results["steps"])
        found.append(
            mean(
                "step: times as fast as inductor, geometric mean",
                [speedup(results, model, "inductor") for model in models],
                at_least=STEP_MEAN,
            )
        )
        found.append(_slowest("step: times as fast as eager, each model", results, models))
        found.append(_errors(results, models))
        found.append(_arenas(results, models))
        if "bert" in models:
            found.append(_bert_launches(results))
    if "overhead" in results:
        found.append(_overhead(results["overhead"]))
    return found


def _each(
    name: str, models: Any, measure: Callable[..., float | None], results: Mapping[str, Any], limit: float
) -> Bar:
    ratios = {model: measure(results, model) for model in models}
    return worst(name, ratios, f"at most {limit:.3f}", lambda value: value <= limit, max)


def _slowest(name: str, results: Mapping[str, Any], models: list[str]) -> Bar:
    ratios = {model: speedup(results, model, "eager") for model in models}
    return worst(name, ratios, f"at least {STEP_EACH:.2f}", lambda value: value >= STEP_EACH, min)


def _errors(results: Mapping[str, Any], models: list[str]) -> Bar:
    ratios = {
        model: ratio(step(results, model, "litz", "error"), step(results, model, "eager", "error")) for model in models
    }
    return worst("error against float64 / eager's", ratios, f"at most {ERROR:.1f}", lambda value: value <= ERROR, max)


def _arenas(results: Mapping[str, Any], models: list[str]) -> Bar:
    ratios = {
        model: ratio(step(results, model, "litz", "arena_bytes"), results["steps"][model].get("peak_bytes"))
        for model in models
    }
    return worst("arena / eager's peak of live activations", ratios, "at most 1.0", lambda value: value <= 1, max)


def worst(
    name: str,
    ratios: Mapping[str, float | None],
    wanted: str,
    good: Callable[[float], bool],
    pick: Callable[..., Any],
) -> Bar:
    """Judges every model and shows the worst; a model without a figure counts as missed."""
    missing = [model for model, value in ratios.items() if value is None]
    known = {model: value for model, value in ratios.items() if value is not None}
    if not known:
        return Bar(name, wanted, "no figures", None if not ratios else False)
    # NaN is never good, and must not hide behind max() or min().
    bad = [model for model, value in known.items() if not good(value)]
    least = bad[0] if any(value != value for value in known.values()) else pick(known, key=lambda model: known[model])
    text = f"worst {known[least]:.3f} ({least})"
    if bad:
        text += f"; missed by {', '.join(bad)}"
    if missing:
        text += f"; no figure for {', '.join(missing)}"
    return Bar(name, wanted, text, not bad and not missing)


def mean(name: str, values: list[float | None], *, at_most: float | None = None, at_least: float | None = None) -> Bar:
    found = geometric_mean(values)
    wanted = f"at most {at_most:.3f}" if at_most is not None else f"at least {at_least:.2f}"
    if found is None:
        return Bar(name, wanted, "a model has no figure" if values else "no figures", False if values else None)
    met = found <= at_most if at_most is not None else found >= (at_least or 0)
    return Bar(name, wanted, f"{found:.3f}", met)


def _bert_launches(results: Mapping[str, Any]) -> Bar:
    ours, theirs = (step(results, "bert", contender, "launches") for contender in ("litz", "inductor"))
    met = ours is not None and theirs is not None and ours <= theirs
    return Bar(
        "kernels and operators launched for BERT",
        f"at most inductor's {theirs}",
        "no figure" if ours is None else f"{ours}",
        met,
    )


def _overhead(figures: Mapping[str, Any]) -> Bar:
    ours, theirs = (figures.get(contender, {}).get("microseconds") for contender in ("litz", "inductor"))
    value = ratio(ours, theirs)
    text = "no figure" if value is None else f"{value:.3f}"
    return Bar(
        "fifteen operators on 64 floats, a call / inductor's", "at most 1.0", text, value is not None and value <= 1
    )
