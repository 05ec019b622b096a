"""The least time lost within a bound on what the backward holds, exactly: by constraint programming.

In: a question, a bound in bytes. Out: what is computed again; None where nothing keeps to the bound, or none was found
in time. Each forward value is kept, or computed again, or not needed at all; kept it is there from the start of the
backward to its last reader, and computed again from its first reader to its last, be they the backward's own steps or
what is itself computed again then. The solver is given these spans, and a capacity that no turn may exceed.

For graphs of some hundreds of values: others are planned block by block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from litz.errors import OptionError
from litz.graph.alias import is_view
from litz.graph.partition.blocks import size_of
from litz.graph.partition.foresee import Foresight, readers
from litz.graph.partition.maxflow import INFINITE
from litz.graph.partition.mincut import Problem, wanted_of

MOST = 400  # values
_PATIENCE = 2.0  # of the solver's own seconds, which are the same on every machine, for one bound
_ROOM = 4096  # units that the largest bound is counted in
_NANOSECONDS = 1e9


@dataclass(frozen=True)
class Found:
    again: frozenset[fx.Node]
    seconds: float
    bytes: int  # the bound that is kept to
    proven: bool  # that there is nothing better


class Exact:
    """`seconds` of what takes some to compute again; `may`: what can be; `most`: bytes beyond any bound that will be
    asked for."""

    def __init__(
        self, problem: Problem, foresight: Foresight, seconds: Mapping[fx.Node, float], may: frozenset[fx.Node],
        most: int,
    ):  # fmt: skip
        self.problem, self.foresight, self.seconds, self.may = problem, foresight, seconds, may
        self.values = [n for n in problem.nodes if n.op == "call_function" and not is_view(n)]
        self.unit = max(1, -(-most // _ROOM))
        self.most = most

    @property
    def is_small(self) -> bool:
        return len(self.values) <= MOST

    def within(self, bound: int) -> Found | None:
        """The least time."""
        model = _Model(self, bound // self.unit)
        model.minimise_time()
        return model.solved()

    def least(self) -> Found | None:
        """The least memory, whatever time it takes."""
        model = _Model(self, -(-self.most // self.unit))
        model.minimise_memory()
        return model.solved()


class _Model:
    def __init__(self, asked: Exact, capacity: int):
        self.asked, cp = asked, _solver()
        self.cp, self.model = cp, cp.CpModel()
        self.capacity = self.model.new_int_var(0, max(capacity, 0), "capacity")
        self.kept: dict[fx.Node, Any] = {}
        self.again: dict[fx.Node, Any] = {}
        self.due: dict[fx.Node, Any] = {}
        self.last: dict[fx.Node, Any] = {}
        self.spans: list[Any] = []
        self.demands: list[int] = []
        wanted, given = wanted_of(asked.problem)
        for node in reversed(asked.values):
            self._value(node, node in wanted, node in given)
        self._own()
        self.model.add_cumulative(self.spans, self.demands, self.capacity)

    def _value(self, node: fx.Node, wanted: bool, given: bool) -> None:
        """Readers come after what they read, and so have been here."""
        model, foresight = self.model, self.asked.foresight
        end = len(foresight.own)
        kept, again = model.new_bool_var(""), model.new_bool_var("")
        due, last = model.new_int_var(0, end, ""), model.new_int_var(0, end, "")
        model.add(kept + again == 1) if wanted else model.add(kept + again <= 1)
        if given:
            model.add(kept == 1)
        if self.asked.problem.prices[node] >= INFINITE:
            model.add(kept == 0)
        if node not in self.asked.may:
            model.add(again == 0)
        model.add(due <= last)
        for reader in readers(node):
            turn = foresight.turn.get(reader)
            if turn is not None:
                model.add(due <= turn)
                model.add(last >= turn)
            elif reader in self.again:
                also = self.again[reader]
                model.add_bool_or([kept, again, also.negated()])
                model.add(due <= self.due[reader]).only_enforce_if(also)
                until = self.last[reader] if foresight.merges(reader) else self.due[reader]
                model.add(last >= until).only_enforce_if(also)
        size = -(-size_of(node) // self.asked.unit)
        if size:
            self._span(0, last, end, kept, size)
            if not foresight.merges(node):
                self._span(due, last, end, again, size)
        self.kept[node], self.again[node], self.due[node], self.last[node] = kept, again, due, last

    def _span(self, start: Any, last: Any, end: int, there: Any, size: int) -> None:
        length = self.model.new_int_var(0, end + 1, "")
        self.spans.append(self.model.new_optional_interval_var(start, length, last + 1, there, ""))
        self.demands.append(size)

    def _own(self) -> None:
        """What only the backward computes is there in any case."""
        own = self.asked.foresight.own
        start = 0
        for at in range(1, len(own) + 1):
            if at < len(own) and own[at] == own[start]:
                continue
            size = -(-int(own[start]) // self.asked.unit)
            if size:
                self.spans.append(self.model.new_fixed_size_interval_var(start, at - start, ""))
                self.demands.append(size)
            start = at

    def minimise_time(self) -> None:
        times = {n: round(self.asked.seconds.get(n, 0.0) * _NANOSECONDS) for n in self.again}
        self.model.minimize(sum(times[n] * again for n, again in self.again.items()))

    def minimise_memory(self) -> None:
        self.model.minimize(self.capacity)

    def solved(self) -> Found | None:
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = 1  # the same choice each time
        solver.parameters.max_deterministic_time = _PATIENCE
        status = solver.solve(self.model)
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return None
        again = frozenset(n for n, variable in self.again.items() if solver.value(variable))
        seconds = sum(self.asked.seconds.get(n, 0.0) for n in again)
        size = solver.value(self.capacity) * self.asked.unit
        return Found(again, seconds, size, status == self.cp.OPTIMAL)


def _solver() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise OptionError(
            "option 'budget_solver' is 'ilp', which needs OR-Tools", hint="pip install ortools, or use 'dp'"
        ) from None
    return cp_model


__all__ = ["MOST", "Exact", "Found"]
