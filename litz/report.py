"""What one compile tells the user, and the reports of all compiles of the process.

In: what a `Context` wrote down. Out: a frozen `Report` that prints well; `reports()` has one for every graph that was
compiled, a model with graph breaks having many.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_LOG = logging.getLogger(__name__)  # with TORCH_LOGS="litz"


class Firing(NamedTuple):
    """A rewrite rule that applied `times` times; `file` and `line` say where the rule is written."""

    rule: str
    file: str
    line: int
    times: int


class NearMiss(NamedTuple):
    """A rule that nearly applied: how many nodes matched, and the node and reason that stopped it."""

    rule: str
    node: str
    why: str
    matched: int
    source: str | None


class Fallback(NamedTuple):
    """An operator that was called as it is, why, and the user's line it came from."""

    operator: str
    why: str
    source: str | None


class Snapshot(NamedTuple):
    """The text of the program after a stage."""

    stage: str
    text: str


class Break(NamedTuple):
    """A graph break: what Dynamo says of it, and the user's line."""

    why: str
    source: str | None


class Occasion(NamedTuple):
    """What was compiled and why: the first of the user's lines in it, whether gradients were asked for, and what
    Dynamo found changed since it compiled the same function before. `function`: where that is written, and its name;
    `capture`: Dynamo's number for it, and for which of its compiles this is ("0/1" is the second of the first
    function); `ends`: the graph break that the graph ends with, if it does."""

    source: str | None = None
    training: bool = False
    why: str = "the first call"
    function: str | None = None
    capture: str | None = None
    ends: Break | None = None

    @property
    def place(self) -> str:
        """The file and the line, without what is written there."""
        return "a function" if self.source is None else ":".join(self.source.split(":")[:2])


class Memory(NamedTuple):
    """What a run of a program takes beyond its arguments, in bytes: `peak` at most (in `step`, of which the `largest`
    hold most), `left` when it has run. `arena` is there throughout, or until large memory is due that it need not wait
    for: `busy` is the most with it, `late` without."""

    arena: int = 0
    peak: int = 0
    left: int = 0
    step: str = ""
    largest: tuple[tuple[str, int], ...] = ()
    busy: int = 0
    late: int = 0


class Built(NamedTuple):
    """One native program: its part (forward or backward), what a run of it launches, how many different kernels that
    takes, its arena, and all memory that it takes."""

    part: str
    kernels: int
    kernels_built: int
    calls: Mapping[str, int]
    arena_bytes: int
    memory: Memory = Memory()


class Stays(NamedTuple):
    """A parameter or buffer that is no constant of a frozen program: its place among the arguments, name, and why."""

    place: int
    name: str
    why: str


class Freezing(NamedTuple):
    """What freezing did: how many arguments became constants, which are `kept`, by index, and why parameters and
    buffers are among those; how many constants the program reads, and how many of them are computed of others."""

    frozen: int = 0
    kept: tuple[int, ...] = ()
    stays: tuple[Stays, ...] = ()
    constants: int = 0
    computed: int = 0


class Told(NamedTuple):
    """What a compile has to say that holds wherever its result is used."""

    firings: tuple[Firing, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    notes: tuple[str, ...] = ()
    freezing: Freezing | None = None
    again_seconds: float | None = None


@dataclass(frozen=True)
class Report:
    """What a compile produced. `kernels` and `calls` count what one run of the program launches, forward and, once it
    was compiled, backward; `peak_bytes` is the most memory that a call, or a step with its backward, takes beyond its
    arguments. `left_to_eager` says why nothing was compiled, if so; `graphs` which calls were captured as CUDA graphs,
    or why not, once it is known; `cache` whether it was there already, or else how it differs from what was;
    `freezing` which arguments became constants, where that was asked for; `again_seconds` what of a step computing
    again takes, as foreseen, where a bound on the peak was asked for."""

    occasion: Occasion = Occasion()
    built: tuple[Built, ...] = ()
    left_to_eager: str | None = None
    kernels: int = 0
    kernels_built: int = 0
    calls: tuple[tuple[str, int], ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    arena_bytes: int = 0
    peak_bytes: int = 0
    timings: tuple[tuple[str, float], ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    firings: tuple[Firing, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    notes: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ()
    cache: tuple[str, ...] = ()
    freezing: Freezing | None = None
    again_seconds: float | None = None
    target: str = ""
    fuel_left: int | None = None
    last_spent: str | None = None
    spent: tuple[str, ...] = ()  # all of them, in order, where fuel is counted

    @property
    def launches(self) -> int:
        """Everything one run starts: kernels and operator calls together."""
        return self.kernels + sum(count for _, count in self.calls)

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.timings)

    @property
    def title(self) -> str:
        """One line: what it is of, which parts of it were compiled, and why."""
        kind = "training" if self.occasion.training else "inference"
        cut = any(note.startswith("cut in pieces") for note in self.notes)
        parts = " and ".join(dict.fromkeys(built.part for built in self.built)) or ("pieces" if cut else "nothing")
        where = f" of {self.occasion.source}" if self.occasion.source else ""
        return f"{kind}, {parts}{where}; because: {self.occasion.why}"

    @property
    def line(self) -> str:
        """What a log has of it, besides the time."""
        what = f"{self.kernels} kernels and {self.launches - self.kernels} calls"
        return f"{self.title}: {what if self.left_to_eager is None else f'left to eager: {self.left_to_eager}'}"

    def snapshot(self, stage: str) -> str:
        """The text after `stage`."""
        for found in self.snapshots:
            if found.stage == stage:
                return found.text
        kept = ", ".join(found.stage for found in self.snapshots) or "none; compile with snapshots=True"
        raise KeyError(f"no snapshot of stage {stage!r} (kept: {kept})")

    def __str__(self) -> str:
        lines = [f"Litz compiled for {self.target or 'an unknown target'} in {self.seconds * 1e3:.1f} ms"]
        lines.append(f"  {self.title}")
        lines.append(f"  kernels: {self.kernels} launched a run, {self.kernels_built} built")
        lines.append(f"  arena: {self.arena_bytes:,} bytes")
        lines.append(f"  peak: {self.peak_bytes:,} bytes beyond arguments")
        lines += _section("frozen", _freezing_lines(self.freezing))
        lines += _section("operator calls a run", [f"{name} × {count}" for name, count in self.calls])
        lines += _section("fallbacks", [_fallback_line(fallback) for fallback in self.fallbacks])
        lines += _section("rules fired", [_firing_line(firing) for firing in self.firings])
        lines += _section("rules that nearly applied", [_near_miss_line(miss) for miss in self.near_misses])
        lines += _section("stages", [f"{stage}: {seconds * 1e3:.1f} ms" for stage, seconds in self.timings])
        lines += _section("notes", list(self.notes))
        lines += _section("CUDA graphs", list(self.graphs))
        lines += _section("cache", list(self.cache))
        if self.fuel_left is not None:
            lines.append(f"  fuel left: {self.fuel_left}; last spent on: {self.last_spent or 'nothing'}")
        return "\n".join(lines)


def _section(title: str, items: list[str]) -> list[str]:
    return [f"  {title}:", *(f"    {item}" for item in items)] if items else []


def _freezing_lines(freezing: Freezing | None) -> list[str]:
    if freezing is None:
        return []
    kept = ", ".join(map(str, freezing.kept)) or "none"
    lines = [
        f"{freezing.frozen} arguments are constants; those that stay, by index: {kept}",
        f"{freezing.constants} constants are read, of which {freezing.computed} are computed of others, once",
    ]
    return lines + [f"argument {one.place}, {one.name}, stays: {one.why}" for one in freezing.stays]


def _fallback_line(fallback: Fallback) -> str:
    where = f" ({fallback.source})" if fallback.source else ""
    return f"{fallback.operator}: {fallback.why}{where}"


def _near_miss_line(miss: NearMiss) -> str:
    where = f" ({miss.source})" if miss.source else ""
    return f"{miss.rule}: stopped at {miss.node} after {miss.matched} nodes: {miss.why}{where}"


def _firing_line(firing: Firing) -> str:
    where = f" ({firing.file}:{firing.line})" if firing.file else ""
    return f"{firing.rule} × {firing.times}{where}"


def step_peak(forward: Memory, backwards: Iterable[Memory]) -> int:
    """Of a forward and a backward: what the one leaves is there while the other runs, and so is the larger arena."""
    found = forward.peak
    for behind in backwards:
        arena = max(forward.arena, behind.arena)
        found = max(found, forward.left + arena + behind.busy - behind.arena, forward.left + behind.late)
    return found


class History:
    """The latest reports of the process, in the order of their compiles; one that is made anew, when the backward
    follows, keeps its place. For the user's convenience only: no stage reads it."""

    def __init__(self, most: int = 1000):
        self._most = most
        self._reports: dict[int, Report] = {}
        self._latest: Report | None = None
        self._lock = threading.Lock()

    def keep(self, compile: int, report: Report) -> None:
        before = self._reports.get(compile)
        if _LOG.isEnabledFor(logging.INFO) and (before is None or before.line != report.line):
            _LOG.info("%s, %.0f ms", report.line, report.seconds * 1e3)
            _LOG.debug("%s", report)
        with self._lock:
            self._reports[compile] = self._latest = report
            while len(self._reports) > self._most:
                del self._reports[next(iter(self._reports))]

    def clear(self) -> None:
        with self._lock:
            self._reports.clear()
            self._latest = None

    def all(self) -> tuple[Report, ...]:
        with self._lock:
            return tuple(self._reports.values())

    def mark(self) -> int:
        """For `since`. Counting reports would not do: the first of them go when there are many."""
        with self._lock:
            return max(self._reports, default=-1)

    def since(self, mark: int) -> tuple[Report, ...]:
        """Of the compiles that have begun after it."""
        with self._lock:
            return tuple(report for compile, report in self._reports.items() if compile > mark)

    @property
    def latest(self) -> Report | None:
        with self._lock:
            return self._latest


HISTORY = History()


def last_report() -> Report | None:
    """The report of the latest compile in this process, or None before the first."""
    return HISTORY.latest


def reports() -> tuple[Report, ...]:
    """A report for every graph compiled in this process (the latest thousand), in the order of their compiles."""
    return HISTORY.all()
