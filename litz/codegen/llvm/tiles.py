"""Render a sum of products as a tile of accumulators fed straight from memory: windows, and products of few rows.

In: a kernel and its `Tiling`. Out: one function, as `loops.py` makes them.

Some of the rows are taken several at a time: neighbouring places of a window's result read mostly the same elements and
the same taps, a few rows of a matrix the same columns. The innermost reduced axis is written out where it is short, and
what two products of the tile have in common is loaded once. What follows the sum runs over the tile in a loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from litz.codegen.depend import depends
from litz.codegen.llvm.body import Scope
from litz.codegen.llvm.reduction import across_lanes
from litz.codegen.llvm.rendered import TRAILING, Rendered
from litz.codegen.llvm.tiling import Tiling
from litz.codegen.llvm.vectors import vectors
from litz.codegen.llvm.writer import Module, Operand, Writer, llvm_type
from litz.codegen.rows import volume, work_of
from litz.loop.expr import Axis
from litz.loop.ir import Apply, Buffer, Kernel, Store, definitions_for
from litz.loop.scalar import SCALARS
from litz.target import Target

_RUN = 32  # products summed in one go, where a sum has many more
_FEW_UNITS = 64  # below this the vector axis is shared out too
_PIECES = 8
_LITTLE = 4  # operations after the sum that are written out for each point of the tile


def render(
    kernel: Kernel,
    tiling: Tiling,
    buffers: dict[str, Buffer],
    target: Target,
    module: Module,
    name: str,
    sizes: tuple[str, ...] = (),
) -> Rendered:
    return _Renderer(kernel, tiling, buffers, target, module, name, sizes).run()


@dataclass(frozen=True)
class _Part:
    """Accumulators of one tile: a slot for each point and each vector side by side, the vectors fastest."""

    points: tuple[tuple[int, ...], ...]
    copies: int
    slots: tuple[str, ...]


class _Renderer:
    def __init__(
        self,
        kernel: Kernel,
        tiling: Tiling,
        buffers: dict[str, Buffer],
        target: Target,
        module: Module,
        name: str,
        sizes: tuple[str, ...],
    ):
        self.kernel, self.tiling, self.name = kernel, tiling, name
        self.vector, self.lanes = tiling.vector, tiling.lanes
        self.over_reduced = self.vector in kernel.reduced
        self.dtype = tiling.total.dtype
        self.w = Writer(module)
        self.used = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
        pointers = {b: f"%b{i}" for i, b in enumerate(self.used)}
        varies = depends(kernel.body, kernel.reduced)
        self.frame = Scope(self.w, buffers, pointers, self.lanes, self.vector, varies)
        self.frame.sizes = self.w.load_sizes(sizes)
        self.extent = {a: self.frame.size(a.size) for a in (*kernel.axes, *kernel.reduced)}
        self.steps = dict(tiling.tile)
        rows = [a for a in tiling.rows if a not in self.steps]
        # Tiles follow each other last: what they share with their neighbours is then still in the cache.
        self.rows = [*rows, *self.steps]
        self.blocks = {a: -(-a.size.int // step) for a, step in tiling.tile}
        self.pass_ops = definitions_for(kernel.body, [tiling.total])[:-1]
        self.stores = [op for op in kernel.body if isinstance(op, Store)]
        self.after = definitions_for(kernel.body, self.stores, {tiling.total.name})

    def run(self) -> Rendered:
        w = self.w
        units = volume(a for a in self.rows if a not in self.steps) * prod(self.blocks.values())
        pieces, length = self._pieces(units.hint)
        with w.loop("%begin", "%end") as unit:
            self.frame = replace(self.frame, axes={}, values={})
            start, stop = "0", self.extent[self.vector]
            if pieces > 1:
                start = w.mul(w.let(f"urem i64 {unit}, {pieces}"), str(length))
                stop = w.minimum(w.add(start, str(length)), stop)
                unit = w.let(f"udiv i64 {unit}, {pieces}")
            blocks = self._bind_rows(unit)
            self._tiles(list(self.tiling.tile), blocks, (), start, stop)
        w.emit("ret void")
        parameters = ", ".join([*(f"ptr %b{i}" for i in range(len(self.used))), *TRAILING])
        w.define(self.name, parameters)
        return Rendered(self.name, self.used, units * pieces, work_of(self.kernel))

    def _pieces(self, units: int) -> tuple[int, int]:
        """Shares of the vector axis, and how long each is, where the rows alone are few."""
        step = self.lanes * self.tiling.copies
        if self.over_reduced or units >= _FEW_UNITS or not self.vector.size.is_int or self.vector.size.int <= step:
            return 1, 0
        length = -(-self.vector.size.int // (_PIECES * step)) * step
        return -(-self.vector.size.int // length), length

    def _bind_rows(self, unit: str) -> dict[Axis, str]:
        """Rows that the unit's number counts through, last fastest; of tiled ones, which block it is."""
        blocks: dict[Axis, str] = {}
        rest = unit
        for axis in reversed(self.rows):
            first = axis is self.rows[0]
            extent = str(self.blocks[axis]) if axis in self.blocks else self.extent[axis]
            here = rest if first else self.w.let(f"urem i64 {rest}, {extent}", "i")
            if not first:
                rest = self.w.let(f"udiv i64 {rest}, {extent}", "i")
            if axis in self.blocks:
                blocks[axis] = here
                here = self.w.mul(here, str(self.steps[axis]))
            self.frame.axes[axis] = here
        return blocks

    def _tiles(
        self, axes: list[tuple[Axis, int]], blocks: dict[Axis, str], counts: tuple[int, ...], start: str, stop: str
    ) -> None:
        """The tile that the unit stands at; one at the end of an axis may be smaller."""
        if not axes:
            self._tile(counts, start, stop)
            return
        (axis, step), *rest = axes
        left = axis.size.int % step
        if not left:
            self._tiles(rest, blocks, (*counts, step), start, stop)
            return
        w = self.w
        if self.blocks[axis] > 1:
            whole = w.let(f"icmp slt i64 {blocks[axis]}, {self.blocks[axis] - 1}")
            with w.when(whole):
                self._tiles(rest, blocks, (*counts, step), start, stop)
            with w.when(w.let(f"xor i1 {whole}, true")):
                self._tiles(rest, blocks, (*counts, left), start, stop)
        else:
            self._tiles(rest, blocks, (*counts, left), start, stop)

    def _tile(self, counts: tuple[int, ...], start: str, stop: str) -> None:
        points = tuple(product(*(range(count) for count in counts)))
        if self.over_reduced:
            part = self._open(points, self.tiling.copies)
            with self._runs(self.vector, self.lanes * self.tiling.copies, part) as (begin, end, run):
                for v, copies, mask in vectors(self.w, self.lanes, begin, end, self.tiling.copies):
                    self._sum(v, mask, replace(run, copies=copies))
            self._finish(counts, [self._across(part, p) for p in range(len(points))], 1)
            return
        for v, copies, mask in vectors(self.w, self.lanes, start, stop, self.tiling.copies):
            part = self._open(points, copies)
            self._sum(v, mask, part)
            outer = self.frame
            self.frame = replace(outer, axes={**outer.axes, self.vector: v}, copies=copies, masks=(mask,))
            self._finish(counts, [self._loaded(slot) for slot in part.slots], copies)
            self.frame = outer

    # -- the sum ------------------------------------------------------------------------------------
    def _open(self, points: tuple[tuple[int, ...], ...], copies: int) -> _Part:
        t = llvm_type(self.dtype, self.lanes)
        slots = tuple(self.w.slot(t) for _ in range(len(points) * copies))
        for slot in slots:
            self.w.emit(f"store {t} zeroinitializer, ptr {slot}")
        return _Part(points, copies, slots)

    def _loaded(self, slot: str) -> Operand:
        return Operand(self.w.let(f"load {llvm_type(self.dtype, self.lanes)}, ptr {slot}"), self.dtype, self.lanes)

    def _sum(self, v: str, mask: Operand | None, part: _Part) -> None:
        """The products at the vectors from `v` on, over all other reduced axes."""
        outer = self.frame
        self.frame = replace(outer, axes={**outer.axes, self.vector: v}, masks=(mask,), values=dict(outer.values))
        rolled = [a for a in self.kernel.reduced if a != self.vector and a not in self.tiling.unrolled]
        with ExitStack() as stack:
            for axis in rolled:
                start, stop, part = stack.enter_context(self._runs(axis, 1, part))
                self.frame.axes[axis] = stack.enter_context(self.w.loop(start, stop))
            with self.w.shared():
                self._products(part)
        self.frame = outer

    @contextmanager
    def _runs(self, axis: Axis, step: int, part: _Part) -> Iterator[tuple[str, str, _Part]]:
        """Bounds of a loop over `axis`, and where it adds up: many steps in runs, each summed by itself, so that no
        accumulator takes in many numbers."""
        size = axis.size.int
        if size < 2 * _RUN * step:
            yield "0", str(size), part
            return
        length = step * max(_RUN, 1 << ((size // step).bit_length() // 2))
        with self.w.loop("0", str(size), length) as start:
            run = self._open(part.points, len(part.slots) // len(part.points))
            yield start, self.w.minimum(self.w.add(start, str(length)), str(size)), replace(run, copies=part.copies)
            t = llvm_type(self.dtype, self.lanes)
            for total, one in zip(part.slots, run.slots, strict=True):
                both = f"{self._loaded(total).text}, {self._loaded(one).text}"
                self.w.emit(f"store {t} {self.w.let(f'fadd {t} {both}')}, ptr {total}")

    def _products(self, part: _Part) -> None:
        """One step of the rolled axes: every product of the tile, added to its accumulator."""
        w, tiling = self.w, self.tiling
        width = len(part.slots) // len(part.points)
        slots = [part.slots[p * width + c] for p in range(len(part.points)) for c in range(part.copies)]
        sums = [self._loaded(slot) for slot in slots]
        for taps in product(*(range(axis.size.int) for axis in tiling.unrolled)):
            written_out = dict(zip(tiling.unrolled, taps, strict=True))
            shifts = tuple(
                {**written_out, **dict(zip(self.steps, point, strict=True)), self.vector: copy * self.lanes}
                for point in part.points
                for copy in range(part.copies)
            )
            frame = replace(
                self.frame, axes={**self.frame.axes, **dict.fromkeys(tiling.unrolled, "0")}, copies=len(slots),
                shifts=shifts, spread=frozenset(self.steps), values=dict(self.frame.values),
            )  # fmt: skip
            for op in self.pass_ops:
                frame.emit(op)
            sums = [self._added(frame, i, total) for i, total in enumerate(sums)]
        for slot, total in zip(slots, sums, strict=True):
            w.emit(f"store {total.type} {total.text}, ptr {slot}")

    def _added(self, frame: Scope, copy: int, total: Operand) -> Operand:
        w, lanes = self.w, self.lanes
        a, b = (w.splat(frame.get(name, copy), lanes).text for name in self.tiling.factors)
        text = w.intrinsic("llvm.fma", total.type, a, b, total.text)
        mask = frame.mask(copy)
        if self.over_reduced and mask is not None:
            text = w.let(f"select {mask.type} {mask.text}, {total.type} {text}, {total.type} {total.text}")
        return Operand(text, self.dtype, lanes)

    def _across(self, part: _Part, point: int) -> Operand:
        """The point's sum: of its vectors, then of their lanes."""
        w, t = self.w, llvm_type(self.dtype, self.lanes)
        width = len(part.slots) // len(part.points)
        texts = [self._loaded(slot).text for slot in part.slots[point * width : (point + 1) * width]]
        while len(texts) > 1:
            texts = [w.let(f"fadd {t} {a}, {b}") for a, b in zip(texts[::2], texts[1::2], strict=True)]
        live = self.vector.size.int if self.vector.size.is_int else self.lanes
        return across_lanes(w, "sum", Operand(texts[0], self.dtype, self.lanes), live)

    # -- what follows -------------------------------------------------------------------------------
    def _finish(self, counts: tuple[int, ...], sums: list[Operand], copies: int) -> None:
        """Everything after the sum, for each point of the tile; `sums` has `copies` of them for each."""
        if self._is_little_after_the_sum():
            for number, point in enumerate(product(*(range(count) for count in counts))):
                self._finish_point([str(i) for i in point], sums[number * copies : (number + 1) * copies])
            return
        w, t = self.w, sums[0].type
        kept = w.slot(f"[{len(sums)} x {t}]")
        for i, total in enumerate(sums):
            w.emit(f"store {t} {total.text}, ptr {w.address(t, kept, i)}")
        with ExitStack() as stack:
            place = [stack.enter_context(w.loop("0", str(count))) for count in counts]
            flat = "0"
            for here, count in zip(place, counts, strict=True):
                flat = w.add(w.mul(flat, str(count)), here)
            at = w.mul(flat, str(copies))
            places = [w.address(t, kept, w.add(at, str(copy))) for copy in range(copies)]
            self._finish_point(place, [sums[0]._replace(text=w.let(f"load {t}, ptr {p}")) for p in places])

    def _is_little_after_the_sum(self) -> bool:
        cost = sum(SCALARS[op.op].cost for op in self.after if isinstance(op, Apply))
        return cost <= _LITTLE and len(self.stores) == 1

    def _finish_point(self, place: list[str], sums: list[Operand]) -> None:
        outer = self.frame
        moved = {a: self.w.add(outer.axes[a], i) for a, i in zip(self.steps, place, strict=True)}
        self.frame = replace(
            outer, axes=outer.axes | moved, values={**outer.values, self.tiling.total.name: sums}
        )  # fmt: skip
        for op in (*self.after, *self.stores):
            self.frame.emit(op)
        self.frame = outer
