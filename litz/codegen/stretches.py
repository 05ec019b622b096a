"""How long sums are cut: each stretch is summed by itself, so that no accumulator takes in many numbers.

In: how far a loop goes, its step, how many numbers the loops inside it add at each step, and how many are many on the
machine. Out: the lengths of its stretches, the longest first; each is cut into those that follow. Where a size is known
only at run time, the same instructions must do for all: as many cuts, each into as many parts as the size asks for.
"""

from __future__ import annotations

from collections.abc import Iterable

SHORT_SUM = 4  # two to this many numbers are added up at a time, where a floating-point sum has many more
CUTS = 2  # how often a sum over a size known only at run time is cut


def stretches(size: int, step: int, inside: int, most: int) -> list[int]:
    """`most`: numbers that are added up without a cut."""
    found: list[int] = []
    count, length = -(-size // step) * inside, step << max(SHORT_SUM - power_of_two(inside), 0)
    while count > most and size > length:
        found.insert(0, length)
        count, length = -(-size // length), length << SHORT_SUM
    return found


def stretches_at_run_time(size: int, step: int, inside: int) -> list[int]:
    known = power_of_two(inside)
    power = max(((size // step).bit_length() + known + CUTS) // (CUTS + 1), SHORT_SUM)
    return [step << max(level * power - known, 0) for level in range(CUTS, 0, -1)]


def numbers_added(loops: Iterable[tuple[int | None, int]], innermost: int, most: int) -> int:
    """How many numbers an accumulator takes in from loops one inside the other, given outermost last, each as its size,
    None where that is known only at run time, and its step; `innermost` numbers at each step of the first."""
    count = innermost
    for size, step in loops:
        if size is None:
            count = 1 << SHORT_SUM  # or more: by then what it adds is a small part of the work
            continue
        lengths = stretches(size, step, count, most)
        count = -(-size // lengths[0]) if lengths else -(-size // step) * count
    return max(count, 1)


def power_of_two(count: int) -> int:
    """That of the least one which is no less."""
    return (count - 1).bit_length()


__all__ = ["CUTS", "SHORT_SUM", "numbers_added", "power_of_two", "stretches", "stretches_at_run_time"]
