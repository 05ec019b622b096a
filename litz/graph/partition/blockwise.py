"""What to keep so that the peak stays low, block by block: the least time lost for each of a range of peaks.

In: a joint graph and what is asked of its split. Out: a `Plan`: at each of its levels, from the choice that is usual
down to the least memory there can be, which values are kept.

A stretch of blocks is computed again as a whole, when its backward is due, from the value that it begins with; within
it more or less is kept, as a minimum cut finds best at some rate of bytes for a second. While a stretch is at work,
those behind it have their kept values still; those in front are done. So stretches are put one after the other by a
dynamic program, whose state is the bytes kept so far. Each level allows what the next one does, so no level loses more
time than one with less memory. Where the graph is small a solver may be asked as well (`exact.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from torch import fx

from litz.graph.partition.blocks import Blocks, blocks_of, size_of
from litz.graph.partition.budget import Seconds
from litz.graph.partition.exact import Exact
from litz.graph.partition.foresee import Foresight
from litz.graph.partition.maxflow import INFINITE
from litz.graph.partition.mincut import Choice, Problem, minimum_cut

LEVELS = 48
_LONGEST = 12  # blocks of a stretch
_ROOM = 2048  # steps that bytes are counted in
_CLOSE = 0.005  # of the range of peaks: how near the least is looked for


_SOLVED = 4  # one level in so many is given to the solver
Again = tuple[float, frozenset[fx.Node]]  # seconds lost, and what is computed again for it


class Option(NamedTuple):
    """A way to treat a stretch of blocks: what is kept of it, and what is computed again."""

    seconds: float
    kept_bytes: int
    most: int  # bytes while its backward runs, without what the stretches behind it keep
    again: frozenset[fx.Node]


class Way(NamedTuple):
    """A treatment of the first blocks: seconds, and how it came about."""

    seconds: float
    before: Way | None
    option: Option | None


@dataclass(frozen=True)
class Level:
    kept: tuple[fx.Node, ...]
    seconds: float  # lost
    bound: int  # bytes that the backward was foreseen to hold
    offloaded: frozenset[fx.Node] = frozenset()  # of those that are kept: in files


@dataclass(frozen=True)
class Question:
    """`may`: nodes that can be computed again; `dear`: the seconds of those that do not fuse into their readers."""

    problem: Problem
    foresight: Foresight
    usual: Choice
    dear: Seconds
    may: frozenset[fx.Node]
    exact: bool = False  # whether a solver is asked too, where the graph is small


class Plan:
    def __init__(self, question: Question):
        self.question = question
        self.blocks: Blocks = blocks_of(question.problem, question.dear)
        self.unit = max(1, self.usual_bytes // _ROOM)
        asked = Exact(question.problem, question.foresight, question.dear, question.may, 2 * self.usual_bytes)
        self.exact = asked if question.exact and asked.is_small else None

    @cached_property
    def usual_bytes(self) -> int:
        q = self.question
        made = [n for n in q.problem.nodes if n.op == "call_function"]  # arguments are there at every level
        return max(q.foresight.held(made, set(q.usual.kept), q.usual.again).most, int(q.foresight.own.max()))

    @cached_property
    def least_bytes(self) -> int:
        """As little as some way needs: between a bound that none keeps to, and one that is kept to."""
        found = None if self.exact is None else self.exact.least()
        return self._least_of_blocks if found is None else min(found.bytes, self._least_of_blocks)

    @cached_property
    def _least_of_blocks(self) -> int:
        fails, holds = 0, self.usual_bytes
        while self._way(holds) is None:  # the parts may need more than the whole was foreseen to
            fails, holds = holds, holds + holds // 2 + 1
        while holds - fails > max(_CLOSE * self.usual_bytes, 1):
            between = (fails + holds) // 2
            if self._way(between) is None:
                fails = between
            else:
                holds = between
        return holds

    @property
    def count(self) -> int:
        """Of levels."""
        return LEVELS + 1

    def bound(self, level: int) -> int:
        """Of levels from 0, the usual choice, to `LEVELS`, the least memory."""
        return self.least_bytes + max(self.usual_bytes - self.least_bytes, 0) * (LEVELS - level) // LEVELS

    @lru_cache(maxsize=None)  # noqa: B019  (a plan lives as long as one compile)
    def at(self, level: int) -> Level:
        bound = self.bound(level)
        if level == 0:
            return Level(self.question.usual.kept, 0.0, bound)
        q, (seconds, again) = self.question, self._best(level)
        choice = minimum_cut(q.problem, lambda n: 0 if n in again or (n in q.may and n not in q.dear) else INFINITE)
        return Level(choice.kept, seconds, bound)

    def _best(self, level: int) -> Again:
        """Block by block, or by the solver if that is better. What does for a level does for those with more memory."""
        way = self._way(self.bound(level))
        found = [_again(way)] if way is not None else []
        if self.exact is not None:
            found += [one for at, one in self._solved.items() if at >= level]
        return min(found, key=lambda one: one[0])

    @cached_property
    def _solved(self) -> dict[int, Again]:
        """The solver's answers for some of the levels."""
        assert self.exact is not None
        found = {}
        for level in range(LEVELS, 0, -_SOLVED):
            answer = self.exact.within(self.bound(level))
            if answer is None and level == LEVELS:
                answer = self.exact.least()
            if answer is not None:
                found[level] = (answer.seconds, answer.again)
        return found

    # -- the dynamic program ------------------------------------------------------------------------
    def _way(self, bound: int) -> Way | None:
        """The least time within the bound; None if there is no way."""
        count = self.blocks.count
        ways: list[dict[int, Way]] = [{} for _ in range(count + 1)]  # after so many blocks: bytes kept -> way
        little = sum(map(size_of, self.blocks.shared))
        ways[0][-(-little // self.unit)] = Way(0.0, None, None)
        for first in range(count):
            best = float("inf")
            for held, way in sorted(ways[first].items()):
                if way.seconds >= best:
                    continue  # no less time for more bytes
                best = way.seconds
                for last in range(first + 1, min(count, first + _LONGEST) + 1):
                    for option in self._options(first, last):
                        if held * self.unit + option.most > bound:
                            continue
                        after = held + -(-option.kept_bytes // self.unit)
                        known = ways[last].get(after)
                        if known is None or way.seconds + option.seconds < known.seconds:
                            ways[last][after] = Way(way.seconds + option.seconds, way, option)
        return min(ways[count].values(), key=lambda way: way.seconds, default=None)

    # -- the options of a stretch ---------------------------------------------------------------------
    @lru_cache(maxsize=None)  # noqa: B019
    def _options(self, first: int, last: int) -> tuple[Option, ...]:
        """From the one that takes least time to the one that keeps least, none worse than another in all."""
        choose = _Stretch(self, first, last)
        found = choose.hull() if last == first + 1 else [choose.at_rate(0.0)]
        ordered = sorted(map(choose.option, found), key=lambda o: (o.seconds, o.most, o.kept_bytes))
        kept: list[Option] = []
        for option in ordered:
            if not any(o.most <= option.most and o.kept_bytes <= option.kept_bytes for o in kept):
                kept.append(option)
        return tuple(kept)


def _again(way: Way) -> Again:
    found: set[fx.Node] = set()
    at: Way | None = way
    while at is not None and at.option is not None:
        found |= at.option.again
        at = at.before
    return way.seconds, frozenset(found)


_HULL = 12  # choices of a block that are tried
_HULL_OF_FEW = 32  # where there are not even this many blocks to combine:
_FEW = 4


class _Stretch:
    """The choices for some blocks by themselves. What they begin with is kept."""

    def __init__(self, plan: Plan, first: int, last: int):
        self.question, blocks = plan.question, plan.blocks
        whole = plan.question.problem
        self.problem = replace(whole, nodes=blocks.nodes(whole, first, last))
        self.within = frozenset(n for n in self.problem.nodes if first <= blocks.of.get(n, -1) < last)
        self.begins = blocks.boundaries[first - 1] if first else None
        self.tried = _HULL if blocks.count >= _FEW else _HULL_OF_FEW

    def at_rate(self, rate: float | None) -> Choice:
        """The best where a second is worth so many bytes; without a rate, more than there are."""
        q = self.question

        def toll(node: fx.Node) -> int:
            if node is self.begins or node not in q.may or node not in self.within:
                return INFINITE
            lost = q.dear.get(node)
            return 0 if lost is None else INFINITE if rate is None else round(rate * lost)

        return minimum_cut(self.problem, toll)

    def hull(self) -> list[Choice]:
        """The choices that are best at some rate."""
        most, least = self.at_rate(None), self.at_rate(0.0)
        found = [most, least]
        todo = [(most, least)]
        while todo and len(found) < self.tried:
            more, less = todo.pop(0)
            lost = self.seconds(less) - self.seconds(more)
            if lost <= 0 or more.bytes <= less.bytes:
                continue
            between = self.at_rate((more.bytes - less.bytes) / lost)
            if less.bytes < between.bytes < more.bytes:
                found.append(between)
                todo += [(more, between), (between, less)]
        return found

    def option(self, choice: Choice) -> Option:
        again = choice.again
        kept = {*choice.kept, *([self.begins] if self.begins is not None else ())}
        own = [n for n in self.problem.nodes if n in self.within]
        held = self.question.foresight.held(own, kept, again)
        return Option(self.seconds(choice), held.kept, held.most, again)

    def seconds(self, choice: Choice) -> float:
        return sum(self.question.dear.get(n, 0.0) for n in choice.again)


__all__ = ["LEVELS", "Level", "Plan", "Question"]
