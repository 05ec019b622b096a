"""Render a kernel as loops: rows in parallel, vectors along one axis, passes over the reduced axes.

In: a `Kernel`. Out: one LLVM function `(pointers..., error, begin, end)` that runs the units of work
`begin <= u < end`, and a `Rendered` that says how many units there are.

A unit is a row: one point of the parallel axes other than the vector axis (or a stretch of the vector
axis when rows are few). Within it, each reduction ends a pass over the reduced axes; what later passes
need of earlier ones is computed again from cached loads, or, where that is dear, kept in a row of scratch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from litz.codegen.llvm.body import Scope, depends
from litz.codegen.llvm.lanes import vector_axis, vectors
from litz.codegen.llvm.reduction import across_lanes, better_than, combine, first_best, running
from litz.codegen.llvm.writer import Module, Operand, Writer, literal, llvm_type
from litz.loop.dtype import DTYPES
from litz.loop.expr import ONE, Axis, Expr, expr
from litz.loop.ir import (
    Apply,
    Buffer,
    Definition,
    Kernel,
    Op,
    Reduce,
    Scan,
    Store,
    definitions_for,
    identity,
    operands,
)
from litz.loop.passes import pass_of_each
from litz.loop.scalar import SCALARS
from litz.target import Target

_DEAR = 8  # an operator this costly is kept for later passes rather than computed again
_SCRATCH_BYTES = 1 << 18
_SHORT_SUM = 4  # two to this many steps are added up at a time, where a floating-point sum has many more
_CUTS = 2  # how often a sum over a size known only at run time is cut
_ROW_STRETCH = 4096  # elements of the vector axis in one unit, when the vector axis itself is split


# What every kernel's function takes after its buffers (and its workspace, if it has one).
TRAILING = ("ptr %sizes", "ptr %error", "i64 %begin", "i64 %end")


@dataclass(frozen=True)
class Rendered:
    """A kernel's function: its name, the buffers it takes in order, its units of work and what one costs."""

    name: str
    buffers: tuple[str, ...]
    units: Expr
    work: int  # scalar operations in all, at the likely sizes
    workspace: int = 0  # bytes each thread needs
    grain: int = 1  # a power of two: threads share the units out in multiples of it


_FLAT_GRAIN = 64  # elements: whole cache lines of any type


def render(
    kernel: Kernel, buffers: dict[str, Buffer], target: Target, module: Module, name: str, sizes: tuple[str, ...] = ()
) -> Rendered:
    return _Renderer(kernel, buffers, target, module, name, sizes).run()


def render_flat(
    kernel: Kernel, buffers: dict[str, Buffer], target: Target, module: Module, name: str, sizes: tuple[str, ...] = ()
) -> Rendered:
    """A kernel in its flat form: its units are elements, however many there are."""
    return _Renderer(kernel, buffers, target, module, name, sizes).run_flat()


def volume(axes: Iterable[Axis]) -> Expr:
    total = ONE
    for axis in axes:
        total = total * axis.size
    return total


def work_of(kernel: Kernel) -> int:
    points = 1
    for axis in (*kernel.axes, *kernel.reduced):
        points *= axis.size.hint
    return points * sum(SCALARS[op.op].cost if isinstance(op, Apply) else 1 for op in kernel.body)


class _Renderer:
    def __init__(
        self,
        kernel: Kernel,
        buffers: dict[str, Buffer],
        target: Target,
        module: Module,
        name: str,
        sizes: tuple[str, ...],
    ):
        self.kernel, self.buffers, self.name = kernel, buffers, name
        self.used = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
        self.w = Writer(module)
        self.varies = depends(kernel.body, kernel.reduced)
        self.reduced = frozenset(kernel.reduced)
        self.vector = vector_axis(kernel)
        self.over_reduced = self.vector in self.reduced
        types = {op.dtype for op in kernel.body if not isinstance(op, Store)}
        only_wide = bool(types & {"f64"}) and not types & {"f32", "f16", "bf16"}
        self.lanes = max(target.vector_bytes // (8 if only_wide else 4), 2)
        self.rows = [a for a in kernel.axes if a != self.vector]
        self.row_count = volume(self.rows)
        self.frame = Scope(
            self.w, buffers, {b: f"%b{i}" for i, b in enumerate(self.used)}, self.lanes, self.vector, self.varies
        )
        self.frame.sizes = self.w.load_sizes(sizes)
        self.extent = {a: self.frame.size(a.size) for a in (*kernel.axes, *kernel.reduced)}
        self._plan_passes()

    # -- passes -------------------------------------------------------------------------------------
    def _varies_in_row(self, name: str) -> bool:
        return bool(self.varies[name] & self.reduced)

    def _plan_passes(self) -> None:
        """Sort the operators by the pass they run in, or, if fixed in the row, before which they run."""
        self.ops: dict[str, Definition] = {}
        self.pass_sinks: dict[int, list[Op]] = {}
        self.row_ops: dict[int, list[Op]] = {}
        for op, stage in zip(self.kernel.body, pass_of_each(self.kernel), strict=True):
            if isinstance(op, Store):
                in_row = any(map(self._varies_in_row, operands(op))) or bool(op.index.axes() & self.reduced)
                in_row = in_row or (op.update is not None and bool(self.reduced))
                (self.pass_sinks if in_row else self.row_ops).setdefault(stage, []).append(op)
                continue
            self.ops[op.name] = op
            if isinstance(op, Reduce):
                self.pass_sinks.setdefault(stage, []).append(op)
            elif not self._varies_in_row(op.name):
                self.row_ops.setdefault(stage, []).append(op)
        for ops in self.row_ops.values():
            # Stores come last: memory may be planned so that one overwrites what the row has loaded.
            ops.sort(key=lambda op: isinstance(op, Store))
        self.passes = max(self.pass_sinks, default=-1) + 1
        self.pass_ops = {p: self._needed(sinks) for p, sinks in self.pass_sinks.items()}
        self._choose_kept()

    def _needed(self, sinks: list[Op], kept: frozenset[str] = frozenset()) -> list[Definition]:
        """The values of the row that `sinks` need, in order; those kept from an earlier pass end the search."""
        fixed = {op.name for op in self.ops.values() if not self._varies_in_row(op.name)}
        needed = definitions_for(self.kernel.body, sinks, fixed | kept)
        direct = {name for op in (*sinks, *needed) for name in operands(op)} & kept
        return [op for op in self.ops.values() if op.name in direct or op in needed]

    def _choose_kept(self) -> None:
        self.kept_in: dict[str, int] = {}
        self.kept_slot: dict[str, str] = {}
        length = volume(self.kernel.reduced)
        if not length.is_int:
            return  # scratch has a fixed size
        row = length.int
        budget = _SCRATCH_BYTES
        for p in sorted(self.pass_ops):
            for op in self.pass_ops[p]:
                dear = isinstance(op, Apply) and SCALARS[op.op].cost >= _DEAR and op.op != "cast"
                later = any(op in self.pass_ops[q] for q in self.pass_ops if q > p)
                size = row * DTYPES[op.dtype].bytes * (1 if self.over_reduced else self.lanes * 4)
                if dear and later and op.name not in self.kept_in and size <= budget and op.dtype != "b1":
                    budget -= size
                    self.kept_in[op.name] = p
                    extra = self.lanes * 4 if self.over_reduced else 0  # a vector may hang over the end
                    count = row * (1 if self.over_reduced else self.lanes * 4) + extra
                    self.kept_slot[op.name] = self.w.slot(f"[{count} x {llvm_type(op.dtype)}]")
        for p, sinks in self.pass_sinks.items():
            kept = frozenset(n for n, first in self.kept_in.items() if first < p)
            self.pass_ops[p] = self._needed(sinks, kept)

    # -- the function -------------------------------------------------------------------------------
    def run(self) -> Rendered:
        stretch = 0
        pieces = ONE
        if self.vector is not None and not self.over_reduced and self.row_count.hint < 64:
            likely = self.vector.size.hint
            stretch = min(_ROW_STRETCH, -(-likely // (8 * self.lanes)) * self.lanes or self.lanes)
            pieces = (self.vector.size + (stretch - 1)) // stretch
        piece_count = self.frame.size(pieces)
        with self.w.loop("%begin", "%end") as unit:
            self.frame = replace(self.frame, axes={}, values={})
            row, start, stop = unit, "0", None
            if pieces is not ONE and self.vector is not None:
                row = self.w.let(f"udiv i64 {unit}, {piece_count}")
                piece = self.w.let(f"urem i64 {unit}, {piece_count}")
                start = self.w.mul(piece, str(stretch))
                stop = self.w.minimum(self.w.add(start, str(stretch)), self.extent[self.vector])
            self._bind_rows(row)
            if self.vector is None or self.over_reduced:
                self._row()
            else:
                self._along_vector(start, stop)
        return self._finish(self.row_count * pieces)

    def run_flat(self) -> Rendered:
        self._along_vector("%begin", "%end")
        return self._finish(volume(self.kernel.axes), _FLAT_GRAIN)

    def _finish(self, units: Expr, grain: int = 1) -> Rendered:
        self.w.emit("ret void")
        parameters = ", ".join([*(f"ptr %b{i}" for i in range(len(self.used))), *TRAILING])
        self.w.define(self.name, parameters)
        return Rendered(self.name, self.used, units, work_of(self.kernel), grain=grain)

    def _bind_rows(self, row: str) -> None:
        rest = row
        for axis in reversed(self.rows):
            if axis is self.rows[0]:
                self.frame.axes[axis] = rest
                break
            self.frame.axes[axis] = self.w.let(f"urem i64 {rest}, {self.extent[axis]}", "i")
            rest = self.w.let(f"udiv i64 {rest}, {self.extent[axis]}", "i")

    def _along_vector(self, start: str, stop: str | None) -> None:
        """The row in vectors: several at a time, then one at a time with the dead lanes masked off."""
        assert self.vector is not None
        self._hoist_uniform()
        copies = self._copies(self.vector.size)
        for v, count, mask in vectors(self.w, self.lanes, start, stop or self.extent[self.vector], copies):
            self._at_vector(v, count, mask)

    def _hoist_uniform(self) -> None:
        """What is the same all along the row is computed before its vectors."""
        for op in self.row_ops.get(0, ()):
            if not isinstance(op, Store) and not self.frame.wide(op.name):
                self.frame.emit(op)

    def _copies(self, size: Expr) -> int:
        """Vectors side by side: to hide the latency of a reduction's chain, and of dear operators. The first size that
        a program meets says nothing about those to come."""
        if any(op.kind.startswith("arg") for op in self.kernel.body if isinstance(op, Reduce)):
            return 1
        live = len(self.kernel.body)
        most = 4 if live <= 12 or self.kernel.reduced else 2 if live <= 40 else 1
        while most > 1 and size.is_int and size.int < most * self.lanes:
            most //= 2
        return most

    def _at_vector(self, v: str, copies: int, mask: str | None) -> None:
        assert self.vector is not None
        outer = self.frame
        self.frame = replace(
            outer, axes={**outer.axes, self.vector: v}, copies=copies, mask=mask, values=dict(outer.values)
        )
        self._row()
        self.frame = outer

    def _row(self) -> None:
        for p in range(self.passes + 1):
            for op in self.row_ops.get(p, ()):
                if isinstance(op, Store) or op.name not in self.frame.values:
                    self.frame.emit(op)
            if p in self.pass_sinks:
                self._pass(p)

    # -- one pass over the reduced axes -------------------------------------------------------------
    def _pass(self, p: int) -> None:
        outer = self.frame
        inner = replace(outer, axes=dict(outer.axes), values=dict(outer.values))
        reduces = [op for op in self.pass_sinks[p] if isinstance(op, Reduce)]
        sequential = [a for a in self.kernel.reduced if a != self.vector]
        if self.over_reduced:
            assert self.vector is not None
            copies = self._copies(self.vector.size)
        else:
            copies = inner.copies
        accumulators = {op.name: self._open(op, copies) for op in reduces}
        accumulators |= {op.name: self._open(op, copies) for op in self.pass_ops[p] if isinstance(op, Scan)}
        self.frame = inner
        self._reduced_loops(sequential, p, accumulators, copies)
        self.frame = outer
        for op in reduces:
            outer.values[op.name] = self._close(op, accumulators[op.name])

    def _reduced_loops(self, axes: list[Axis], p: int, accumulators: dict, copies: int) -> None:
        if axes:
            axis, *rest = axes
            with self._stretch(axis, 1, p, accumulators, copies) as (start, stop, mine), self.w.loop(start, stop) as i:
                self.frame.axes[axis] = i
                self._reduced_loops(rest, p, mine, copies)
            return
        if not self.over_reduced:
            self._pass_body(p, accumulators)
            return
        assert self.vector is not None
        with self._stretch(self.vector, copies * self.lanes, p, accumulators, copies) as (start, stop, mine):
            for v, count, mask in vectors(self.w, self.lanes, start, stop, copies):
                self._pass_at(v, p, mine, count, mask)

    @contextmanager
    def _stretch(
        self, axis: Axis, step: int, p: int, accumulators: dict, copies: int
    ) -> Iterator[tuple[str, str, dict]]:
        """Bounds of a loop over `axis`, and where it accumulates. A long one is cut, and cut again, each stretch summed
        by itself: no accumulator takes in many numbers, so the error stays as small as that of eager's sums."""
        sums = [op for op in self.pass_sinks[p] if isinstance(op, Reduce) and self._rounds(op)]
        with ExitStack() as stack:
            start, stop = "0", self.extent[axis]
            for length in self._lengths(axis, step) if sums else ():
                start = stack.enter_context(self.w.loop(start, stop, length))
                stop = self.w.minimum(self.w.add(start, length), stop)
                inner = accumulators | {op.name: self._open(op, copies) for op in sums}
                stack.callback(self._add_up, sums, accumulators, inner)
                accumulators = inner
            yield start, stop, accumulators

    def _lengths(self, axis: Axis, step: int) -> list[str]:
        """How long the stretches of a sum are, the longest first. Where the size is known only at run time, so are
        they: as many cuts, each into as many parts as the size asks for."""
        if axis.size.is_int:
            levels = max((axis.size.int // step).bit_length() - _SHORT_SUM + 1, 0) // _SHORT_SUM
            return [str(step << (level * _SHORT_SUM)) for level in range(levels, 0, -1)]
        w = self.w
        steps = w.let(f"udiv i64 {self.extent[axis]}, {step}")
        w.module.declare("declare i64 @llvm.ctlz.i64(i64, i1)")
        bits = w.let(f"sub i64 {64 + _CUTS}, {w.let(f'call i64 @llvm.ctlz.i64(i64 {steps}, i1 false)')}")
        power = w.intrinsic("llvm.smax", "i64", w.let(f"udiv i64 {bits}, {_CUTS + 1}"), str(_SHORT_SUM))
        return [w.let(f"shl i64 {step}, {w.mul(power, str(level))}") for level in range(_CUTS, 0, -1)]

    def _add_up(self, sums: list[Reduce], totals: dict, parts: dict) -> None:
        for op in sums:
            lanes, dtype = self._acc_lanes(op), self._dtype(op.value)
            t = llvm_type(dtype, lanes)
            for (total, _), (part, _) in zip(totals[op.name], parts[op.name], strict=True):
                both = (Operand(self.w.let(f"load {t}, ptr {slot}"), dtype, lanes) for slot in (total, part))
                self.w.emit(f"store {t} {combine(self.w, op.kind, *both).text}, ptr {total}")

    def _rounds(self, op: Reduce) -> bool:
        return op.kind == "sum" and DTYPES[self._dtype(op.value)].kind == "float"

    def _pass_at(self, v: str, p: int, accumulators: dict, copies: int, mask: str | None) -> None:
        assert self.vector is not None
        outer = self.frame
        self.frame = replace(
            outer, axes={**outer.axes, self.vector: v}, copies=copies, mask=mask, values=dict(outer.values)
        )
        self._pass_body(p, accumulators)
        self.frame = outer

    def _pass_body(self, p: int, accumulators: dict) -> None:
        frame = self.frame
        for op in self.pass_ops[p]:
            name = op.name
            if self.kept_in.get(name, p) < p:
                frame.values[name] = self._recall(name, op.dtype)
                continue
            if isinstance(op, Scan):
                frame.values[name] = self._accumulate(op, accumulators[name])
                continue
            frame.emit(op)
            if self.kept_in.get(name) == p:
                self._keep(name)
        for sink in self.pass_sinks[p]:
            if isinstance(sink, Reduce):
                self._accumulate(sink, accumulators[sink.name])
            else:
                frame.emit(sink)

    def _kept_address(self, name: str, dtype: str, copy: int) -> str:
        flat = expr(0)
        for axis in self.kernel.reduced:
            if axis != self.vector:
                flat = flat * axis.size + axis
        if self.over_reduced:
            assert self.vector is not None
            flat = flat * self.vector.size + self.vector
            index = self.frame.index(flat, copy, 1).text
        else:
            index = self.w.add(
                self.w.mul(self.frame.index(flat, 0, 1).text, str(self.lanes * 4)), str(copy * self.lanes)
            )
        return self.w.let(f"getelementptr {llvm_type(dtype)}, ptr {self.kept_slot[name]}, i64 {index}", "p")

    def _keep(self, name: str) -> None:
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
            for copy in range(self.frame.copies if lanes > 1 else 1)
        ]

    # -- reductions ---------------------------------------------------------------------------------
    def _acc_lanes(self, op: Reduce | Scan) -> int:
        if self.over_reduced:
            return self.lanes
        return self.lanes if self.vector is not None and self.vector in self.varies[op.value] else 1

    def _open(self, op: Reduce | Scan, copies: int) -> list[tuple[str, str | None]]:
        """Stack slots for the running value (and the running position) of each vector side by side."""
        lanes = self._acc_lanes(op)
        dtype = self._dtype(op.value)
        slots = []
        for _ in range(copies if lanes > 1 else 1):
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

    def _accumulate(self, op: Reduce | Scan, slots: list[tuple[str, str | None]]) -> list[Operand]:
        """The running value, where it stands after this step; nothing of a position."""
        made: list[Operand] = []
        w, frame = self.w, self.frame
        lanes = self._acc_lanes(op)
        dtype = self._dtype(op.value)
        t = llvm_type(dtype, lanes)
        factors = self._factors(op)
        for copy in range(frame.copies if lanes > 1 else 1):
            slot, place = slots[copy]
            masked = frame.mask is not None and lanes > 1 and self.over_reduced
            if factors is not None:
                a, b = (w.splat(frame.get(name, copy), lanes).text for name in factors)
                old = w.let(f"load {t}, ptr {slot}")
                total = w.intrinsic("llvm.fma", t, a, b, old)
                if masked:
                    total = w.let(f"select <{lanes} x i1> {frame.mask}, {t} {total}, {t} {old}")
                made.append(Operand(total, dtype, lanes))
                w.emit(f"store {t} {total}, ptr {slot}")
                continue
            value = w.splat(frame.get(op.value, copy), lanes)
            if masked and place is None:
                start = w.splat(Operand(literal(identity(op.kind, dtype), dtype), dtype, 1), lanes)
                value = Operand(
                    w.let(f"select <{lanes} x i1> {frame.mask}, {t} {value.text}, {t} {start.text}"), dtype, lanes
                )
            old = w.let(f"load {t}, ptr {slot}")
            if place is None:
                step = running if isinstance(op, Scan) else combine
                made.append(step(w, op.kind, Operand(old, dtype, lanes), value))
                w.emit(f"store {t} {made[-1].text}, ptr {slot}")
                continue
            better = better_than(w, op.kind, value, Operand(old, dtype, lanes))
            if masked:
                better = w.let(f"and <{lanes} x i1> {better}, {frame.mask}")
            flat = expr(0)
            for axis in self.kernel.reduced:
                flat = flat * axis.size + axis
            here = w.splat(frame.index(flat, copy, lanes if self.over_reduced else 1), lanes)
            bools, indices = llvm_type("b1", lanes), llvm_type("i64", lanes)
            old_place = w.let(f"load {indices}, ptr {place}")
            best = w.let(f"select {bools} {better}, {t} {value.text}, {t} {old}")
            best_place = w.let(f"select {bools} {better}, {indices} {here.text}, {indices} {old_place}")
            w.emit(f"store {t} {best}, ptr {slot}")
            w.emit(f"store {indices} {best_place}, ptr {place}")
        return made

    def _factors(self, op: Reduce | Scan) -> tuple[str, ...] | None:
        """What is multiplied, where products are summed: multiplied and added at once, they are rounded once."""
        term = self.ops[op.value]
        if not (isinstance(op, Reduce) and op.kind == "sum" and term.dtype in ("f32", "f64")):
            return None
        if not (isinstance(term, Apply) and term.op == "mul" and all(name in self.frame.values for name in term.args)):
            return None
        return term.args

    def _close(self, op: Reduce, slots: list[tuple[str, str | None]]) -> list[Operand]:
        """The finished reduction: one scalar if lanes were reduced, else a vector a copy."""
        w = self.w
        lanes = self._acc_lanes(op)
        dtype = self._dtype(op.value)
        t = llvm_type(dtype, lanes)
        found = [Operand(w.let(f"load {t}, ptr {slot}"), dtype, lanes) for slot, _ in slots]
        if slots[0][1] is not None:
            places = [
                Operand(w.let(f"load {llvm_type('i64', lanes)}, ptr {place}"), "i64", lanes) for _, place in slots
            ]
            if not self.over_reduced or lanes == 1:
                return places
            return [first_best(w, op.kind, found[0], places[0])]
        if not self.over_reduced or lanes == 1:
            return found
        while len(found) > 1:
            found = [combine(w, op.kind, a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
        live = self.vector.size.int if self.vector is not None and self.vector.size.is_int else lanes
        return [across_lanes(w, op.kind, found[0], live)]
