"""Compiled code against eager: which of the two runs a call, and what their times say.

In: calls, one after the other, and the time each took. Out: who runs the next one, and, after some, a `Verdict`.

Nothing here knows of tensors or clocks. Each call of the user's is run once, by one of the two, so that nothing is done
twice or on copies: what a call writes, draws and returns is what it would be without a race. The first calls are
compiled ones and count for nothing, nor does the first that eager runs: whoever runs first pays for what both use. Then
the two take turns, and the fastest run of each is compared, among calls with the same sizes. Eager wins if it is faster
by more than such times differ by chance. If it is slower by far, one turn is enough.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

COMPILED, EAGER = "compiled", "eager"
WARM = 3  # compiled calls before the first that counts
TURNS = 3  # of each, that are compared
MARGIN = 1.03  # by which the compiled code may be slower: times differ as much by chance
BY_FAR = 1.5
MOST_CALLS = 64  # after which the compiled code is kept, for want of calls that could be compared


@dataclass(frozen=True)
class Verdict:
    winner: str
    compiled: float | None = None  # milliseconds a call, where they are known
    eager: float | None = None

    def __str__(self) -> str:
        if self.compiled is None or self.eager is None:
            return "no calls that could be compared"
        return f"{self.compiled:.3f} ms a call compiled, {self.eager:.3f} in eager"


@dataclass
class _Times:
    """Of calls with the same sizes."""

    begun: dict[str, int] = field(default_factory=lambda: {COMPILED: 0, EAGER: 0})
    found: dict[str, list[float]] = field(default_factory=lambda: {COMPILED: [], EAGER: []})


class Race:
    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self._calls = 0
        self._eager_ran = False
        self._times: dict[Hashable, _Times] = {}

    def next(self, sizes: Hashable) -> tuple[str, bool]:
        """Who runs the next call, and whether it counts."""
        self._calls += 1
        if self._calls <= WARM:
            return COMPILED, False
        if self._calls > MOST_CALLS:
            self.verdict = self.verdict or Verdict(COMPILED)
            return COMPILED, False
        times = self._times.setdefault(sizes, _Times())
        runner = COMPILED if times.begun[COMPILED] <= times.begun[EAGER] else EAGER
        if runner == EAGER and not self._eager_ran:
            self._eager_ran = True
            return EAGER, False
        times.begun[runner] += 1
        return runner, True

    def took(self, sizes: Hashable, runner: str, milliseconds: float, parts: int = 1) -> None:
        """The time of a call that counts. Calls of which other parts are known (of some, no backward was run) are
        compared among themselves."""
        times = self._times.setdefault((sizes, parts), _Times())
        times.found[runner].append(milliseconds)
        if self.verdict is None:
            self.verdict = _judged(times.found[COMPILED], times.found[EAGER])


def _judged(compiled: list[float], eager: list[float]) -> Verdict | None:
    if not compiled or not eager:
        return None
    best = min(compiled), min(eager)
    if best[1] > BY_FAR * best[0]:
        return Verdict(COMPILED, *best)
    if min(len(compiled), len(eager)) < TURNS:
        return None
    return Verdict(EAGER if best[0] > MARGIN * best[1] else COMPILED, *best)


__all__ = ["COMPILED", "EAGER", "Race", "Verdict"]
