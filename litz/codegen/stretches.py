"""How long sums are cut: each stretch is summed by itself, so that no accumulator takes in many numbers.

In: how far a loop goes, and its step. Out: the lengths of its stretches, the longest first; each is cut into those that
follow. Where a size is known only at run time, the same instructions must do for all: as many cuts, each into as many
parts as the size asks for.
"""

from __future__ import annotations

SHORT_SUM = 4  # two to this many steps are added up at a time, where a floating-point sum has many more
CUTS = 2  # how often a sum over a size known only at run time is cut


def stretches(size: int, step: int) -> list[int]:
    levels = max((size // step).bit_length() - SHORT_SUM + 1, 0) // SHORT_SUM
    return [step << (level * SHORT_SUM) for level in range(levels, 0, -1)]


def stretches_at_run_time(size: int, step: int) -> list[int]:
    power = max(((size // step).bit_length() + CUTS) // (CUTS + 1), SHORT_SUM)
    return [step << (level * power) for level in range(CUTS, 0, -1)]


__all__ = ["CUTS", "SHORT_SUM", "stretches", "stretches_at_run_time"]
