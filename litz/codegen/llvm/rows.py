"""Emit the rows of a plan: vectors along one axis, passes over the reduced axes, reductions.

In: a `RowPlan`, and a `Scope` in which the row's own axes are bound. Out: the instructions of one row, as one thread
of its team runs them. What stands around rows (a loop over them, a block of a grid) is the business of whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import MappingProxyType

from litz.codegen.llvm.body import Scope
from litz.codegen.llvm.gpu_scan import BeforeMe, scan_vectors
from litz.codegen.llvm.reduction import better_of, better_than, combine, first_best, from_zero, running, together
from litz.codegen.llvm.vectors import live_of, vectors, vectors_in_order
from litz.codegen.llvm.writer import Operand, Writer, literal, llvm_type
from litz.codegen.plan_cpu import SCRATCH_COPIES
from litz.codegen.rows import Pass, RowPlan
from litz.codegen.stretches import CUTS, SHORT_SUM, power_of_two, stretches
from litz.loop.dtype import DTYPES
from litz.loop.expr import Axis, Expr, expr
from litz.loop.ir import Apply, Definition, Reduce, Scan, Store, identity

_FEW_OPS = 24  # in a loop of which several steps may be written side by side
# What the threads of a team found, value and position (of a value alone, none), as what all of them found.
AcrossTeam = Callable[[str, Operand, "Operand | None"], "tuple[Operand, Operand | None]"]
Alone = Callable[[], AbstractContextManager[None]]  # what one thread of the team does, when the others have come as far
AddToTotal = Callable[[Store, int], None]  # what is summed down columns, at the thread's vectors from this one on
Staged = Callable[[int], dict[str, list[Operand]]]  # by the pass
AfterVector = Callable[[int, int], None]  # the pass, and which of the thread's vectors
_FEW_VALUES = 32  # that a thread may hold as numbers, whatever they were loaded as
Slots = list[tuple[str, "str | None"]]  # where running values are, and running positions


class Rows:
    def __init__(
        self,
        plan: RowPlan,
        writer: Writer,
        frame: Scope,
        me: str = "0",
        across_team: AcrossTeam | None = None,
        before_me: BeforeMe | None = None,
        alone: Alone = nullcontext,
        add_to_total: AddToTotal | None = None,
        zero: str | None = None,
    ):
        self.plan, self.w, self.frame, self.me, self.across_team = plan, writer, frame, me, across_team
        self.before_me, self.alone, self.add_to_total, self.zero = before_me, alone, add_to_total, zero
        self.loaded: dict[str, list[Operand]] = {}  # of a packed row, by vector, and what is kept of it
        self.staged: Staged = lambda p: {}  # what is the same for all rows, at the vector where the row stands
        # Where a row's loads were ahead of it: what is to be done when a pass is done with one of its vectors.
        self.after_vector: AfterVector | None = None
        self.common: frozenset[str] = frozenset()  # of that, what was loaded once for all rows
        self.kernel = plan.kernel
        self.vector, self.lanes = plan.vector, plan.lanes
        self.ops: dict[str, Definition] = {op.name: op for op in plan.kernel.body if not isinstance(op, Store)}
        self.extent = {a: frame.size(a.size) for a in (*self.kernel.axes, *self.kernel.reduced)}
        self.kept_slot = {name: self._scratch(name) for name in plan.kept if plan.packed is None}

    @property
    def is_divided(self) -> bool:
        """Whether vectors divide the axis, so that all of one is live or nothing."""
        assert self.vector is not None
        return all(factor % self.lanes == 0 for _, factor in self.vector.size.terms)

    def _scratch(self, name: str) -> str:
        row = 1
        for axis in self.kernel.reduced:
            row *= axis.size.int
        spare = self.lanes * SCRATCH_COPIES  # a vector may hang over the end
        count = row + spare if self.plan.over_reduced else row * spare
        return self.w.slot(f"[{count} x {llvm_type(self._dtype(name))}]")

    # -- rows ---------------------------------------------------------------------------------------
    def bind(self, row: str) -> None:
        """The axes of a row, by its number."""
        self.frame = replace(self.frame, axes={}, values={})
        self.frame.axes.update(self.axes_of(row))

    def axes_of(self, row: str) -> dict[Axis, str]:
        found: dict[Axis, str] = {}
        rest = row
        for axis in reversed(self.plan.rows):
            if axis is self.plan.rows[0]:
                found[axis] = rest
                break
            found[axis] = self.w.let(f"urem i64 {rest}, {self.extent[axis]}", "i")
            rest = self.w.let(f"udiv i64 {rest}, {self.extent[axis]}", "i")
        return found

    @contextmanager
    def standing_in(self, axes: Mapping[Axis, str]) -> Iterator[None]:
        """In the row of those axes, of which nothing is known yet."""
        outer = self.frame
        self.frame = replace(outer, axes={**dict.fromkeys(self.kernel.reduced, "0"), **axes}, values={})
        yield
        self.frame = outer

    def along_vector(self, start: str, stop: str | None) -> None:
        """The row in vectors: several at a time, then one at a time with the dead lanes masked off."""
        assert self.vector is not None
        self._hoist_uniform()
        for v, count, mask in vectors(
            self.w, self.lanes, start, stop or self.extent[self.vector], self.plan.copies, self.plan.team, self.me,
            self.plan.team > 1 and self.is_divided,
        ):  # fmt: skip
            self.at_vector(v, count, (mask,))

    def _hoist_uniform(self) -> None:
        """What is the same all along the row is computed before its vectors."""
        for op in self.plan.passes[0].before:
            if not isinstance(op, Store) and not self.frame.along(op.name):
                self.frame.emit(op)

    def at_vector(self, v: str, copies: int, masks: tuple[Operand | None, ...]) -> None:
        with self.standing_at(v, copies, masks):
            self.row()

    @contextmanager
    def standing_at(self, v: str, copies: int, masks: tuple[Operand | None, ...]) -> Iterator[None]:
        assert self.vector is not None
        outer = self.frame
        self.frame = replace(
            outer, axes={**outer.axes, self.vector: v}, copies=copies, apart=self.plan.step, masks=masks,
            values=dict(outer.values),
        )  # fmt: skip
        yield
        self.frame = outer

    def row(self) -> None:
        if self.plan.held:
            self._held_row()
            return
        if self.plan.packed is not None and self.after_vector is None:
            self._load_packed(tuple(name for name in self.plan.packed if name not in self.common))
        for p, one in enumerate(self.plan.passes):
            self._before(one)
            if one.sinks:
                self._pass(p)

    def _before(self, one: Pass) -> None:
        for op in one.before:
            if not isinstance(op, Store) and op.name not in self.frame.values:
                self.frame.emit(op)
        stores = [op for op in one.before if isinstance(op, Store)]
        with self.alone() if stores and self.plan.shares_rows else nullcontext():
            for op in stores:
                self.frame.emit(op)

    def load_common(self) -> None:
        """Of a packed row, what is the same for all rows, before the first of many."""
        packed, rows = self.plan.packed or (), frozenset(self.plan.rows)
        common = tuple(name for name in packed if not self.plan.varies[name] & rows)
        self._load_packed(common)
        self.common = frozenset(common)

    def _load_packed(self, names: tuple[str, ...]) -> None:
        """All that passes share of what the row loads, before any of it is used."""
        for axis in self.kernel.reduced:
            self.frame.axes[axis] = "0"
        for copy in range(self.plan.copies):
            with self.standing_at_packed(copy):
                for name in names:
                    self.frame.emit(self.ops[name])
                    self.loaded.setdefault(name, []).append(self.frame.values[name][0])

    @contextmanager
    def standing_at_packed(self, copy: int) -> Iterator[None]:
        assert self.vector is not None
        v = self.w.add(self.w.mul(self.me, str(self.lanes)), str(copy * self.plan.step))
        size, end = self.vector.size.int, (copy + 1) * self.plan.step
        mask = live_of(self.w, v, str(size), self.lanes, whole=size % self.lanes == 0, ragged=end > size)
        with self.standing_at(v, 1, (mask,)):
            yield

    def _unpacked(self, name: str, copy: int, p: int) -> Operand:
        """What was loaded. In a long row a later pass must not see that it was looked at before: the numbers made of
        it would be kept meanwhile, and take twice its registers. That is hidden from LLVM, or, with a zero that only
        the device knows to be one, from the assembler too."""
        value = self.loaded[name][copy]
        bits = DTYPES[value.dtype].bits
        few = self.plan.copies * self.lanes <= _FEW_VALUES and self.zero is None
        seen = name in self.common or (p > 0 and not few)
        if not seen or bits > 16 or value.lanes * bits < 32:
            return value
        w, words = self.w, value.lanes * bits // 32
        t = f"<{words} x i32>" if words > 1 else "i32"
        whole = w.let(f"bitcast {value.type} {value.text} to {t}")
        hidden = "poison"
        for word in range(words):
            one = whole if words == 1 else w.let(f"extractelement {t} {whole}, i32 {word}")
            if self.zero is None:
                one = w.let(f'call i32 asm sideeffect "", "=r,0"(i32 {one})')
            else:
                one = w.let(f"xor i32 {one}, {self.zero}")
            hidden = one if words == 1 else w.let(f"insertelement {t} {hidden}, i32 {one}, i32 {word}")
        return value._replace(text=w.let(f"bitcast {t} {hidden} to {value.type}"))

    def _held_row(self) -> None:
        """All of the row at once: every operator is emitted once, for all its vectors."""
        assert self.vector is not None
        size, step = self.vector.size.int, self.plan.step
        mine = self.w.mul(self.me, str(self.lanes))
        masks = []
        for end in range(step, self.plan.copies * step + 1, step):
            v = self.w.add(mine, str(end - step))
            whole = self.plan.team > 1
            masks.append(live_of(self.w, v, str(size), self.lanes, whole, ragged=end > size))
        outer = self.frame
        for axis in self.kernel.reduced:
            outer.axes[axis] = "0"
        with self.standing_at(mine, self.plan.copies, tuple(masks)):
            stores = []
            for op in self.kernel.body:
                if isinstance(op, Reduce):
                    total = self._together(op, self._terms(op, self.plan.copies))
                    self.frame.values[op.name] = [from_zero(self.w, op.kind, total)]
                elif isinstance(op, Store):
                    stores.append(op)
                else:
                    self.frame.emit(op)
            for op in stores:
                self.frame.emit(op)

    def _terms(self, op: Reduce | Scan, copies: int) -> list[Operand]:
        """What each vector of a row adds to the reduction: nothing where it is not live."""
        dtype, terms = self._dtype(op.value), []
        start = self.w.splat(Operand(literal(identity(op.kind, dtype), dtype), dtype, 1), self.lanes)
        for copy in range(copies):
            value, mask = self.w.splat(self.frame.get(op.value, copy), self.lanes), self.frame.mask(copy)
            if mask is not None:
                chosen = f"select {mask.type} {mask.text}, {value.type} {value.text}, {value.type} {start.text}"
                value = value._replace(text=self.w.let(chosen))
            terms.append(value)
        return terms

    # -- one pass over the reduced axes -------------------------------------------------------------
    def _pass(self, p: int) -> None:
        outer = self.frame
        inner = replace(outer, axes=dict(outer.axes), values=dict(outer.values))
        one = self.plan.passes[p]
        reduces = [op for op in one.sinks if isinstance(op, Reduce)]
        sequential = [a for a in self.kernel.reduced if a != self.vector]
        copies = inner.copies
        if self.plan.over_reduced:
            copies = self.plan.copies if self.plan.packed is None else 1
        accumulators = {op.name: self._open(op, copies) for op in reduces}
        accumulators |= {op.name: self._open(op, copies) for op in one.ops if isinstance(op, Scan)}
        self.frame = inner
        self._reduced_loops(sequential, p, accumulators, copies)
        self.frame = outer
        for op in reduces:
            outer.values[op.name] = self._close(op, accumulators[op.name])

    def _reduced_loops(self, axes: list[Axis], p: int, accumulators: dict[str, Slots], copies: int) -> None:
        if axes:
            axis, *rest = axes
            together = not rest and self._is_simple(p)
            step = self.plan.team if axis == self.plan.shared_axis else 1
            inside = self.plan.numbers_inside(rest)
            with self._stretch(axis, step, inside, p, accumulators, copies) as (start, stop, mine):
                first = start if step == 1 else self.w.add(start, self.me)
                with self.w.loop(first, stop, step, together=together) as i:
                    self.frame.axes[axis] = i
                    self._reduced_loops(rest, p, mine, copies)
            return
        if not self.plan.over_reduced:
            self._pass_body(p, accumulators)
            return
        assert self.vector is not None
        if self.plan.packed is not None:
            for copy in range(self.plan.copies):
                with self.standing_at_packed(copy):
                    held = (*self.plan.packed, *(name for name, first in self.plan.kept.items() if first < p))
                    known = {name: [self._unpacked(name, copy, p)] for name in held}
                    known |= self.staged(p)
                    self._pass_body(p, accumulators, known, copy)
                if self.after_vector is not None:
                    self.after_vector(p, copy)
            return
        with self._stretch(self.vector, copies * self.plan.step, 1, p, accumulators, copies) as (start, stop, mine):
            team, divided = self.plan.team, self.plan.team > 1 and self.is_divided
            along = (self.w, self.lanes, start, stop, copies, team, self.me, divided)
            if self.kernel.ordered:
                rounds = vectors_in_order(*along)
            else:
                rounds = ((v, count, (mask,)) for v, count, mask in vectors(*along))
            for v, count, masks in rounds:
                with self.standing_at(v, count, masks):
                    self._pass_body(p, mine)

    def _is_simple(self, p: int) -> bool:
        """Whether a step of the pass only reads, and does little with what it reads: then the steps that follow need
        not wait for it."""
        one = self.plan.passes[p]
        reads_only = all(isinstance(sink, Reduce) for sink in one.sinks)
        return reads_only and not self.plan.over_reduced and len(one.ops) <= _FEW_OPS

    @contextmanager
    def _stretch(
        self, axis: Axis, step: int, inside: int, p: int, accumulators: dict[str, Slots], copies: int
    ) -> Iterator[tuple[str, str, dict[str, Slots]]]:
        """Bounds of a loop over `axis`, and where it accumulates. A long one is cut, and cut again, each stretch summed
        by itself: no accumulator takes in many numbers, so the error stays as small as that of eager's sums. It is
        long by what the loops inside it add at each step, too."""
        sums = [op for op in self.plan.passes[p].sinks if isinstance(op, Reduce) and self._rounds(op)]
        with ExitStack() as stack:
            start, stop = "0", self.extent[axis]
            for length in self._lengths(axis, step, inside) if sums else ():
                start = stack.enter_context(self.w.loop(start, stop, length))
                stop = self.w.minimum(self.w.add(start, length), stop)
                inner = accumulators | {op.name: self._open(op, copies) for op in sums}
                stack.callback(self._add_up, sums, accumulators, inner)
                accumulators = inner
            yield start, stop, accumulators

    def _lengths(self, axis: Axis, step: int, inside: int) -> list[str]:
        """How long the stretches of a sum are, the longest first. Where the size is known only at run time, so are
        they: as many cuts, each into as many parts as the size asks for."""
        if axis.size.is_int:
            return [str(length) for length in stretches(axis.size.int, step, inside, self.plan.most_added)]
        w, known = self.w, power_of_two(inside)  # the instructions of `stretches_at_run_time`
        steps = w.let(f"udiv i64 {self.extent[axis]}, {step}")
        w.module.declare("declare i64 @llvm.ctlz.i64(i64, i1)")
        bits = w.let(f"sub i64 {64 + known + CUTS}, {w.let(f'call i64 @llvm.ctlz.i64(i64 {steps}, i1 false)')}")
        power = w.intrinsic("llvm.smax", "i64", w.let(f"udiv i64 {bits}, {CUTS + 1}"), str(SHORT_SUM))
        powers = [w.mul(power, str(level)) for level in range(CUTS, 0, -1)]
        if known:
            powers = [w.intrinsic("llvm.smax", "i64", w.let(f"sub i64 {each}, {known}"), "0") for each in powers]
        return [w.let(f"shl i64 {step}, {each}") for each in powers]

    def _add_up(self, sums: list[Reduce], totals: dict[str, Slots], parts: dict[str, Slots]) -> None:
        for op in sums:
            lanes, dtype = self._acc_lanes(op), self._dtype(op.value)
            t = llvm_type(dtype, lanes)
            for (total, _), (part, _) in zip(totals[op.name], parts[op.name], strict=True):
                both = (Operand(self.w.let(f"load {t}, ptr {slot}"), dtype, lanes) for slot in (total, part))
                self.w.emit(f"store {t} {combine(self.w, op.kind, *both).text}, ptr {total}")

    def _rounds(self, op: Reduce) -> bool:
        return op.kind == "sum" and DTYPES[self._dtype(op.value)].kind == "float"

    def _pass_body(
        self, p: int, accumulators: dict[str, Slots], known: Mapping[str, list[Operand]] = MappingProxyType({}),
        vector: int = 0,
    ) -> None:  # fmt: skip
        frame, one, kept = self.frame, self.plan.passes[p], self.plan.kept
        for op in one.ops:
            name = op.name
            if name in known:
                frame.values[name] = known[name]
                continue
            if kept.get(name, p) < p:
                frame.values[name] = self._recall(name, op.dtype)
                continue
            if isinstance(op, Scan):
                step = self._scan_along if self.plan.over_reduced else self._accumulate
                frame.values[name] = step(op, accumulators[name])
                continue
            frame.emit(op)
            if kept.get(name) == p:
                self._keep(name)
        for sink in one.sinks:
            if isinstance(sink, Reduce):
                self._accumulate(sink, accumulators[sink.name])
            elif isinstance(sink, Store) and sink.update == "total":
                assert self.add_to_total is not None
                self.add_to_total(sink, vector)
            else:
                frame.emit(sink)

    # -- what is kept for later passes --------------------------------------------------------------
    def _kept_address(self, name: str, dtype: str, copy: int) -> str:
        flat = self._flat([axis for axis in self.kernel.reduced if axis != self.vector])
        if self.plan.over_reduced:
            assert self.vector is not None
            index = self.frame.index(flat * self.vector.size + self.vector, copy, 1).text
        else:
            index = self.w.add(
                self.w.mul(self.frame.index(flat, 0, 1).text, str(self.lanes * SCRATCH_COPIES)), str(copy * self.lanes)
            )
        return self.w.let(f"getelementptr {llvm_type(dtype)}, ptr {self.kept_slot[name]}, i64 {index}", "p")

    def _keep(self, name: str) -> None:
        if self.plan.packed is not None:
            self.loaded.setdefault(name, []).extend(self.frame.values[name])
            return
        for copy, value in enumerate(self.frame.values[name]):
            address = self._kept_address(name, value.dtype, copy)
            # Scratch has room for whole vectors, so dead lanes may be written.
            self.w.emit(f"store {value.type} {value.text}, ptr {address}, align {DTYPES[value.dtype].bytes}")

    def _recall(self, name: str, dtype: str) -> list[Operand]:
        lanes = self.lanes if self.frame.wide(name) else 1
        t = llvm_type(dtype, lanes)
        return [
            Operand(
                self.w.let(f"load {t}, ptr {self._kept_address(name, dtype, copy)}, align {DTYPES[dtype].bytes}"),
                dtype,
                lanes,
            )
            for copy in range(self.frame.copies if self.frame.along(name) else 1)
        ]

    # -- reductions ---------------------------------------------------------------------------------
    @staticmethod
    def _flat(axes: list[Axis]) -> Expr:
        flat = expr(0)
        for axis in axes:
            flat = flat * axis.size + axis
        return flat

    def _side_by_side(self, op: Reduce | Scan) -> bool:
        """Whether it has a running value for each lane and copy."""
        if self.plan.over_reduced and isinstance(op, Scan):
            return False  # its steps are those lanes
        return self.plan.over_reduced or self.frame.along(op.value)

    def _acc_lanes(self, op: Reduce | Scan) -> int:
        return self.lanes if self._side_by_side(op) else 1

    def _open(self, op: Reduce | Scan, copies: int) -> Slots:
        """Stack slots for the running value (and the running position) of each vector side by side."""
        lanes = self._acc_lanes(op)
        dtype = self._dtype(op.value)
        slots: Slots = []
        for _ in range(copies if self._side_by_side(op) else 1):
            slot = self.w.slot(llvm_type(dtype, lanes))
            start = self.w.splat(Operand(literal(identity(op.kind, dtype), dtype), dtype, 1), lanes)
            self.w.emit(f"store {start.type} {start.text}, ptr {slot}")
            place = None
            if op.kind.startswith("arg"):
                place = self.w.slot(llvm_type("i64", lanes))
                self.w.emit(f"store {llvm_type('i64', lanes)} zeroinitializer, ptr {place}")
            slots.append((slot, place))
        return slots

    def _dtype(self, name: str) -> str:
        return self.ops[name].dtype

    def _accumulate(self, op: Reduce | Scan, slots: Slots) -> list[Operand]:
        """The running value, where it stands after this step; nothing of a position."""
        made: list[Operand] = []
        w, frame = self.w, self.frame
        lanes = self._acc_lanes(op)
        dtype = self._dtype(op.value)
        t = llvm_type(dtype, lanes)
        factors = self.factors(op.value) if isinstance(op, Reduce) and op.kind == "sum" else None
        for copy in range(frame.copies if self._side_by_side(op) else 1):
            slot, place = slots[copy]
            mask = frame.mask(copy) if self.plan.over_reduced else None
            if factors is not None:
                a, b = (w.splat(frame.get(name, copy), lanes).text for name in factors)
                old = w.let(f"load {t}, ptr {slot}")
                total = w.intrinsic("llvm.fma", t, a, b, old)
                if mask is not None:
                    total = w.let(f"select {mask.type} {mask.text}, {t} {total}, {t} {old}")
                made.append(Operand(total, dtype, lanes))
                w.emit(f"store {t} {total}, ptr {slot}")
                continue
            value = w.splat(frame.get(op.value, copy), lanes)
            if mask is not None and place is None:
                start = w.splat(Operand(literal(identity(op.kind, dtype), dtype), dtype, 1), lanes)
                value = Operand(
                    w.let(f"select {mask.type} {mask.text}, {t} {value.text}, {t} {start.text}"), dtype, lanes
                )
            old = w.let(f"load {t}, ptr {slot}")
            if place is None:
                step = running if isinstance(op, Scan) else combine
                made.append(step(w, op.kind, Operand(old, dtype, lanes), value))
                w.emit(f"store {t} {made[-1].text}, ptr {slot}")
                continue
            better = better_than(w, op.kind, value, Operand(old, dtype, lanes))
            bools, indices = llvm_type("b1", lanes), llvm_type("i64", lanes)
            if mask is not None:
                better = w.let(f"and {bools} {better}, {w.splat(mask, lanes).text}")
            flat = self._flat(list(self.kernel.reduced))
            here = w.splat(frame.index(flat, copy, lanes if self.plan.over_reduced else 1), lanes)
            old_place = w.let(f"load {indices}, ptr {place}")
            best = w.let(f"select {bools} {better}, {t} {value.text}, {t} {old}")
            best_place = w.let(f"select {bools} {better}, {indices} {here.text}, {indices} {old_place}")
            w.emit(f"store {t} {best}, ptr {slot}")
            w.emit(f"store {indices} {best_place}, ptr {place}")
        return made

    def _scan_along(self, op: Scan, slots: Slots) -> list[Operand]:
        """The steps that lie along the vectors, scanned; what is carried on is in the slot."""
        ((slot, _),), dtype = slots, self._dtype(op.value)
        carry = Operand(self.w.let(f"load {llvm_type(dtype)}, ptr {slot}"), dtype, 1)
        steps = self._terms(op, self.frame.copies)
        found, carry = scan_vectors(self.w, op.kind, carry, steps, self.before_me)
        self.w.emit(f"store {carry.type} {carry.text}, ptr {slot}")
        return found

    def factors(self, name: str) -> tuple[str, ...] | None:
        """What is multiplied, where products are summed: multiplied and added at once, they are rounded once."""
        term = self.ops[name]
        if term.dtype not in ("f32", "f64"):
            return None
        if not (isinstance(term, Apply) and term.op == "mul" and all(name in self.frame.values for name in term.args)):
            return None
        return term.args

    def _close(self, op: Reduce, slots: Slots) -> list[Operand]:
        """The finished reduction: one scalar if lanes were reduced, else a vector a copy."""
        w = self.w
        lanes = self._acc_lanes(op)
        dtype = self._dtype(op.value)
        t = llvm_type(dtype, lanes)
        found = [Operand(w.let(f"load {t}, ptr {slot}"), dtype, lanes) for slot, _ in slots]
        places = [
            Operand(w.let(f"load {llvm_type('i64', lanes)}, ptr {place}"), "i64", lanes)
            for _, place in slots
            if place is not None
        ]
        if not self.plan.over_reduced:
            if self.plan.shared_axis is None:
                return places or found
            assert self.across_team is not None
            at: list[Operand | None] = [*places] or [None] * len(found)
            shared = [self.across_team(op.kind, value, place) for value, place in zip(found, at, strict=True)]
            return [value if place is None else place for value, place in shared]
        if places:
            best, place = first_best(w, op.kind, found[0], places[0])
            for other in zip(found[1:], places[1:], strict=True):
                best, place = better_of(w, op.kind, (best, place), first_best(w, op.kind, *other))
            if self.across_team is not None:
                _, found_place = self.across_team(op.kind, best, place)
                assert found_place is not None
                place = found_place
            return [place]
        return [self._together(op, found)]

    def _together(self, op: Reduce, found: list[Operand]) -> Operand:
        """What vectors side by side make together, with those of the team's other threads."""
        lanes = self.lanes
        live = self.vector.size.int if self.vector is not None and self.vector.size.is_int else lanes
        total = together(self.w, op.kind, found, live if self.plan.team == 1 else lanes)
        return total if self.across_team is None else self.across_team(op.kind, total, None)[0]


__all__ = ["AcrossTeam", "Rows"]
