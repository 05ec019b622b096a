"""Split forward from backward: which of the forward's values are kept, and which the backward computes again.

In: a `Joint`, and what is asked. Out: a `Split`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import fx

from litz.graph.partition.again import Rules, forbidden, fuses, is_possible
from litz.graph.partition.blockwise import Plan, Question
from litz.graph.partition.budget import within_fraction
from litz.graph.partition.cost import CORE, Cost, at_ceilings
from litz.graph.partition.extract import Split, split_at
from litz.graph.partition.foresee import Foresight
from litz.graph.partition.knapsack import SOLVERS
from litz.graph.partition.maxflow import INFINITE
from litz.graph.partition.mincut import Choice, Problem, minimum_cut, problem_of
from litz.graph.partition.regions import regions_of
from litz.graph.partition.sides import Sides, sides_of
from litz.graph.signature import Joint


@dataclass(frozen=True)
class Policy:
    """What is asked of a split. `fraction`: of the bytes that would be kept without a bound; `cost`: the time that is
    to be lost least; `kept`: where it is decided already, the names of the values that are kept."""

    rules: Rules = Rules()
    fraction: float = 1.0
    solver: str = "dp"
    cost: Cost = at_ceilings(CORE)
    kept: frozenset[str] | None = None

    @property
    def reads_again(self) -> bool:
        """Whether what the caller may write to is read once more: who asks for less than is usual asks for that."""
        return self.kept is not None or self.fraction < 1 or not self.rules.not_in_allow_list


_USUAL = Policy()


def split(joint: Joint, policy: Policy = _USUAL) -> Split:
    sides = sides_of(joint, policy.reads_again)
    if policy.kept is not None:
        return split_at(joint, sides, [n for n in joint.graph.graph.nodes if n.name in policy.kept])
    return split_at(joint, sides, choose(joint, sides, policy).kept)


def choose(joint: Joint, sides: Sides, policy: Policy) -> Choice:
    problem, usual, may, dear = _asked(joint, sides, policy)
    if policy.fraction >= 1:
        return usual
    return within_fraction(problem, usual, policy.fraction, dear, may, SOLVERS[policy.solver])


def plan(joint: Joint, policy: Policy) -> Plan:
    """The least time lost for each of a range of peaks, by what is foreseen of them."""
    sides = sides_of(joint, read_again=True)
    problem, usual, may, dear = _asked(joint, sides, policy)
    foresight = Foresight(joint, sides, partial(fuses, allowed=policy.rules.allowed))
    return Plan(Question(problem, foresight, usual, dear, may))


def _asked(
    joint: Joint, sides: Sides, policy: Policy
) -> tuple[Problem, Choice, frozenset[fx.Node], dict[fx.Node, float]]:
    """What is to be cut; the usual choice; what can be computed again; and the seconds of what takes some."""
    regions = regions_of(joint)
    problem = problem_of(joint, sides, regions.again)
    may = frozenset(n for n in problem.nodes if is_possible(n) or fuses(n, policy.rules.allowed)) - regions.kept
    never = forbidden(problem.nodes, sides, policy.rules).keys() - regions.again
    usual = minimum_cut(problem, lambda n: INFINITE if n not in may or n in never else 0)
    dear = {n: policy.cost(n) for n in may - regions.again if not fuses(n, policy.rules.allowed)}
    return problem, usual, may, dear


__all__ = ["Policy", "choose", "plan", "split"]
