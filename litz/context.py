"""What one compile knows about itself, to tell the user afterwards.

In: the options and the target. Out: a frozen `Report`.

A `Context` is created for each compile and handed from stage to stage; nothing looks it up. Stages write
down what they did (timings, snapshots, rules fired, fallbacks) and ask it for fuel before every
optimisation, so that a wrong result can be bisected to one rewrite.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from litz.options import Options
from litz.progress import Progress, progress_of
from litz.report import (
    HISTORY,
    Built,
    Fallback,
    Firing,
    Freezing,
    Memory,
    NearMiss,
    Occasion,
    Report,
    Snapshot,
    Told,
    step_peak,
)  # fmt: skip
from litz.structured import compile_id_now, is_traced, trace_artifact
from litz.target import Machine
from litz.watch import Watcher

_LOG = logging.getLogger(__name__)  # with TORCH_LOGS="+litz", or "+litz.context" alone
_ALL, _TEXTS = logging.getLogger("litz"), logging.getLogger("litz.stages")  # the latter with TORCH_LOGS="+litz.stages"
SPENT, FIRED = "optimisation: %s", "rule %s applied (%s:%d)"  # what is logged; of the first if they are counted


class Lasting(Protocol):
    """What outlives the process: `runtime/cache.py`."""

    def load(self, kind: str, key: str) -> Any | None: ...

    def store(self, kind: str, key: str, value: Any, entries: Mapping[str, str] | None = None) -> None: ...

    def differences(self, kind: str, entries: Mapping[str, str]) -> Sequence[object]: ...


@dataclass
class Context:
    options: Options
    target: Machine
    cache: Lasting | None = None
    key: str | None = None  # of what is compiled, in the cache
    timings: dict[str, float] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    firings: list[Firing] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    near_misses: dict[NearMiss, None] = field(default_factory=dict)  # in order, each once
    notes: list[str] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)  # which calls were captured as CUDA graphs, and which not
    recalling: list[str] = field(default_factory=list)  # what the cache was asked, and what came of it
    fuel: int | None = field(init=False)
    spent: list[str] = field(default_factory=list)
    built: list[Built] = field(default_factory=list)  # a forward, and a backward once it is needed
    occasion: Occasion = Occasion()
    state: Mapping[int, str] = field(default_factory=dict)  # inputs that are parameters or buffers: place -> name
    zeros: Collection[int] = ()  # of these, whole numbers that are zero throughout
    freezing: Freezing | None = None
    again_seconds: float | None = None
    left_to_eager: str | None = None
    dumped: int = 0  # texts that were written to files
    watcher: Watcher | None = None  # who is shown what stages make
    progress: Progress | None = None  # who is told of stages as they begin
    compile_id: Any = field(default_factory=compile_id_now)  # Dynamo's
    traced: int = 0  # texts that were written to the structured trace
    number: int = field(default_factory=itertools.count().__next__)  # of this compile, in the process

    def __post_init__(self) -> None:
        self.fuel = self.options.fuel

    def begin_again(self) -> None:
        """The stages start anew: what they have said so far is of no result."""
        fresh = Context(self.options, self.target)
        found = ("timings", "snapshots", "firings", "fallbacks", "near_misses", "notes", "fuel", "spent", "built")
        for name in (*found, "freezing", "again_seconds"):
            setattr(self, name, getattr(fresh, name))
        if self.watcher is not None:
            self.watcher.begins_again()

    def spend(self, what: str) -> bool:
        """Whether one more optimisation may be applied. Without a limit, always; the last one is remembered."""
        if self.fuel is None:
            return True
        if self.fuel == 0:
            return False
        self.fuel -= 1
        self.spent.append(what)
        _LOG.debug(SPENT, what)
        return True

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Has the stages that run in the block be shown on the terminal, if they take long."""
        before = self.progress
        with progress_of(self.occasion.place, self.options.progress and before is None) as progress:
            self.progress = progress or before
            try:
                yield
            finally:
                self.progress = before

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the seconds of the block to the stage's, also when it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.timings[stage] = self.timings.get(stage, 0.0) + seconds
            _LOG.debug("stage %s: %.1f ms", stage, seconds * 1e3)

    def snapshot(self, stage: str, text: str | Callable[[], str]) -> None:
        """Keeps the text, or writes it to a file, if the options ask for it; a function is only called then."""
        is_logged = _TEXTS.level == logging.DEBUG != _ALL.level  # by name, and not with all others: these are long
        if not (self.options.snapshots or self.options.dump is not None or is_logged or is_traced()):
            return
        text = text if isinstance(text, str) else text()
        if is_logged:
            _TEXTS.debug("after stage %s:\n%s", stage, text)
        trace_artifact(f"litz_{self.traced:02}_{stage}", lambda: text, self.compile_id)
        self.traced += 1
        if self.options.snapshots:
            self.snapshots.append(Snapshot(stage, text))
        if self.options.dump is not None:
            try:
                self._dump(Path(self.options.dump), stage, text)
            except OSError as error:
                self.note_once(f"stages are not written to {self.options.dump}: {error.strerror or error}")

    def _dump(self, folder: Path, stage: str, text: str) -> None:
        """A folder for each compile of each process; what it is of stands in front of the text of its first stage."""
        folder = folder / f"{os.getpid()}_{self.number:03}"
        folder.mkdir(parents=True, exist_ok=True)
        head = f"# {self.report().title}\n" if not self.dumped else ""
        (folder / f"{self.dumped:02}_{stage}.txt").write_text(f"{head}{text}\n")
        self.dumped += 1

    def fired(self, rule: str, file: str = "", line: int = 0, count: int = 1) -> None:
        """Records that a rule applied; repeated firings of one rule are counted together."""
        _LOG.debug(FIRED, rule, file, line)
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

    def note_once(self, text: str) -> None:
        """What holds of a forward may hold of its backward."""
        if text not in self.notes:
            self.notes.append(text)

    def tell_of_graphs(self, text: str) -> None:
        """Said while the program is in use."""
        if text not in self.graphs:
            self.graphs.append(text)
            self.publish()

    def leave(self, why: str) -> None:
        """Nothing is compiled: what was captured runs as the user wrote it."""
        self.left_to_eager = why
        self.note(f"left to eager: {why}")

    def told(self) -> Told:
        missed, fell_back = tuple(self.near_misses), tuple(self.fallbacks)
        return Told(tuple(self.firings), missed, fell_back, tuple(self.notes), self.freezing, self.again_seconds)

    def recalled(self, told: Told, built: Built) -> None:
        """Nothing was compiled: this is what was said of it when it was."""
        self.firings += told.firings
        self.near_misses.update(dict.fromkeys(told.near_misses))
        self.fallbacks += told.fallbacks
        self.notes += told.notes
        self.freezing, self.again_seconds = told.freezing, told.again_seconds
        self.recalling.append("from the cache")
        self.built.append(built)
        self.publish()

    def publish(self) -> None:
        """Have the report, complete as of now, among those of the process."""
        report = self.report()
        HISTORY.keep(self.number, report)
        trace_artifact("litz_report", lambda: str(report), self.compile_id)
        trace_artifact("litz_seconds", lambda: json.dumps(dict(report.timings)), self.compile_id, "json")

    def report(self) -> Report:
        """The report of this compile, complete as of now."""
        calls: dict[str, int] = {}
        for built in self.built:
            for name, count in built.calls.items():
                calls[name] = calls.get(name, 0) + count
        return Report(
            occasion=self.occasion,
            built=tuple(self.built),
            left_to_eager=self.left_to_eager,
            kernels=sum(b.kernels for b in self.built),
            kernels_built=sum(b.kernels_built for b in self.built),
            calls=tuple(sorted(calls.items())),
            fallbacks=tuple(self.fallbacks),
            arena_bytes=max((b.arena_bytes for b in self.built), default=0),
            peak_bytes=step_peak(
                next((b.memory for b in self.built if b.part != "backward"), Memory()),
                [b.memory for b in self.built if b.part == "backward"],
            ),
            timings=tuple(self.timings.items()),
            snapshots=tuple(self.snapshots),
            firings=tuple(self.firings),
            near_misses=tuple(self.near_misses),
            notes=tuple(self.notes),
            graphs=tuple(self.graphs),
            cache=tuple(self.recalling),
            freezing=self.freezing,
            again_seconds=self.again_seconds,
            target=str(self.target),
            fuel_left=self.fuel,
            last_spent=self.spent[-1] if self.spent else None,
            spent=tuple(self.spent),
        )
