"""`litz.pareto`: what less memory costs in time.

In: a model and its arguments. Out: a `Pareto`, which prints as a table and is written as JSON, SVG or PNG: peak and
time of a training step for a range of budgets in bytes, and beside them eager's, with a checkpoint for each layer too,
and PyTorch's own budgets if they are asked for.

The model is compiled once, with all kept, and that step is measured; at levels of the plan that a budget in bytes
chooses from, its graph is split and scheduled, and no code is made. The peak is what the memory plan says, the time
that of the programs at the machine's ceilings, times what the measured step takes for what it would take at them. What
a budget is said to be worth thus costs seconds, not a compile each; `measure=True` compiles and measures every one.
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
from litz.graph.partition.split import at_level, plan
from litz.graph.signature import Joint
from litz.options import Options
from litz.peak_budget import bytes_of_arguments, foretell, unheard
from litz.pipeline import policy_of, scheduled, workspace_of
from litz.report import last_report
from litz.schedule.duration import duration
from litz.target import Machine, detect, detect_gpu

BESIDE = ("eager", "checkpoint", "inductor")
PYTORCH_BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)
_ROUNDS = 5
Key = tuple[str, Union[float, None]]  # of a point: its way and its budget
_WHOLE: Key = ("litz", None)  # without a budget


@dataclass(frozen=True)
class Point:
    """One way to run the step. Bytes are of arguments, gradients and all that the step takes; what is None is not
    known: `failed` says why, if it should be. `budget` is what to write as `memory_budget`, or as PyTorch's
    `activation_memory_budget`; None: no bound."""

    way: str  # "litz", or one of `BESIDE`
    budget: float | int | None = None
    predicted_bytes: int | None = None
    predicted_seconds: float | None = None
    measured_bytes: int | None = None
    measured_seconds: float | None = None
    failed: str | None = None

    @property
    def name(self) -> str:
        return self.way if self.budget is None else f"{self.way} at {self.spelled}"

    @property
    def spelled(self) -> str:
        """The budget, as it is written."""
        if self.budget is None:
            return ""
        return f"{self.budget:d}" if isinstance(self.budget, int) else f"{self.budget:g}"

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
        lines += [f"{p.name} failed: {p.failed}" for p in self.points if p.failed]
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
    points: int = 12,
    beside: Iterable[str] = ("eager", "checkpoint"),
    pytorch_budgets: Sequence[float] = PYTORCH_BUDGETS,
    measure: bool = False,
    **options: Any,
) -> Pareto:
    """Peak and time of a training step of `model(*args, **kwargs)`, for a sweep of memory budgets.

    `loss` makes one number of what the model returns; without it that is the number the model returns, or the mean
    squares of its results. `points`: how many budgets are tried, from none to the least there can be; those that are
    bettered by another are left out. `beside`: what else is measured, of "eager";
    "checkpoint" (eager, each layer of the model's stack under `torch.utils.checkpoint`); and "inductor", compiled and
    measured at each of `pytorch_budgets`, as PyTorch's `activation_memory_budget` takes them, which takes as long as
    so many of its compiles. `measure`: also compile and measure each budget. The rest are options of `litz.compile`.

    Steps are run; gradients, buffers and random numbers are afterwards as they were before.
    """
    beside = tuple(beside)
    _check(points, beside, pytorch_budgets, options)
    subject = Subject(model, args, kwargs or {}, mean_square if loss is None else loss)
    with subject.undisturbed():
        return _Sweep(subject, Options.parse(options), options).run(points, beside, pytorch_budgets, measure)


def _check(points: int, beside: Sequence[str], pytorch_budgets: Sequence[float], options: Mapping[str, Any]) -> None:
    Options.parse(options)
    if "memory_budget" in options:
        raise OptionError("option 'memory_budget' is what litz.pareto varies", hint="points=20 varies it more finely")
    if isinstance(points, bool) or not isinstance(points, int) or points < 1:
        raise OptionError(f"points is a number of at least 1, not {points!r}")
    for value in pytorch_budgets:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise OptionError(f"pytorch_budgets are numbers from 0 to 1, not {value!r}")
    unknown = [name for name in beside if name not in BESIDE]
    if unknown:
        raise OptionError(f"beside names {', '.join(map(repr, BESIDE))}, not {unknown[0]!r}")


class _Sweep:
    """The steps that are there, by way and budget; what is measured is measured of all of them in turn."""

    def __init__(self, subject: Subject, parsed: Options, options: Mapping[str, Any]):
        self.subject, self.parsed, self.options = subject, parsed, options
        self.steps: dict[Key, Step] = {}
        self.peaks: dict[Key, int] = {}
        self.failed: dict[Key, str] = {}

    def run(self, count: int, beside: Sequence[str], pytorch_budgets: Sequence[float], measure: bool) -> Pareto:
        joints: list[Joint] = []
        self._add(_WHOLE, self._by_litz(None, lambda joint: joints.append(_copy(joint))))
        joint = _only(joints)
        arguments = bytes_of_arguments(joint)
        if "eager" in beside:
            self._add(("eager", None), self.subject.step())
        if "checkpoint" in beside:
            self._add(("checkpoint", None), self._under_checkpoints())
        for budget in pytorch_budgets if "inductor" in beside else ():
            self._add(("inductor", budget), self._by_inductor(budget))
        machine = self._machine()
        foretold = self._foretold(joint, count, machine)
        for point in foretold if measure else ():
            if point.budget is not None:
                self._add(("litz", point.budget), self._by_litz(point.budget))
        seconds = seconds_of_steps(self.steps, _ROUNDS, self.subject.device)
        self.subject.forget()
        points = {
            (p.way, p.budget): replace(p, predicted_seconds=p.seconds and p.seconds * seconds[_WHOLE]) for p in foretold
        }
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
    def _by_litz(self, budget: float | None, keep: Callable[[Joint], None] | None = None) -> Step:
        """`keep` is given the graph that is about to be split."""
        asked = {**self.options, "memory_budget": budget}
        if budget is None:
            asked.pop("offload", None)
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

    def _foretold(self, joint: Joint, count: int, machine: Machine) -> list[Point]:
        """Levels of the plan, the largest peak first, each with less than those before; seconds are in steps with all
        kept."""
        ctx = unheard(Context(self.parsed, machine))
        bounded = unheard(Context(replace(self.parsed, memory_budget=machine.memory_bytes), machine))
        policy, limits = policy_of(ctx), ceilings(machine)
        levels = plan(joint, policy)
        last = levels.count - 1
        whole = 1.0
        points: list[Point] = []
        for level in sorted({round(last * i / max(count - 1, 1)) for i in range(count)}):
            policy_there, there = at_level(levels, level, policy), bounded if level else ctx
            found = foretell(_copy(joint), policy_there, there, scheduled, workspace_of)
            least = sum(duration(program, limits) for program in found.programs)
            whole = whole if level else least
            peak = found.peak.bytes
            if not points or peak < points[-1].predicted_bytes:  # type: ignore[operator]
                points.append(Point("litz", peak if level else None, peak, least / whole))
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
    budget = float("inf") if point.budget is None else point.budget
    return ("litz", *BESIDE).index(point.way), -budget


def _row(point: Point) -> tuple[str, ...]:
    return (
        point.way, point.spelled, _bytes(point.predicted_bytes), _milliseconds(point.predicted_seconds),
        _bytes(point.measured_bytes), _milliseconds(point.measured_seconds),
    )  # fmt: skip


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Words to the left, numbers to the right."""
    cells = [cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
    return "  ".join(cells).rstrip()


def _bytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:,.1f} MiB"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.1f} ms"


__all__ = ["Pareto", "Point", "pareto"]
