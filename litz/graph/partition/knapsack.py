"""Which of several things to carry: the most worth, within a weight.

In: weights, worths, a capacity. Out: the positions chosen. Three solvers: `dp` is exact up to a rounding of weights,
`ilp` exact, `greedy` takes the best ratio first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from litz.errors import OptionError

Solver = Callable[[Sequence[int], Sequence[float], int], list[int]]
_STEPS = 10_000  # parts that `dp` divides the capacity into


def greedy(weights: Sequence[int], worths: Sequence[float], capacity: int) -> list[int]:
    found, room = [], capacity
    for item in sorted(range(len(weights)), key=lambda i: (-worths[i] / max(weights[i], 1), i)):
        if weights[item] <= room:
            found.append(item)
            room -= weights[item]
    return sorted(found)


def dp(weights: Sequence[int], worths: Sequence[float], capacity: int) -> list[int]:
    unit = max(1, -(-capacity // _STEPS))
    steps = capacity // unit
    best = numpy.zeros(steps + 1)
    taken: Any = numpy.zeros((len(weights), steps + 1), dtype=bool)
    for item, (weight, worth) in enumerate(zip(weights, worths, strict=True)):
        heavy = -(-weight // unit)  # rounded up: what is chosen never weighs more than it may
        if heavy > steps:
            continue
        with_it = best[: steps + 1 - heavy] + worth
        better = with_it > best[heavy:]
        taken[item, heavy:] = better
        best[heavy:] = numpy.where(better, with_it, best[heavy:])
    found, at = [], steps
    for item in reversed(range(len(weights))):
        if taken[item, at]:
            found.append(item)
            at -= -(-weights[item] // unit)
    return found[::-1]


def ilp(weights: Sequence[int], worths: Sequence[float], capacity: int) -> list[int]:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise OptionError(
            "option 'budget_solver' is 'ilp', which needs OR-Tools", hint="pip install ortools, or use 'dp'"
        ) from None
    model = cp_model.CpModel()
    chosen = [model.new_bool_var(str(i)) for i in range(len(weights))]
    unit = max(worths, default=0.0) / 1e6 or 1.0
    model.add(sum(w * c for w, c in zip(weights, chosen, strict=True)) <= capacity)
    model.maximize(sum(round(v / unit) * c for v, c in zip(worths, chosen, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # the same choice each time
    solver.parameters.max_deterministic_time = 10.0
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return dp(weights, worths, capacity)
    return [i for i, c in enumerate(chosen) if solver.value(c)]


SOLVERS: dict[str, Solver] = {"dp": dp, "greedy": greedy, "ilp": ilp}


__all__ = ["SOLVERS", "Solver", "dp", "greedy", "ilp"]
