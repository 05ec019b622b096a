"""What one compile knows about itself, and what it tells the user afterwards.

In: the options and the target. Out: a frozen `Report`.

A `Context` is created for each compile and handed from stage to stage; nothing looks it up. Stages write
down what they did (timings, snapshots, rules fired, fallbacks) and ask it for fuel before every
optimisation, so that a wrong result can be bisected to one rewrite.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from litz.options import Options
from litz.target import Target


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


class Built(NamedTuple):
    """One native program: what a run of it launches, how many different kernels that takes, its arena."""

    kernels: int
    kernels_built: int
    calls: Mapping[str, int]
    arena_bytes: int


@dataclass
class Context:
    options: Options
    target: Target
    timings: dict[str, float] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    firings: list[Firing] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    near_misses: dict[NearMiss, None] = field(default_factory=dict)  # in order, each once
    notes: list[str] = field(default_factory=list)
    fuel: int | None = field(init=False)
    spent: list[str] = field(default_factory=list)
    built: list[Built] = field(default_factory=list)  # a forward, and a backward once it is needed

    def __post_init__(self) -> None:
        self.fuel = self.options.fuel

    def spend(self, what: str) -> bool:
        """Whether one more optimisation may be applied. Without a limit, always; the last one is remembered."""
        if self.fuel is None:
            return True
        if self.fuel == 0:
            return False
        self.fuel -= 1
        self.spent.append(what)
        return True

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the seconds of the block to the stage's, also when it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.timings[stage] = self.timings.get(stage, 0.0) + time.perf_counter() - start

    def snapshot(self, stage: str, text: str | Callable[[], str]) -> None:
        """Keeps the text if the options ask for snapshots; a function is only called then."""
        if self.options.snapshots:
            self.snapshots.append(Snapshot(stage, text if isinstance(text, str) else text()))

    def fired(self, rule: str, file: str = "", line: int = 0, count: int = 1) -> None:
        """Records that a rule applied; repeated firings of one rule are counted together."""
        for position, firing in enumerate(self.firings):
            if (firing.rule, firing.file, firing.line) == (rule, file, line):
                self.firings[position] = firing._replace(times=firing.times + count)
                return
        self.firings.append(Firing(rule, file, line, count))

    def missed(self, rule: str, node: str, why: str, matched: int, source: str | None = None) -> None:
        """Records a near miss; the same rule stopped at the same node by the same thing counts once."""
        self.near_misses[NearMiss(rule, node, why, matched, source)] = None

    def fallback(self, operator: str, why: str, source: str | None = None) -> None:
        self.fallbacks.append(Fallback(operator, why, source))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def report(self) -> Report:
        """The report of this compile, complete as of now."""
        calls: dict[str, int] = {}
        for built in self.built:
            for name, count in built.calls.items():
                calls[name] = calls.get(name, 0) + count
        return Report(
            kernels=sum(b.kernels for b in self.built),
            kernels_built=sum(b.kernels_built for b in self.built),
            calls=tuple(sorted(calls.items())),
            fallbacks=tuple(self.fallbacks),
            arena_bytes=max((b.arena_bytes for b in self.built), default=0),
            timings=tuple(self.timings.items()),
            snapshots=tuple(self.snapshots),
            firings=tuple(self.firings),
            near_misses=tuple(self.near_misses),
            notes=tuple(self.notes),
            target=str(self.target),
            fuel_left=self.fuel,
            last_spent=self.spent[-1] if self.spent else None,
        )


@dataclass(frozen=True)
class Report:
    """What a compile produced. `kernels` and `calls` count what one run of the program launches."""

    kernels: int = 0
    kernels_built: int = 0
    calls: tuple[tuple[str, int], ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    arena_bytes: int = 0
    timings: tuple[tuple[str, float], ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    firings: tuple[Firing, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    notes: tuple[str, ...] = ()
    target: str = ""
    fuel_left: int | None = None
    last_spent: str | None = None

    @property
    def launches(self) -> int:
        """Everything one run starts: kernels and operator calls together."""
        return self.kernels + sum(count for _, count in self.calls)

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.timings)

    def snapshot(self, stage: str) -> str:
        """The text after `stage`."""
        for found in self.snapshots:
            if found.stage == stage:
                return found.text
        kept = ", ".join(found.stage for found in self.snapshots) or "none; compile with snapshots=True"
        raise KeyError(f"no snapshot of stage {stage!r} (kept: {kept})")

    def __str__(self) -> str:
        lines = [f"Litz compiled for {self.target or 'an unknown target'} in {self.seconds * 1e3:.1f} ms"]
        lines.append(f"  kernels: {self.kernels} launched a run, {self.kernels_built} built")
        lines.append(f"  arena: {self.arena_bytes:,} bytes")
        lines += _section("operator calls a run", [f"{name} × {count}" for name, count in self.calls])
        lines += _section("fallbacks", [_fallback_line(fallback) for fallback in self.fallbacks])
        lines += _section("rules fired", [_firing_line(firing) for firing in self.firings])
        lines += _section("stages", [f"{stage}: {seconds * 1e3:.1f} ms" for stage, seconds in self.timings])
        lines += _section("notes", list(self.notes))
        if self.fuel_left is not None:
            lines.append(f"  fuel left: {self.fuel_left}; last spent on: {self.last_spent or 'nothing'}")
        return "\n".join(lines)


def _section(title: str, items: list[str]) -> list[str]:
    return [f"  {title}:", *(f"    {item}" for item in items)] if items else []


def _fallback_line(fallback: Fallback) -> str:
    where = f" ({fallback.source})" if fallback.source else ""
    return f"{fallback.operator}: {fallback.why}{where}"


def _firing_line(firing: Firing) -> str:
    where = f" ({firing.file}:{firing.line})" if firing.file else ""
    return f"{firing.rule} × {firing.times}{where}"


# The one process-wide value, for the user's convenience only: no stage reads it.
_latest: Report | None = None
_latest_lock = threading.Lock()


def set_last_report(report: Report) -> None:
    global _latest
    with _latest_lock:
        _latest = report


def last_report() -> Report | None:
    """The report of the latest compile in this process, or None before the first."""
    with _latest_lock:
        return _latest
