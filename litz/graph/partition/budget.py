"""What to keep within a bound on bytes, so that the least time is lost.

In: a problem, the bound, the seconds that nodes take. Out: a `Choice`.

Keeping is weighed against computing again at a rate, in bytes that a second is worth: at each rate the best choice is
a minimum cut, and the less a second is worth, the less is kept. So two choices are found between which no rate leads,
one that fits and one that does not. What the first computes again and the second keeps falls into pieces that do not
touch; which of them to keep is a knapsack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import fx

from litz.graph.partition.knapsack import Solver
from litz.graph.partition.maxflow import INFINITE
from litz.graph.partition.mincut import Choice, Problem, Toll, minimum_cut

_MOST_RATES = 40
_STEPS = 20  # of fractions
Seconds = Mapping[fx.Node, float]  # of each node that may be computed again; what costs nothing is not in it


def within_fraction(
    problem: Problem, usual: Choice, fraction: float, seconds: Seconds, may: frozenset[fx.Node], solver: Solver
) -> Choice:
    """Of what `usual` keeps for the backward, a fraction; as little as can be if that is more. `may`: the nodes that
    can be computed again."""
    return within(problem, usual, int(usual.bytes * fraction), seconds, may, solver)


def within(
    problem: Problem, usual: Choice, bound: int, seconds: Seconds, may: frozenset[fx.Node], solver: Solver
) -> Choice:
    """The same for a number of bytes."""
    return _Budget(problem, seconds, may).within(usual, bound, solver)


def lowest_within_fraction(
    problem: Problem, usual: Choice, fraction: float, seconds: Seconds, may: frozenset[fx.Node], solver: Solver,
    held: Callable[[Choice], int],
) -> Choice:  # fmt: skip
    """The same, or what a larger fraction gives, where that holds less at the peak: who keeps next to nothing computes
    all of the forward at once, and has all of it in memory again. `held`: bytes at the peak of a choice, foreseen.

    Fractions are taken in steps: all that are tried for one are tried for a smaller one too, so its peak is no higher.
    """
    least = None
    for part in range(int(fraction * _STEPS + 1e-9), _STEPS + 1):
        choice = within_fraction(problem, usual, part / _STEPS, seconds, may, solver)
        if least is not None and choice.bytes >= least[0]:
            break  # what is kept is held when the backward begins
        peak = held(choice)
        if least is None or peak < least[0]:
            least = peak, choice
    assert least is not None
    return least[1]


def at_rate(problem: Problem, seconds: Seconds, may: frozenset[fx.Node], rate: float) -> Choice:
    """The best choice where a second is worth so many bytes."""
    return _Budget(problem, seconds, may).at_rate(rate)


class _Budget:
    def __init__(self, problem: Problem, seconds: Seconds, may: frozenset[fx.Node]):
        self.problem, self.seconds, self.may = problem, seconds, may

    def within(self, usual: Choice, bound: int, solver: Solver) -> Choice:
        if usual.bytes <= bound:
            return usual
        fits, large = self.at_rate(0.0), usual
        if fits.bytes >= bound:
            return fits
        for _ in range(_MOST_RATES):
            lost = self.time(fits) - self.time(large)
            if lost <= 0:
                return fits
            between = self.at_rate((large.bytes - fits.bytes) / lost)
            if between.bytes <= bound and self.is_between(between, fits, large):
                fits = between
            elif between.bytes > bound and self.is_between(between, fits, large):
                large = between
            else:
                break
        filled = self.filled(fits, large, bound, solver)
        return filled if filled.bytes <= bound and self.time(filled) < self.time(fits) else fits

    def is_between(self, choice: Choice, fits: Choice, large: Choice) -> bool:
        return fits.bytes < choice.bytes < large.bytes and self.time(choice) < self.time(fits)

    def time(self, choice: Choice) -> float:
        """That computing again takes."""
        return sum(self.seconds.get(n, 0.0) for n in choice.again)

    def at_rate(self, rate: float) -> Choice:
        """The best choice where a second is worth so many bytes."""
        worth = {n: round(rate * lost) for n, lost in self.seconds.items()}
        return minimum_cut(self.problem, lambda n: worth.get(n, 0) if n in self.may else INFINITE)

    def filled(self, fits: Choice, large: Choice, bound: int, solver: Solver) -> Choice:
        """Between the two: of the pieces that only the first computes again, the dearest are kept after all."""
        pieces = _pieces(fits.again - large.again, self.problem)
        saved = [self.saved_by(piece, fits, large) for piece in pieces]
        worth = [sum(self.seconds.get(n, 0.0) for n in piece) for piece in pieces]
        kept = set(solver([max(s, 0) for s in saved], worth, bound - fits.bytes))
        again = large.again.union(*(piece for i, piece in enumerate(pieces) if i not in kept))
        return minimum_cut(self.problem, self.allowing(again))

    def allowing(self, again: frozenset[fx.Node]) -> Toll:
        return lambda n: 0 if n in again or (n in self.may and n not in self.seconds) else INFINITE

    def saved_by(self, piece: frozenset[fx.Node], fits: Choice, large: Choice) -> int:
        """Bytes that computing the piece again saves."""
        prices = self.problem.prices
        gone = sum(prices[n] for n in large.kept if n in piece)
        needed = {n for n in fits.kept if n not in large.kept and any(u in piece for u in n.users)}
        return gone - sum(prices[n] for n in needed if n not in self.problem.sides.seen)


def _pieces(nodes: frozenset[fx.Node], problem: Problem) -> list[frozenset[fx.Node]]:
    """The nodes by who is connected with whom, in graph order."""
    found: list[frozenset[fx.Node]] = []
    left = set(nodes)
    for start in problem.nodes:
        if start not in left:
            continue
        piece, todo = set(), [start]
        left.discard(start)
        while todo:
            node = todo.pop()
            piece.add(node)
            beside = [n for n in (*node.all_input_nodes, *node.users) if n in left]
            left.difference_update(beside)
            todo += beside
        found.append(frozenset(piece))
    return found


__all__ = ["Seconds", "at_rate", "lowest_within_fraction", "within", "within_fraction"]
