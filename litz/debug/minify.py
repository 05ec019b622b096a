"""`minify`: the smallest program that fails as a large one does.

In: what `litz.debug_compile` has saved. Out: one file of a few lines, which shows the failure when it is run, and says
which optimisation is behind it.

First fuel: by how many optimisations may be applied, it is found which one the failure comes with. Then nodes, then
sizes. At each step the failure must stay what it was: of the same kind and type, in the same stage, and with the same
optimisation applied. Candidates run in processes of their own, so a failure may be anything: an exception, wrong
numbers, a signal, no end, or only slowness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from litz.debug.reduce import (
    Ahead,
    bypassing,
    described,
    sharing_inputs,
    with_smaller_sizes,
    without_graphs_inside,
    without_nodes,
    without_results,
)
from litz.debug.reproduce import LEAST_LOSS, Symptom
from litz.debug.reproduction import Reproduction
from litz.debug.trials import Trials
from litz.errors import LitzError

MOST_FUEL = 1 << 20
_CLEARLY = 6  # times the least loss: what is slow is slow on a day when less else is done, too
_SLACK, _TIMES = 2.0, 2.0  # what has no end in a stage gets these seconds, and so many times what it took to get there


class NothingToMinify(LitzError, RuntimeError):
    """The program does not fail, or fails in eager too."""


@dataclass(frozen=True)
class Culprit:
    """The optimisation without which the failure is not there: which one, counted from 1, and what it said it does."""

    number: int
    name: str

    @property
    def rule(self) -> str:
        return self.name.partition(" at ")[0]

    def __str__(self) -> str:
        return f"optimisation number {self.number}: {self.name}" if self.name else f"optimisation number {self.number}"


@dataclass(frozen=True)
class Minified:
    file: Path
    reproduction: Reproduction
    symptom: Symptom
    culprit: Culprit | None
    trials: int

    def __str__(self) -> str:
        behind = f"\n  applied last: {self.culprit}" if self.culprit else ""
        head = f"{self.file}: {self.reproduction.calls} calls, found in {self.trials} trials"
        return f"{head}\n  {self.symptom}{behind}"


def minify(
    what: Path | str, *, folder: Path | str | None = None, limit: float = 60.0, slower_than: float | None = None,
    tell: Callable[[str], None] = print,
) -> Minified:  # fmt: skip
    """`what`: the folder or file of a reproduction. All that is tried is written down in `folder` (beside it, unless
    said otherwise), so that a second call goes on where a first was stopped. `limit`: seconds of work after which a run
    has no end. `slower_than`: how many times eager's time is a failure."""
    what, folder = _places(what, folder)
    with Trials(folder, limit) as trials:
        start = _read(what, folder, slower_than)
        wanted = _failure(start, trials)
        tell(f"it fails: {wanted}")
        culprit = bisect_fuel(start, wanted, trials)
        tell(f"it comes with {culprit}" if culprit else "it is there without any optimisation")
        best = _smallest(start, wanted, culprit, trials, folder, tell)
        if not trials(best).is_like(wanted):  # it would have come to an end after all: all get their time then
            best = _smallest(start, wanted, culprit, trials, folder, tell, patient=True)
        symptom = trials(best)
        file = folder / "minified.py"
        file.write_text(best.text(_title(symptom, culprit), files=folder))
        return Minified(file, best, symptom, culprit, trials.run)


def bisect(
    what: Path | str, *, folder: Path | str | None = None, limit: float = 60.0, slower_than: float | None = None
) -> tuple[Symptom, Culprit | None]:
    """The failure of a reproduction, and the optimisation it comes with; None if it is there without any."""
    what, folder = _places(what, folder)
    with Trials(folder, limit) as trials:
        start = _read(what, folder, slower_than)
        wanted = _failure(start, trials)
        return wanted, bisect_fuel(start, wanted, trials)


def _places(what: Path | str, folder: Path | str | None) -> tuple[Path, Path]:
    what = Path(what).absolute()
    return what, Path(folder).absolute() if folder is not None else what.with_name(f"{what.stem}_minified")


def _read(what: Path, folder: Path, slower_than: float | None) -> Reproduction:
    start = Reproduction.read(what, folder)
    return start if slower_than is None else replace(start, slower_than=slower_than)


def _failure(start: Reproduction, trials: Trials) -> Symptom:
    # Whether it fails without any optimisation is asked next; where times do not matter, meanwhile.
    both = [start, _with_fuel(start, 0)][: trials.width if start.slower_than is None else 1]
    symptom = trials.together(both, again=True)[0]
    if symptom.kind in ("none", "invalid"):
        raise NothingToMinify(
            f"there is no failure of Litz to look for: {symptom}",
            hint="a failure that depends on numbers needs the inputs themselves; one of speed needs slower_than",
        )
    return symptom


def bisect_fuel(start: Reproduction, wanted: Symptom, trials: Trials) -> Culprit | None:
    """The optimisation that the failure comes with. Without any there is none to blame."""

    patience = _patience(wanted)

    def tried(*fuel: int) -> list[Symptom]:
        return trials.together([_with_fuel(start, n) for n in fuel], patience, again=True)

    (below,), above = tried(0), wanted
    if below.is_like(wanted):
        return None
    most = len(wanted.spent) or 1  # with so much it has failed
    while not wanted.spent and not (above := tried(most)[0]).is_like(wanted):
        most *= 2
        if most > MOST_FUEL:
            return None  # it comes and goes
    least = 0
    while most - least > 1:
        parts = 1 + (1 if wanted.kind == "slow" else trials.width)  # one at a time where it is their time that counts
        points = sorted({least + (most - least) * part // parts for part in range(1, parts)} - {least})
        for middle, found in zip(points, tried(*points), strict=True):
            if _comes_by(found, below, above, wanted):
                most, above = middle, found
                break
            least, below = middle, found
    (found,) = tried(most)
    if not _comes_by(found, below, found, wanted):
        return None
    # Fewer are known where one did not get as far as to say so.
    return Culprit(most, found.spent[-1] if len(found.spent) >= most else "")


def _with_fuel(start: Reproduction, fuel: int) -> Reproduction:
    return replace(start, options={**start.options, "fuel": fuel})


def _comes_by(found: Symptom, below: Symptom, above: Symptom, wanted: Symptom) -> bool:
    """Whether the failure comes with an optimisation between the one below and this. Slowness adds up: there it is the
    side on which more is lost, and not where it begins to count as slow; by its own time, as eager's varies."""
    if wanted.kind != "slow":
        return found.is_like(wanted)
    return found.call - below.call > max(above.call - found.call, 0.0)


def _patience(found: Symptom) -> float | None:
    """How long a trial that is no larger than this one may work; None: as long as any."""
    return _SLACK + _TIMES * found.seconds if found.kind == "hang" else None


def _smallest(
    start: Reproduction, wanted: Symptom, culprit: Culprit | None, trials: Trials, folder: Path,
    tell: Callable[[str], None], patient: bool = False,
) -> Reproduction:  # fmt: skip
    rule = culprit.rule if culprit is not None and culprit.name else None

    patience = None if patient else _patience(wanted)

    def shows(candidate: Reproduction) -> bool:
        nonlocal patience
        found = trials(candidate, patience)
        applied = rule is None or any(s.partition(" at ")[0] == rule for s in found.spent)
        clear = wanted.kind != "slow" or found.seconds >= min(wanted.seconds, _CLEARLY * LEAST_LOSS)
        if found.is_like(wanted) and applied and clear:
            patience = None if patient else _patience(found)
            return True
        return False

    def ahead(candidates: list[Reproduction]) -> None:
        if wanted.kind != "slow" and trials.width > 1:
            trials.together(candidates, patience)

    best = start
    while True:
        before = (best.calls, best.given)
        for name, step in _steps(folder, ahead):
            best = step(best, shows)
            tell(f"{name}: {best.calls} calls, {len(best.given)} inputs, after {trials.run} trials")
        if (best.calls, best.given) == before:
            return best


def _steps(folder: Path, ahead: Ahead) -> tuple[tuple[str, Callable[..., Any]], ...]:
    return (
        ("fewer nodes", lambda best, shows: without_nodes(best, shows, folder, ahead)),
        ("fewer results", without_results),
        ("fewer graphs inside", without_graphs_inside),
        ("shorter ways", bypassing),
        ("described", described),
        ("smaller sizes", with_smaller_sizes),
        ("fewer inputs", sharing_inputs),
    )


def _title(symptom: Symptom, culprit: Culprit | None) -> str:
    import torch

    from litz import __version__

    behind = f" Applied last: {culprit}." if culprit else ""
    said = f"Litz {__version__}, torch {torch.__version__}: {symptom}.{behind}"
    return said.replace("\\", "/").replace('"', "'")


__all__ = ["Culprit", "Minified", "NothingToMinify", "bisect", "bisect_fuel", "minify"]
