"""Emit totals across rows: what a block adds up down the columns of the rows that it takes in turn.

In: a plan whose rows are taken in turn. Out: the instructions that begin the totals, add to them in a row, and at last
store them. A thread has the same columns of each row, and their totals to itself, so that nobody waits; it has so what
is the same for all rows, and is staged there. Where several
teams share a block, each has totals of its own, and the block adds those up at the end, team by team.

Totals that do not fit in registers are in shared memory. A vector there is cut into words of 16 bytes, and all threads'
first words lie side by side, then all second ones: threads side by side then meet in no bank.
"""

from __future__ import annotations

from litz.codegen.lanes import ACCESS_BYTES
from litz.codegen.llvm.gpu_function import GpuFunction
from litz.codegen.llvm.rows import Rows
from litz.codegen.llvm.vectors import live_of
from litz.codegen.llvm.writer import Operand
from litz.codegen.plan_gpu import GpuPlan
from litz.loop.dtype import DTYPES
from litz.loop.expr import Axis, expr
from litz.loop.ir import Load, Store

_STATIC = 40 << 10  # bytes that a block may share without asking for more, besides what teams need to meet
_DTYPE = "f32"
_NAME = "@totals"


class Totals:
    def __init__(self, plan: GpuPlan, function: GpuFunction, rows: Rows, group: str):
        self.plan, self.function, self.rows, self.group, self.w = plan, function, rows, group, function.w
        self.lanes = plan.rows.lanes
        self.word = min(self.lanes, ACCESS_BYTES // DTYPES[_DTYPE].bytes)  # elements
        self.number = {op: number for number, op in enumerate(plan.totals)}
        self.slots: dict[tuple[Store, int], str] = {}  # by vector, where they are in registers
        if plan.shared_bytes:
            count = plan.shared_bytes // DTYPES[_DTYPE].bytes
            memory = "external addrspace(3) global [0 x float]"
            if not self.asks_for:
                memory = f"internal addrspace(3) global [{count} x float] poison"
            function.module.declare(f"{_NAME} = {memory}, align {ACCESS_BYTES}")

    @property
    def asks_for(self) -> int:
        """Bytes that the block must be given, since they are more than it may take."""
        return self.plan.shared_bytes if self.plan.shared_bytes > _STATIC else 0

    def begin(self) -> None:
        nothing = self.w.splat(Operand("0.0", _DTYPE, 1), self.lanes)
        if self.plan.totals_in_registers:
            for op in self.plan.totals:
                for copy in range(self.plan.rows.copies):
                    slot = self.slots[op, copy] = self.w.slot(nothing.type)
                    self.w.emit(f"store {nothing.type} {nothing.text}, ptr {slot}")
            return
        step = self.plan.rows.step
        with self.w.loop("0", str(self.plan.total_vectors * self.lanes), step) as first:
            v = self.w.add(first, self.w.mul(self.rows.me, str(self.lanes)))
            for op in self.plan.totals:
                self._put(op, v, nothing)

    def add(self, op: Store, vector: int) -> None:
        """What the row has where it stands, at its `vector`s from this one on."""
        frame, w = self.rows.frame, self.w
        for copy in range(frame.copies):
            v = frame.index(expr(self._axis), copy, 1).text
            old = self._found(op, vector + copy, v)
            factors = self.rows.factors(op.value)
            if factors is None:
                more = w.splat(frame.get(op.value, copy), self.lanes)
                new = w.let(f"fadd {old.type} {old.text}, {more.text}")
            else:
                a, b = (w.splat(frame.get(name, copy), self.lanes).text for name in factors)
                new = w.intrinsic("llvm.fma", old.type, a, b, old.text)
            if self.plan.totals_in_registers:
                w.emit(f"store {old.type} {new}, ptr {self.slots[op, vector + copy]}")
            else:
                self._put(op, v, old._replace(text=new))

    def end(self, block: str) -> None:
        """Each total where it belongs. `block`: the number of the first row that the block took."""
        self.rows.bind(block)
        if self.plan.teams > 1:
            self._end_together()
            return
        w, rows, size = self.w, self.plan.rows, self._axis.size.int
        if self.plan.totals_in_registers:
            for copy in range(rows.copies):
                with self.rows.standing_at_packed(copy):
                    for op in self.plan.totals:
                        self._store(op, self._found(op, copy, ""))
            return
        with w.loop("0", str(size), rows.step) as first:
            v = w.add(first, w.mul(self.rows.me, str(self.lanes)))
            mask = live_of(w, v, str(size), self.lanes, self.rows.is_divided, ragged=size % rows.step != 0)
            with self.rows.standing_at(v, 1, (mask,)):
                for op in self.plan.totals:
                    self._store(op, self._found(op, 0, v, at_last=True))

    def _end_together(self) -> None:
        """The totals of the block's teams, added up by all of its threads."""
        w, size, step = self.w, self._axis.size.int, self.plan.block * self.lanes
        if self.plan.totals_in_registers:
            for copy in range(self.plan.rows.copies):
                with self.rows.standing_at_packed(copy):
                    v = self.rows.frame.axes[self._axis]
                    for op in self.plan.totals:
                        self._put(op, v, self._found(op, copy, v))
        self.function.barrier()
        thread = self.function.wide(self.function.register("tid"))
        with w.loop(w.mul(thread, str(self.lanes)), str(size), step) as v:
            mask = live_of(w, v, str(size), self.lanes, self.rows.is_divided, ragged=not self.rows.is_divided)
            with self.rows.standing_at(v, 1, (mask,)):
                for op in self.plan.totals:
                    total = self._taken(op, v, "0")
                    for team in range(1, self.plan.teams):
                        more = self._taken(op, v, str(team))
                        total = total._replace(text=w.let(f"fadd {total.type} {total.text}, {more.text}"))
                    self._store(op, total)

    def _store(self, op: Store, total: Operand) -> None:
        self.rows.frame.values[op.value] = [total]
        self.rows.frame.emit(Store(op.buffer, op.index, op.value))

    # -- what is the same for all rows ----------------------------------------------------------------
    def stage(self) -> None:
        """A thread puts there what it will want itself, so that nobody waits."""
        for copy in range(self.plan.rows.copies) if self.plan.staged else ():
            with self.rows.standing_in({}), self.rows.standing_at_packed(copy):
                for op in self.plan.staged:
                    self.rows.frame.emit(op)
                    (value,) = self.rows.frame.values[op.name]
                    place, alignment = self._staged_place(op, value, 0)
                    self.w.emit(f"store {value.type} {value.text}, ptr addrspace(3) {place}, align {alignment}")

    def staged(self, p: int) -> dict[str, list[Operand]]:
        """The same at the vector where the row stands, for a pass over it."""
        found = {}
        for op in self.plan.staged:
            like = Operand("", op.dtype, self.lanes)
            place, alignment = self._staged_place(op, like, p)
            text = self.w.let(f"load {like.type}, ptr addrspace(3) {place}, align {alignment}")
            found[op.name] = [like._replace(text=text)]
        return found

    def _staged_place(self, op: Load, like: Operand, p: int) -> tuple[str, int]:
        w, size = self.w, DTYPES[op.dtype].bytes
        before = sum(DTYPES[other.dtype].bytes for other in self.plan.staged[: self.plan.staged.index(op)])
        first = self.plan.total_bytes + before * self.plan.total_vectors * self.lanes
        mine = w.let(f"mul i32 {w.let(f'trunc i64 {self.rows.frame.axes[self._axis]} to i32')}, {size}")
        at = w.let(f"add i32 {mine}, {first}")
        at = at if p == 0 else self._elsewhere(at)
        return w.let(f"getelementptr i8, ptr addrspace(3) {_NAME}, i32 {at}", "p"), min(16, size * like.lanes)

    def _elsewhere(self, at: str) -> str:
        """The same place, of which LLVM does not know that it is. It would keep in registers what was read or written
        there before, all through the loop over rows."""
        return at if self.rows.zero is None else self.w.let(f"add i32 {at}, {self.rows.zero}")

    # -- where a total is -----------------------------------------------------------------------------
    @property
    def _axis(self) -> Axis:
        assert self.plan.rows.vector is not None
        return self.plan.rows.vector

    def _found(self, op: Store, vector: int, v: str, at_last: bool = False) -> Operand:
        if not self.plan.totals_in_registers:
            return self._taken(op, v, self.group, at_last)
        like = Operand("", _DTYPE, self.lanes)
        return like._replace(text=self.w.let(f"load {like.type}, ptr {self.slots[op, vector]}"))

    def _taken(self, op: Store, v: str, team: str, at_last: bool = True) -> Operand:
        """The vector at `v` of a team's totals in shared memory; `at_last`, after all rows."""
        w, word = self.w, Operand("", _DTYPE, self.word)
        words = [
            w.let(f"load {word.type}, ptr addrspace(3) {place}, align {4 * self.word}")
            for place in self._places(op, v, team, at_last)
        ]
        if len(words) == 1:
            return word._replace(text=words[0])
        order = ", ".join(f"i32 {lane}" for lane in range(self.lanes))
        both = f"shufflevector {word.type} {words[0]}, {word.type} {words[1]}, <{self.lanes} x i32> <{order}>"
        return Operand(w.let(both), _DTYPE, self.lanes)

    def _put(self, op: Store, v: str, value: Operand) -> None:
        w, word = self.w, Operand("", _DTYPE, self.word)
        for number, place in enumerate(self._places(op, v, self.group)):
            text = value.text
            if value.lanes > self.word:
                order = ", ".join(f"i32 {number * self.word + lane}" for lane in range(self.word))
                part = f"shufflevector {value.type} {text}, {value.type} poison, <{self.word} x i32> <{order}>"
                text = w.let(part)
            w.emit(f"store {word.type} {text}, ptr addrspace(3) {place}, align {4 * self.word}")

    def _places(self, op: Store, v: str, team: str, at_last: bool = False) -> list[str]:
        """Of the words of the vector."""
        w, words, vectors = self.w, self.lanes // self.word, self.plan.total_vectors
        mine = w.let(f"trunc i64 {v} to i32")
        if words > 1:  # all first words come before all second ones
            mine = w.let(f"lshr i32 {mine}, {words.bit_length() - 1}")
        if team != "0":
            before = w.let(f"mul i32 {team}, {vectors * self.word}")
            mine = w.let(f"add i32 {mine}, {before}")
        mine = self._elsewhere(mine) if at_last else mine
        each = self.plan.teams * vectors * self.word
        found = []
        for number in range(words):
            first = (self.number[op] * words + number) * each
            at = mine if first == 0 else w.let(f"add i32 {mine}, {first}")
            found.append(w.let(f"getelementptr float, ptr addrspace(3) {_NAME}, i32 {at}", "p"))
        return found


__all__ = ["Totals"]
