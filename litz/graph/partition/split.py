"""Split forward from backward: which of the forward's values are kept, and which the backward computes again.

In: a `Joint`, and what is asked. Out: a `Split`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import fx

from litz.graph.partition.again import Rules, forbidden, fuses, is_possible
from litz.graph.partition.blockwise import Plan, Question
from litz.graph.partition.budget import Seconds, lowest_within_fraction, within_fraction
from litz.graph.partition.cost import CORE, Cost, at_ceilings
from litz.graph.partition.extract import Split, split_at
from litz.graph.partition.foresee import Foresight
from litz.graph.partition.knapsack import SOLVERS
from litz.graph.partition.maxflow import INFINITE
from litz.graph.partition.mincut import Choice, Problem, minimum_cut, problem_of
from litz.graph.partition.offload import FilePlan, Offload, within_fraction_and_file
from litz.graph.partition.regions import regions_of
from litz.graph.partition.sides import Sides, sides_of
from litz.graph.signature import Joint


@dataclass(frozen=True)
class Policy:
    """What is asked of a split. `fraction`: of the bytes that would be kept without a bound, and no more than that even
    where it raises the peak, if it is `strict`; `cost`: the time that is to be lost least; `offload`: whether files may
    hold what is kept; `kept`: where it is decided already, the names of the values that are kept, and `offloaded` of
    those in files."""

    rules: Rules = Rules()
    fraction: float = 1.0
    solver: str = "dp"
    cost: Cost = at_ceilings(CORE)
    offload: Offload | None = None
    kept: frozenset[str] | None = None
    offloaded: frozenset[str] = frozenset()
    strict: bool = False

    @property
    def reads_again(self) -> bool:
        """Whether what the caller may write to is read once more: who asks for less than is usual asks for that."""
        return self.kept is not None or self.fraction < 1 or not self.rules.not_in_allow_list


_USUAL = Policy()


def split(joint: Joint, policy: Policy = _USUAL) -> Split:
    sides = sides_of(joint, policy.reads_again)
    if policy.kept is None:
        choice = choose(joint, sides, policy)
        kept, away = choice.kept, choice.offloaded
    else:
        kept = tuple(n for n in joint.graph.graph.nodes if n.name in policy.kept)
        away = frozenset(n for n in kept if n.name in policy.offloaded)
    return split_at(joint, sides, kept, away, "" if policy.offload is None else policy.offload.folder)


def choose(joint: Joint, sides: Sides, policy: Policy) -> Choice:
    problem, usual, may, seconds = _asked(joint, sides, policy)
    if policy.fraction >= 1:
        return usual
    dear = seconds()
    solver = SOLVERS[policy.solver]
    if policy.offload is not None:
        return within_fraction_and_file(problem, usual, policy.fraction, dear, may, solver, policy.offload)
    if policy.strict:
        return within_fraction(problem, usual, policy.fraction, dear, may, solver)
    foresight = _foresight(joint, sides, policy)
    made = [n for n in problem.nodes if n.op == "call_function"]

    def held(choice: Choice) -> int:
        return foresight.held(made, set(choice.kept), choice.again).most

    return lowest_within_fraction(problem, usual, policy.fraction, dear, may, solver, held)


def plan(joint: Joint, policy: Policy) -> Plan | FilePlan:
    """The least time lost for each of a range of peaks, by what is foreseen of them."""
    sides = sides_of(joint, read_again=True)
    problem, usual, may, seconds = _asked(joint, sides, policy)
    dear = seconds()
    if policy.offload is not None:
        return FilePlan(problem, usual, dear, may, SOLVERS[policy.solver], policy.offload)
    return Plan(Question(problem, _foresight(joint, sides, policy), usual, dear, may, exact=policy.solver == "ilp"))


def _foresight(joint: Joint, sides: Sides, policy: Policy) -> Foresight:
    return Foresight(joint, sides, partial(fuses, allowed=policy.rules.allowed))


def at_level(levels: Plan | FilePlan, level: int, policy: Policy) -> Policy:
    """What is asked of a split at a level of a plan; the first is the usual split."""
    if level == 0:
        return replace(policy, fraction=1.0, kept=None)
    found = levels.at(level)
    kept, away = (frozenset(node.name for node in nodes) for nodes in (found.kept, found.offloaded))
    return replace(policy, fraction=1.0, kept=kept, offloaded=away)


def _asked(
    joint: Joint, sides: Sides, policy: Policy
) -> tuple[Problem, Choice, frozenset[fx.Node], Callable[[], Seconds]]:
    """What is to be cut; the usual choice; what can be computed again; and the seconds of what takes some, which the
    usual choice needs not know."""
    regions = regions_of(joint)
    problem = problem_of(joint, sides, regions.again)
    may = frozenset(n for n in problem.nodes if is_possible(n) or fuses(n, policy.rules.allowed)) - regions.kept
    never = forbidden(problem.nodes, sides, policy.rules).keys() - regions.again
    usual = minimum_cut(problem, lambda n: INFINITE if n not in may or n in never else 0)

    def seconds() -> Seconds:
        return {n: policy.cost(n) for n in may - regions.again if not fuses(n, policy.rules.allowed)}

    return problem, usual, may, seconds


__all__ = ["Policy", "at_level", "choose", "plan", "split"]
