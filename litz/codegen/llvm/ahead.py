"""Rows ahead: the next row of a team is loaded while the last pass over this one is computed.

In: a packed plan, whose teams take rows in turn. Out: the loads of the first row; of each other row, as soon as the
last pass is done with a vector of the one before, whose registers are free then. So memory is busy while all wait for
one another, and while they compute.
"""

from __future__ import annotations

from collections.abc import Mapping

from litz.codegen.llvm.rows import Rows
from litz.codegen.llvm.writer import Operand
from litz.loop.expr import Axis
from litz.loop.ir import Load, operands


class Ahead:
    def __init__(self, rows: Rows):
        self.rows, self.w = rows, rows.w
        plan, of_rows = rows.plan, frozenset(rows.plan.rows)
        assert plan.packed is not None
        # By vectors, and one number a row.
        self.vectors = tuple(name for name in plan.packed if plan.varies[name] & of_rows)
        once = (op for op in plan.passes[0].before if isinstance(op, Load) and not operands(op))
        self.numbers = tuple(op.name for op in once if plan.varies[op.name] & of_rows)
        self.last = max(p for p, one in enumerate(plan.passes) if one.sinks)
        self.slots: dict[tuple[str, int], tuple[str, Operand]] = {}  # with what they are like

    def begin(self, axes: Mapping[Axis, str]) -> None:
        """Loads the first row."""
        self._load_numbers(axes)
        for copy in range(self.rows.plan.copies):
            self._load_vectors(axes, copy)

    def take(self) -> None:
        """The row that was loaded is the one at hand."""
        for name in self.vectors:
            self.rows.loaded[name] = [self._taken(name, copy) for copy in range(self.rows.plan.copies)]
        for name in self.numbers:
            self.rows.frame.values[name] = [self._taken(name, 0)]

    def after_vector(self, p: int, copy: int, axes: Mapping[Axis, str], is_there: str) -> None:
        """The pass is done with one vector of its row: the next row's takes its place, if there is such a row."""
        if p != self.last:
            return
        with self.w.when(is_there):
            if copy == 0:
                self._load_numbers(axes)
            self._load_vectors(axes, copy)

    def _load_numbers(self, axes: Mapping[Axis, str]) -> None:
        with self.rows.standing_in(axes):
            for name in self.numbers:
                self._load(name, 0)

    def _load_vectors(self, axes: Mapping[Axis, str], copy: int) -> None:
        with self.rows.standing_in(axes), self.rows.standing_at_packed(copy):
            for name in self.vectors:
                self._load(name, copy)

    def _load(self, name: str, copy: int) -> None:
        frame = self.rows.frame
        frame.emit(self.rows.ops[name])
        (value,) = frame.values[name]
        if (name, copy) not in self.slots:
            self.slots[name, copy] = self.w.slot(value.type), value
        self.w.emit(f"store {value.type} {value.text}, ptr {self.slots[name, copy][0]}")

    def _taken(self, name: str, copy: int) -> Operand:
        slot, like = self.slots[name, copy]
        return like._replace(text=self.w.let(f"load {like.type}, ptr {slot}"))


__all__ = ["Ahead"]
