"""A bound on the peak, in bytes: the least time lost that stays within it.

In: how much memory a step takes if a fraction of what would be kept is kept, foretold and as compiled. Out: what was
compiled with the first fraction that fits.

The fractions are the same whatever the bound, and each loses more time than the one before. So a larger bound never
costs more time, and a smaller one never leads to a higher peak.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from litz.errors import OptionError

Compiled = TypeVar("Compiled")
FRACTIONS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.12, 0.1, 0.08, 0.06, 0.04, 0.02, 0.0)


class Peak(NamedTuple):
    """Of a step: its bytes, arguments included, and the largest of what is held then."""

    bytes: int
    largest: tuple[tuple[str, int], ...] = ()


class Fitting(NamedTuple):
    fraction: float
    peak: Peak


def within_peak(
    most: int, foretold: Callable[[float], Peak], compiled: Callable[[float], tuple[Compiled, Peak]]
) -> tuple[Compiled, Fitting]:
    """`foretold` takes no code generation, and so leaves out what only that knows: it is asked first."""
    least: Peak | None = None
    for fraction in FRACTIONS:
        peak = foretold(fraction)
        if peak.bytes <= most:
            result, peak = compiled(fraction)
            if peak.bytes <= most:
                return result, Fitting(fraction, peak)
        least = peak if least is None or peak.bytes < least.bytes else least
    assert least is not None
    holding = ", ".join(f"{name} ({size:,} bytes)" for name, size in least.largest)
    raise OptionError(
        f"memory_budget is {most:,} bytes, and a step takes {least.bytes:,} at least, arguments and gradients included",
        hint=f"the peak is set by {holding}" if holding else "arguments alone take as much",
    )


__all__ = ["FRACTIONS", "Fitting", "Peak", "within_peak"]
