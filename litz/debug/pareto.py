"""`litz.pareto`: what less memory costs in time.

In: a model, its arguments, fractions of what would be kept for the backward. Out: a `Pareto`, which prints as a table
and is written as JSON, SVG or PNG: peak and time of a training step for each fraction, and beside them eager's, with a
checkpoint for each layer too, and PyTorch's own budgets if they are asked for.

The model is compiled once, with all kept, and that step is measured; for each other fraction its graph is split and
scheduled, and no code is made. The peak is what the memory plan says, the time that of the programs at the machine's
ceilings, times what the measured step takes for what it would take at them. What a budget is said to be worth thus
costs seconds, not a compile each; `measure=True` compiles and measures every one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Union

import torch

from litz.context import Context
from litz.debug.pareto_plot import png, svg
from litz.debug.step import Step, Subject, checkpointed, mean_square, peak_of_step, repeated_layers, seconds_of_steps
from litz.errors import CaptureError, OptionError
from litz.graph.module import copied, graph_module
from litz.graph.partition.cost import ceilings
from litz.graph.signature import Joint
from litz.options import Options
from litz.peak_budget import bytes_of_arguments, foretell, unheard
from litz.pipeline import policy_of, scheduled
from litz.report import last_report, reports, step_peak
from litz.schedule.duration import duration
from litz.target import Machine, detect, detect_gpu

FRACTIONS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)
BESIDE = ("eager", "checkpoint", "inductor")
PYTORCH_BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)
_ROUNDS = 5
Key = tuple[str, Union[float, None]]  # of a point: its way and its budget
_WHOLE: Key = ("litz", 1.0)


@dataclass(frozen=True)
class Point:
    """One way to run the step. Bytes are of arguments, gradients and all that the step takes; what is None is not
    known: `failed` says why, if it should be."""

    way: str  # "litz", or one of `BESIDE`
    budget: float | None = None
    predicted_bytes: int | None = None
    predicted_seconds: float | None = None
    measured_bytes: int | None = None
    measured_seconds: float | None = None
    failed: str | None = None

    @property
    def bytes(self) -> int | None:
        return self.measured_bytes if self.predicted_bytes is None else self.predicted_bytes

    @property
    def seconds(self) -> float | None:
        return self.measured_seconds if self.predicted_seconds is None else self.predicted_seconds


@dataclass(frozen=True)
class Pareto:
    """`arguments_bytes`: of all points, what parameters, buffers and arguments take."""

    machine: str
    arguments_bytes: int
    points: tuple[Point, ...]

    @property
    def front(self) -> tuple[Point, ...]:
        """Litz's points that no other of them betters, the largest peak first."""
        mine = [p for p in self.points if p.way == "litz" and p.bytes is not None and p.seconds is not None]
        found: list[Point] = []
        for point in sorted(mine, key=lambda p: (p.bytes, p.seconds)):
            if not found or point.seconds < found[-1].seconds:  # type: ignore[operator]
                found.append(point)
        return tuple(reversed(found))

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("way", "budget", "peak", "step", "peak measured", "step measured")]
        rows += [_row(point) for point in self.points]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [_line(row, widths) for row in rows]
        lines += [f"{p.way}{_at(p)} failed: {p.failed}" for p in self.points if p.failed]
        return "\n".join([f"a step on {self.machine}; {_bytes(self.arguments_bytes)} are arguments", *lines])

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def save(self, path: str | Path) -> None:
        """As a plot (`.svg`; `.png`, which needs matplotlib) or as data (`.json`)."""
        path = Path(path)
        match path.suffix:
            case ".svg":
                path.write_text(svg(self), encoding="utf-8")
            case ".png":
                png(self, path)
            case ".json":
                path.write_text(self.to_json() + "\n", encoding="utf-8")
            case other:
                raise OptionError(
                    f"a curve is saved as .svg, .png or .json, not {other!r}", hint='such as save("curve.svg")'
                )


def pareto(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    fractions: Sequence[float] = FRACTIONS,
    beside: Iterable[str] = ("eager", "checkpoint"),
    pytorch_budgets: Sequence[float] = PYTORCH_BUDGETS,
    measure: bool = False,
    **options: Any,
) -> Pareto:
    """Peak and time of a training step of `model(*args, **kwargs)`, for a sweep of memory budgets.

    `loss` makes one number of what the model returns; without it that is the number the model returns, or the mean
    squares of its results. `fractions` are those of `memory_budget`. `beside`: what else is measured, of "eager";
    "checkpoint" (eager, each layer of the model's stack under `torch.utils.checkpoint`); and "inductor", compiled and
    measured at each of `pytorch_budgets`, as PyTorch's `activation_memory_budget` takes them, which takes as long as
    so many of its compiles. `measure`: also compile and measure each fraction. The rest are options of `litz.compile`.

    Steps are run; gradients, buffers and random numbers are afterwards as they were before.
    """
    beside = tuple(beside)
    _check(fractions, beside, pytorch_budgets, options)
    subject = Subject(model, args, kwargs or {}, mean_square if loss is None else loss)
    with subject.undisturbed():
        return _Sweep(subject, Options.parse(options), options).run(fractions, beside, pytorch_budgets, measure)


def _check(
    fractions: Sequence[float], beside: Sequence[str], pytorch_budgets: Sequence[float], options: Mapping[str, Any]
) -> None:
    Options.parse(options)
    if "memory_budget" in options:
        raise OptionError("option 'memory_budget' is what litz.pareto varies", hint="pass fractions=(1.0, 0.5, 0.0)")
    for name, values in (("fractions", fractions), ("pytorch_budgets", pytorch_budgets)):
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise OptionError(f"{name} are numbers from 0 to 1, not {value!r}")
    unknown = set(beside) - set(BESIDE)
    if unknown:
        raise OptionError(f"beside names {', '.join(map(repr, BESIDE))}, not {min(unknown)!r}")


class _Sweep:
    """The steps that are there, by way and budget; what is measured is measured of all of them in turn."""

    def __init__(self, subject: Subject, parsed: Options, options: Mapping[str, Any]):
        self.subject, self.parsed, self.options = subject, parsed, options
        self.steps: dict[Key, Step] = {}
        self.peaks: dict[Key, int] = {}
        self.failed: dict[Key, str] = {}

    def run(
        self, fractions: Sequence[float], beside: Sequence[str], pytorch_budgets: Sequence[float], measure: bool
    ) -> Pareto:
        joints: list[Joint] = []
        self._add(_WHOLE, self._by_litz(1.0, lambda joint: joints.append(_copy(joint))))
        joint = _only(joints)
        report = next(r for r in reversed(reports()) if any(b.part == "backward" for b in r.built))
        self.built = [built.memory for built in report.built]
        arguments = bytes_of_arguments(joint)
        if "eager" in beside:
            self._add(("eager", None), self.subject.step())
        if "checkpoint" in beside:
            self._add(("checkpoint", None), self._under_checkpoints())
        for budget in pytorch_budgets if "inductor" in beside else ():
            self._add(("inductor", budget), self._by_inductor(budget))
        for fraction in fractions if measure else ():
            if fraction != 1.0:
                self._add(("litz", fraction), self._by_litz(fraction))
        seconds = seconds_of_steps(self.steps, _ROUNDS, self.subject.device)
        self.subject.forget()
        machine = self._machine()
        points = {(p.way, p.budget): p for p in self._foretold(joint, fractions, seconds[_WHOLE], machine)}
        points |= {key: Point(*key) for key in (*self.steps, *self.failed) if key[0] != "litz"}
        found = [
            replace(
                point,
                measured_bytes=arguments + self.peaks[key] if key in self.peaks else None,
                measured_seconds=seconds.get(key),
                failed=self.failed.get(key),
            )
            for key, point in points.items()
        ]
        return Pareto(str(machine), arguments, tuple(sorted(found, key=_in_order)))

    def _add(self, key: Key, step: Step) -> None:
        """What fails is said so in its row, and costs no other."""
        try:
            step()
            step()
            self.peaks[key] = peak_of_step(self.subject, step)
        except Exception as error:
            if key == _WHOLE:
                raise  # by which all others are judged
            self.failed[key] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
        else:
            self.steps[key] = step

    # -- ways -----------------------------------------------------------------------------------
    def _by_litz(self, fraction: float, keep: Callable[[Joint], None] | None = None) -> Step:
        """`keep` is given the graph that is about to be split."""
        asked = {**self.options, "memory_budget": fraction}
        if keep is not None:
            theirs = dict(self.options.get("before") or {})

            def seen(joint: Joint) -> Joint:
                found = theirs["split"](joint) if "split" in theirs else None
                joint = joint if found is None else found
                keep(joint)
                return joint

            asked["before"] = {**theirs, "split": seen}
        return self.subject.step(partial(torch.compile, backend="litz", options=asked))

    def _under_checkpoints(self) -> Step:
        layers = [layer for module in self.subject.modules for layer in repeated_layers(module)]
        plain = self.subject.step()

        def step() -> None:
            if not layers:
                raise CaptureError("the model has no layers of one class side by side")
            with checkpointed(layers):
                plain()

        return step

    def _by_inductor(self, budget: float) -> Step:
        import torch._functorch.config as settings

        step = self.subject.step(partial(torch.compile, backend="inductor"))

        def with_budget() -> None:
            with settings.patch(activation_memory_budget=budget):  # read when it compiles
                step()

        return with_budget

    # -- predictions ----------------------------------------------------------------------------
    def _machine(self) -> Machine:
        device = self.subject.device
        return detect_gpu(device.index, self.parsed.threads) if device.type == "cuda" else detect(self.parsed.threads)

    def _foretold(self, joint: Joint, fractions: Sequence[float], whole: float, machine: Machine) -> list[Point]:
        """`whole`: the seconds of the step that keeps all."""
        ctx = unheard(Context(self.parsed, machine))
        policy, limits, arguments = policy_of(ctx), ceilings(machine), bytes_of_arguments(joint)
        wanted = sorted({1.0, *map(float, fractions)}, reverse=True)
        found = {f: foretell(_copy(joint), replace(policy, fraction=f), ctx, scheduled) for f in wanted}
        # What kernels take for themselves is known of the step that was compiled, and about the same for all.
        own = [built.arena - plan.arena for built, plan in zip(self.built, found[1.0].memories, strict=True)]
        least = {f: sum(duration(program, limits) for program in each.programs) for f, each in found.items()}
        points = []
        for fraction in sorted(set(map(float, fractions)), reverse=True):
            forward, behind = (
                m._replace(arena=m.arena + more, peak=m.peak + more)
                for m, more in zip(found[fraction].memories, own, strict=True)
            )
            peak = arguments + step_peak(forward, [behind])
            points.append(Point("litz", fraction, peak, whole * least[fraction] / least[1.0]))
        return points


def _copy(joint: Joint) -> Joint:
    """Splitting writes into a graph."""
    return replace(joint, graph=graph_module(joint.graph, copied(joint.graph.graph)))


def _only(joints: Sequence[Joint]) -> Joint:
    if len(joints) == 1:
        return joints[0]
    if joints:
        raise CaptureError(
            f"the model is captured in {len(joints)} graphs with a backward, and a curve is of one",
            hint="torch.compile(model, backend='litz', fullgraph=True) says where it breaks",
        )
    report = last_report()
    why = (report and report.left_to_eager) or "nothing of it has a backward"
    raise CaptureError(f"there is no training step to split: {why}")


# -- text ---------------------------------------------------------------------------------------
def _in_order(point: Point) -> tuple[int, float]:
    return ("litz", *BESIDE).index(point.way), -(point.budget or 0.0)


def _row(point: Point) -> tuple[str, ...]:
    budget = "" if point.budget is None else f"{point.budget:g}"
    return (
        point.way, budget, _bytes(point.predicted_bytes), _milliseconds(point.predicted_seconds),
        _bytes(point.measured_bytes), _milliseconds(point.measured_seconds),
    )  # fmt: skip


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Words to the left, numbers to the right."""
    cells = [cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
    return "  ".join(cells).rstrip()


def _at(point: Point) -> str:
    return "" if point.budget is None else f" at {point.budget:g}"


def _bytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:,.1f} MiB"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.1f} ms"


__all__ = ["Pareto", "Point", "pareto"]
