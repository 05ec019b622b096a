"""Split forward from backward: which of the forward's values are kept, and which the backward computes again.

In: a `Joint`, and what is asked. Out: a `Split`.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.graph.partition.again import Rules, forbidden, fuses, is_possible
from litz.graph.partition.budget import within_fraction
from litz.graph.partition.cost import CORE, Cost, at_ceilings
from litz.graph.partition.extract import Split, split_at
from litz.graph.partition.knapsack import SOLVERS
from litz.graph.partition.maxflow import INFINITE
from litz.graph.partition.mincut import Choice, minimum_cut, problem_of
from litz.graph.partition.regions import regions_of
from litz.graph.partition.sides import Sides, sides_of
from litz.graph.signature import Joint


@dataclass(frozen=True)
class Policy:
    """What is asked of a split. `fraction`: of the bytes that would be kept without a bound; `cost`: the time that is
    to be lost least."""

    rules: Rules = Rules()
    fraction: float = 1.0
    solver: str = "dp"
    cost: Cost = at_ceilings(CORE)

    @property
    def reads_again(self) -> bool:
        """Whether what the caller may write to is read once more: who asks for less than is usual asks for that."""
        return self.fraction < 1 or not self.rules.not_in_allow_list


_USUAL = Policy()


def split(joint: Joint, policy: Policy = _USUAL) -> Split:
    sides = sides_of(joint, policy.reads_again)
    return split_at(joint, sides, choose(joint, sides, policy).kept)


def choose(joint: Joint, sides: Sides, policy: Policy) -> Choice:
    regions = regions_of(joint)
    problem = problem_of(joint, sides, regions.again)
    may = frozenset(n for n in problem.nodes if is_possible(n) or fuses(n, policy.rules.allowed)) - regions.kept
    never = forbidden(problem.nodes, sides, policy.rules).keys() - regions.again
    usual = minimum_cut(problem, lambda n: INFINITE if n not in may or n in never else 0)
    if policy.fraction >= 1:
        return usual
    dear = {n: policy.cost(n) for n in may - regions.again if not fuses(n, policy.rules.allowed)}
    return within_fraction(problem, usual, policy.fraction, dear, may, SOLVERS[policy.solver])


__all__ = ["Policy", "choose", "split"]
