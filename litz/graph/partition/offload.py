"""What to put in a file beside what is kept and what is computed again.

In: what `budget.py` is asked, and how fast a file is. Out: a `Choice` that says of some of what it keeps that they are
kept outside of memory.

A file takes the same seconds for each byte, so it is one rate among those at which memory is weighed against time: what
is computed again at less than that is computed again, and of the rest as much goes to the file as the bound asks for,
beginning with what is made first, and so waits longest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import fx

from litz.graph.partition.blockwise import Level
from litz.graph.partition.budget import Seconds, at_rate, within, within_fraction
from litz.graph.partition.cost import narrow_type
from litz.graph.partition.knapsack import Solver
from litz.graph.partition.maxflow import INFINITE
from litz.graph.partition.mincut import Choice, Problem, minimum_cut

_SMALLEST = 1 << 20  # bytes that are worth a file of their own
_PARTS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)


@dataclass(frozen=True)
class Offload:
    """`rate`: bytes a second, written and read back."""

    folder: str
    rate: float = 1e9


def within_fraction_and_file(
    problem: Problem, usual: Choice, fraction: float, seconds: Seconds, may: frozenset[fx.Node], solver: Solver,
    offload: Offload,
) -> Choice:  # fmt: skip
    bound = int(usual.bytes * fraction)
    by_file = at_rate(problem, seconds, may, offload.rate) if usual.bytes > bound else usual
    by_file = by_file if by_file.bytes < usual.bytes else usual
    if by_file.bytes > bound:
        moved: list[fx.Node] = []
        left = by_file.bytes
        for node in by_file.kept:
            if left > bound and _can_go(node, problem):
                moved.append(node)
                left -= problem.prices[node]
        if left > bound:
            return _all_that_can(problem, usual, bound, seconds, may, solver)
        return replace(by_file, bytes=left, offloaded=frozenset(moved))
    return within_fraction(problem, usual, fraction, seconds, may, solver)


def _all_that_can(
    problem: Problem, usual: Choice, bound: int, seconds: Seconds, may: frozenset[fx.Node], solver: Solver
) -> Choice:
    """All goes to files that can; of the rest as little is computed again as the bound asks for."""
    free = {n for n in problem.nodes if _can_go(n, problem)}
    nearly = replace(problem, prices={n: 1 if n in free else price for n, price in problem.prices.items()})
    found = within(
        nearly, minimum_cut(nearly, lambda n: 0 if n in usual.again else INFINITE), bound, seconds, may, solver
    )
    return replace(found, offloaded=frozenset(n for n in found.kept if n in free))


def _can_go(node: fx.Node, problem: Problem) -> bool:
    """What the program alone holds, lies without gaps, and is large."""
    value = node.meta.get("val")
    if node.op == "placeholder" or not isinstance(value, torch.Tensor) or node in problem.sides.seen:
        return False
    if not all(isinstance(size, int) for size in value.shape) or narrow_type(node, problem.sides) is not None:
        return False
    extent = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
    return problem.prices[node] >= _SMALLEST and extent == value.numel()


class FilePlan:
    """The same as levels, for bounds on the peak: less is kept in memory at each, and no less time is lost."""

    def __init__(
        self, problem: Problem, usual: Choice, seconds: Seconds, may: frozenset[fx.Node], solver: Solver,
        offload: Offload,
    ):  # fmt: skip
        self.usual, self.seconds, self.offload = usual, seconds, offload
        self._choice = lru_cache(maxsize=None)(
            lambda part: within_fraction_and_file(problem, usual, part, seconds, may, solver, offload)
        )
        self.bounds = tuple(int(usual.bytes * part) for part in _PARTS)

    @property
    def count(self) -> int:
        """Of levels."""
        return len(self.bounds)

    def bound(self, level: int) -> int:
        return self.bounds[level]

    def at(self, level: int) -> Level:
        found: Choice = self._choice(_PARTS[level])
        lost = sum(self.seconds.get(n, 0.0) for n in found.again)
        away = sum(n.meta["val"].numel() * n.meta["val"].element_size() for n in found.offloaded)
        return Level(found.kept, lost + away / self.offload.rate, self.bounds[level], found.offloaded)


__all__ = ["FilePlan", "Offload", "within_fraction_and_file"]
