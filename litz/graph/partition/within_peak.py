"""A bound on the peak, in bytes: the least time lost that stays within it.

In: how much memory a step takes at each level of a plan, foreseen, foretold and as compiled. Out: what was compiled at
the first level that fits.

The levels are the same whatever the bound, and none loses less time than the one before. The search begins where the
peak is foreseen to fit, and goes on until it does, and back as long as it does: so a larger bound never ends at a later
level, and never costs more time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from litz.errors import OptionError

Compiled = TypeVar("Compiled")
_LAST = 8  # levels
_UNFINISHED = "there may be less: the search ran out of time (option 'budget_seconds'); "
_NOTHING_ELSE = "arguments alone take as much"


class Peak(NamedTuple):
    """Of a step: its bytes, arguments included, and the largest of what is held then."""

    bytes: int
    largest: tuple[tuple[str, int], ...] = ()


class Fitting(NamedTuple):
    """`ended`: the search ran out of time; another level that fits may lose less."""

    level: int
    peak: Peak
    ended: bool = False


def within_peak(
    most: int,
    levels: int,
    foreseen: Callable[[int], int],
    foretold: Callable[[int], Peak],
    compiled: Callable[[int], tuple[Compiled, Peak]],
    over: Callable[[], bool] = lambda: False,
) -> tuple[Compiled, Fitting]:
    """`foreseen`: bytes at a level, but for what all have alike. `foretold` follows the program, without code
    generation, and so leaves out what only that knows: it is asked before anything is compiled. Once the time is
    `over`, what fits of what was asked is taken; if nothing does, the last level, which has the least memory."""
    known: dict[int, Peak] = {}

    def fits(level: int) -> bool:
        if level not in known:
            known[level] = foretold(level)
        return known[level].bytes <= most

    start, ended = 0, False
    if not fits(0):
        alike = known[0].bytes - foreseen(0)
        # What is foreseen to be the least need not be: the last ones are all asked.
        latest = max(1, levels - _LAST)
        start = next((n for n in range(1, latest) if foreseen(n) + alike <= most), latest)
        while start > 1 and fits(start) and not (ended := over()) and fits(start - 1):
            start -= 1
    for level in range(start, levels):
        ended = ended or (level not in known and over())
        if ended and level not in known and level < levels - 1:
            continue
        if fits(level):
            result, known[level] = compiled(level)
            if fits(level):
                return result, Fitting(level, known[level], ended)
    # Stated is what that step really takes: who asks for as much gets it.
    least = compiled(min(known, key=lambda level: known[level].bytes))[1]
    holding = ", ".join(f"{name} ({size:,} bytes)" for name, size in least.largest)
    raise OptionError(
        f"memory_budget is {most:,} bytes, and a step takes {least.bytes:,} at least, arguments and gradients included",
        hint=(_UNFINISHED if ended else "") + (f"the peak is set by {holding}" if holding else _NOTHING_ELSE),
    )


__all__ = ["Fitting", "Peak", "within_peak"]
