"""Render a matrix product (or a convolution, which is one) around the micro-kernel.

In: a kernel, its `Contraction` and its `ProductPlan`. Out: one function, as `loops.py` makes them, with a workspace.

A unit of work is a block of columns for a stretch of rows. Its thread packs the block's columns once
into panels, then takes the rows in groups of tiles: packs a group, and for each panel and tile runs the
micro-kernel and, while the tile is still in the first cache, everything that follows the sum.

The packing loops are the kernel's own loads, so a convolution's window with its masked edges, a
transposed operand or a strided one are all the same code. What is packed are words of four bytes, which are moved about
as if they were float32: so two bfloat16 are, or four whole numbers, and nothing computes with them on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from litz.codegen.depend import depends
from litz.codegen.llvm import microkernel
from litz.codegen.llvm.body import Scope
from litz.codegen.llvm.packing import Nest, interleaved, transpose
from litz.codegen.llvm.rendered import TRAILING, Rendered
from litz.codegen.llvm.writer import Module, Operand, Writer, llvm_type
from litz.codegen.product import ProductPlan, Tile, inner_axis, outer_axes
from litz.loop.contraction import Contraction
from litz.loop.expr import Axis
from litz.loop.ir import Apply, Buffer, Definition, Kernel, Store, definitions_for
from litz.loop.panels import PANEL_VECTORS


def render(
    kernel: Kernel,
    found: Contraction,
    plan: ProductPlan,
    buffers: dict[str, Buffer],
    module: Module,
    name: str,
    sizes: tuple[str, ...] = (),
) -> tuple[Rendered, tuple[Tile, ...]]:
    """The rendered kernel, and the micro-kernels it calls."""
    return _Renderer(kernel, found, plan, buffers, module, name, sizes).run()


class _Renderer:
    def __init__(
        self,
        kernel: Kernel,
        found: Contraction,
        plan: ProductPlan,
        buffers: dict[str, Buffer],
        module: Module,
        name: str,
        sizes: tuple[str, ...],
    ):
        self.kernel, self.found, self.buffers, self.name = kernel, found, buffers, name
        self.inner, self.outer = inner_axis(kernel, found), outer_axes(kernel, found)
        self.plan, self.lanes = plan, plan.lanes
        self.w = Writer(module)
        self.used = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
        self.varies = depends(kernel.body, kernel.reduced)
        self.left = self._packed(0, plan.multiply.rows)
        self.right = self._packed(1, plan.multiply.columns)
        self.frame = Scope(
            self.w, buffers, {b: f"%b{i}" for i, b in enumerate(self.used)}, self.lanes, None, self.varies
        )
        self.frame.sizes = self.w.load_sizes(sizes)
        self.extent = {a: self.frame.size(a.size) for a in (*kernel.axes, *kernel.reduced)}
        self.row_count = self.frame.size(self.plan.rows)
        self.column_axis = found.columns[-1]
        self.called: dict[Tile, None] = {}

    def run(self) -> tuple[Rendered, tuple[Tile, ...]]:
        w, plan = self.w, self.plan
        self.packed_columns = self.frame.pointers[self.found.right.buffer] if plan.is_packed else "%work"
        self.packed_rows = w.let(f"getelementptr i8, ptr %work, i64 {plan.tiles_at}", "p")
        self.sums = w.let(f"getelementptr i8, ptr %work, i64 {plan.sums_at}", "p")
        packed = w.slot("i64", 8)  # which block's columns are packed
        w.emit(f"store i64 -1, ptr {packed}")
        with w.loop("%begin", "%end") as unit:
            stretch = w.let(f"urem i64 {unit}, {plan.stretches}")
            block = w.let(f"udiv i64 {unit}, {plan.stretches}")
            outer = self.frame
            self.frame = replace(outer, axes={}, values={})
            batch = w.let(f"udiv i64 {block}, {plan.blocks}")
            self._bind(self.found.batch, batch)
            first_panel = w.mul(w.let(f"urem i64 {block}, {plan.blocks}"), str(plan.block))
            last_panel = w.minimum(w.add(first_panel, str(plan.block)), str(plan.panels))
            if not plan.is_packed:
                old = w.let(f"load i64, ptr {packed}")
                with w.when(w.let(f"icmp ne i64 {old}, {block}")):
                    with w.loop(first_panel, last_panel) as panel:
                        self._pack_panel(panel, first_panel)
                    w.emit(f"store i64 {block}, ptr {packed}")
            self._rows(stretch, first_panel, last_panel)
            self.frame = outer
        w.emit("ret void")
        parameters = [
            *(f"ptr %b{i}" for i in range(len(self.used))),
            "ptr %work",
            *TRAILING,
        ]
        w.define(self.name, ", ".join(parameters))
        work = 2 * (plan.batch * plan.rows).hint * plan.columns * plan.lines * plan.inner
        for tile in self.called:
            w.module.declare(microkernel.declaration(tile))
        return Rendered(self.name, self.used, plan.units, work, plan.workspace), tuple(self.called)

    def _packed(self, side: int, dtype: str) -> Definition:
        """What is packed of a factor: the numbers as they lie there, or wider ones, as the instruction takes them."""
        read, factor = self.found.read[side], self.found.factors[side]
        if read.dtype == dtype:
            return read
        if factor.dtype == dtype:
            return factor
        widened = Apply(f"{factor.name}.packed", dtype, "cast", (read.name,))
        self.varies[widened.name] = self.varies[read.name]
        return widened

    def _bind(self, axes: tuple[Axis, ...], flat: str) -> None:
        """The axes that the flat number counts through, last fastest."""
        for axis in reversed(axes):
            if axis is axes[0]:
                self.frame.axes[axis] = flat
                return
            self.frame.axes[axis] = self.w.let(f"urem i64 {flat}, {self.extent[axis]}", "i")
            flat = self.w.let(f"udiv i64 {flat}, {self.extent[axis]}", "i")

    # -- columns ------------------------------------------------------------------------------------
    def _pack_panel(self, panel: str, first_panel: str) -> None:
        w, plan = self.w, self.plan
        place = w.mul(w.let(f"sub i64 {panel}, {first_panel}"), str(plan.panel_words))
        target = w.let(f"getelementptr float, ptr {self.packed_columns}, i64 {place}", "p")
        column = w.mul(panel, str(plan.tile.columns))
        with self._outer_loops(self.outer) as flat:
            base = w.mul(flat, str(plan.padded * plan.tile.columns))
            if plan.columns_from == "columns":
                self._pack_turned(target, base, column)
            else:
                self._pack_straight(target, base, column)
            self._zero(target, base)

    def _outer_loops(self, axes: tuple[Axis, ...]):
        return Nest(self, axes)

    def _pack_straight(self, target: str, base: str, column: str) -> None:
        """Word by word of the depth, a vector of columns at a time."""
        w, plan = self.w, self.plan
        group, size = plan.multiply.group, plan.inner
        masks = [self._columns_mask(w.add(column, str(v * self.lanes))) for v in range(PANEL_VECTORS)]

        def words(word: str, numbers: int) -> None:
            for v in range(PANEL_VECTORS):
                frame = self._column_frame(w.add(column, str(v * self.lanes)), masks[v])
                place = w.add(w.add(base, w.mul(word, str(plan.tile.columns))), str(v * self.lanes))
                self._put(self._word_of_steps(frame, self.right, w.mul(word, str(group)), numbers), target, place)

        with w.loop("0", str(size // group)) as word:
            words(word, group)
        if size % group:
            words(str(size // group), size % group)

    def _zero(self, target: str, base: str) -> None:
        """Words of the panel past the end of the depth."""
        w, plan = self.w, self.plan
        start = plan.padded if plan.columns_from == "columns" else plan.words  # what is turned is in whole chunks
        if start == plan.padded:
            return
        with w.loop(str(start), str(plan.padded)) as word:
            for v in range(PANEL_VECTORS):
                place = w.add(w.add(base, w.mul(word, str(plan.tile.columns))), str(v * self.lanes))
                self._put("zeroinitializer", target, place)

    def _pack_turned(self, target: str, base: str, column: str) -> None:
        """A square of columns by words of the depth at a time, read along the depth and turned in registers."""
        w, plan, lanes = self.w, self.plan, self.lanes
        whole = plan.columns % plan.tile.columns == 0

        def square(step: str, mask: Operand | None) -> None:
            for v in range(PANEL_VECTORS):
                rows = []
                for lane in range(lanes):
                    here = w.add(column, str(v * lanes + lane))
                    if not whole:
                        # Past the last column, read the last one again: its sums are never stored.
                        here = w.minimum(here, str(plan.columns - 1))
                    frame = replace(self.frame, axes={**self.frame.axes, self.column_axis: here}, values={})
                    rows.append(self._chunk_of_words(frame, self.right, step, mask))
                word = step if plan.multiply.group == 1 else w.let(f"udiv i64 {step}, {plan.multiply.group}")
                for row, text in enumerate(transpose(w, rows, lanes)):
                    place = w.add(w.add(base, w.mul(w.add(word, str(row)), str(plan.tile.columns))), str(v * lanes))
                    self._put(text, target, place)

        self._chunks(square)

    def _chunks(self, take: Callable[[str, Operand | None], None]) -> None:
        """All of a line: `take(step, mask)` what is live of each chunk."""
        size, chunk = self.plan.inner, self.plan.chunk
        whole = size - size % chunk
        if whole:
            with self.w.loop("0", str(whole), chunk) as step:
                take(step, None)
        if whole < size:
            take(str(whole), self.w.lanes_below(str(whole), str(size), chunk))

    # -- words --------------------------------------------------------------------------------------
    def _chunk_of_words(self, frame: Scope, op: Definition, step: str, mask: Operand | None) -> str:
        """As many numbers along the depth as there are in a vector of words, which is what they are."""
        frame = replace(
            frame, axes={**frame.axes, self.inner: step}, vector=self.inner, lanes=self.plan.chunk, masks=(mask,),
            values=dict(frame.values),
        )  # fmt: skip
        return self._as_words(self._load(frame, op))

    def _word_of_steps(self, frame: Scope, op: Definition, step: str, numbers: int) -> str:
        """A word for each lane of the frame: the numbers at the steps of the depth from this one on, side by side."""
        steps = [
            self._load(
                replace(frame, axes={**frame.axes, self.inner: self.w.add(step, str(i))}, values=dict(frame.values)), op
            )
            for i in range(numbers)
        ]
        steps += [steps[0]._replace(text="zeroinitializer")] * (self.plan.multiply.group - numbers)
        return self._as_words(interleaved(self.w, steps))

    def _as_words(self, numbers: Operand) -> str:
        if numbers.dtype == "f32":
            return numbers.text
        return self.w.let(f"bitcast {numbers.type} {numbers.text} to <{self.lanes} x float>")

    def _put(self, text: str, target: str, place: str) -> None:
        """A vector into packed memory, `place` words on."""
        w = self.w
        w.emit(f"store <{self.lanes} x float> {text}, ptr {w.address('float', target, place)}, align 64")

    def _columns_mask(self, here: str) -> Operand | None:
        if self.plan.columns % self.plan.tile.columns == 0:
            return None
        return self.w.lanes_below(here, str(self.plan.columns), self.lanes)

    def _column_frame(self, column: str, mask: Operand | None) -> Scope:
        """Lanes run across columns from `column` on."""
        return replace(
            self.frame, axes={**self.frame.axes, self.column_axis: column}, vector=self.column_axis, masks=(mask,),
            values=dict(self.frame.values),
        )  # fmt: skip

    def _load(self, frame: Scope, op: Definition) -> Operand:
        for needed in (*definitions_for(self.kernel.body, [op]), op):
            if needed.name not in frame.values:
                frame.emit(needed)
        return self.w.splat(frame.get(op.name, 0), frame.lanes)

    # -- rows ---------------------------------------------------------------------------------------
    def _rows(self, stretch: str, first_panel: str, last_panel: str) -> None:
        """This unit's share of the tiles, in groups; the last tile may be a shorter one."""
        w, plan = self.w, self.plan
        height = plan.tile.rows
        full = w.let(f"udiv i64 {self.row_count}, {height}")
        begin = w.let(f"udiv i64 {w.mul(stretch, full)}, {plan.stretches}")
        end = w.let(f"udiv i64 {w.mul(w.add(stretch, '1'), full)}, {plan.stretches}")
        with w.loop(begin, end, plan.group) as group:
            stop = w.minimum(w.add(group, str(plan.group)), end)
            with w.loop(group, stop) as tile:
                position = w.let(f"sub i64 {tile}, {group}")
                self._pack_tile(plan.tile, w.mul(tile, str(height)), str(height), position)
            with w.loop(first_panel, last_panel) as panel, w.loop(group, stop) as tile:
                position = w.let(f"sub i64 {tile}, {group}")
                self._tile(plan.tile, str(height), w.mul(tile, str(height)), position, panel, first_panel)
        if not plan.rows.is_int:
            rest, short = w.let(f"urem i64 {self.row_count}, {height}"), plan.tile
        elif plan.rows.int % height:
            rest, short = str(plan.rows.int % height), plan.short(plan.rows.int % height)
        else:
            return
        last = w.let(f"icmp eq i64 {stretch}, {plan.stretches - 1}")
        some = w.let(f"icmp ne i64 {rest}, 0")
        with w.when(w.let(f"and i1 {last}, {some}")):
            row = w.mul(full, str(height))
            self._pack_tile(short, row, rest, "0")
            with w.loop(first_panel, last_panel) as panel:
                self._tile(short, rest, row, "0", panel, first_panel)

    def _pack_tile(self, tile: Tile, row: str, rows: str, position: str) -> None:
        w, plan = self.w, self.plan
        start = w.mul(position, str(plan.tile_words))
        if plan.rows_from == "columns":
            for part in range(0, tile.rows, self.lanes):
                self._pack_tile_turned(tile, row, rows, start, part)
            return
        with w.loop("0", rows) as i:
            outer = self.frame
            self.frame = replace(outer, axes=dict(outer.axes), values=dict(outer.values), vector=None)
            self._bind(self.found.rows, w.add(row, i))
            with self._outer_loops(self.outer) as flat:
                # What does not move along the inner axis, such as a mask at the image's edge, comes first.
                uniform = replace(self.frame, vector=self.inner, values=dict(self.frame.values))
                for op in definitions_for(self.kernel.body, [self.left]):
                    if self.inner not in self.varies[op.name]:
                        uniform.emit(op)
                first = w.mul(flat, str(plan.padded // self.lanes))

                def chunk(step: str, mask: Operand | None, first: str = first, uniform: Scope = uniform) -> None:
                    value = self._chunk_of_words(uniform, self.left, step, mask)
                    at = w.add(first, w.let(f"udiv i64 {step}, {plan.chunk}"))
                    place = w.mul(w.add(w.mul(at, str(tile.rows)), i), str(self.lanes))
                    self._put(value, self.packed_rows, w.add(start, place))

                self._chunks(chunk)
            self.frame = outer

    def _pack_tile_turned(self, tile: Tile, row: str, rows: str, start: str, part: int) -> None:
        """A square of rows by words of the depth at a time, read along the rows and turned in registers: those of the
        tile from `part` on."""
        w, plan, lanes, group = self.w, self.plan, self.lanes, self.plan.multiply.group
        (axis,) = self.found.rows
        mask = w.lanes_below(str(part), rows, lanes)

        def square(step: str, live: Operand | None) -> None:
            numbers = plan.chunk if live is None else plan.inner % plan.chunk
            axes = {**self.frame.axes, axis: w.add(row, str(part))}
            frame = replace(self.frame, axes=axes, vector=axis, masks=(mask,), values=dict(self.frame.values))
            read = [
                self._word_of_steps(frame, self.left, w.add(step, str(at)), min(group, numbers - at))
                for at in range(0, numbers, group)
            ]
            read += ["zeroinitializer"] * (lanes - len(read))
            at = w.add(first, w.let(f"udiv i64 {step}, {plan.chunk}"))
            for i, text in enumerate(transpose(w, read, lanes)[: tile.rows - part]):
                place = w.mul(w.add(w.mul(at, str(tile.rows)), str(part + i)), str(lanes))
                self._put(text, self.packed_rows, w.add(start, place))

        with self._outer_loops(self.outer) as flat:
            first = w.mul(flat, str(plan.padded // lanes))
            self._chunks(square)

    def _tile(self, tile: Tile, rows: str, row: str, position: str, panel: str, first_panel: str) -> None:
        """One micro-kernel, then what follows the sum, for its rows and columns."""
        w, plan = self.w, self.plan
        self.called[tile] = None
        a = w.let(f"getelementptr float, ptr {self.packed_rows}, i64 {w.mul(position, str(plan.tile_words))}", "p")
        here = panel if plan.is_packed else w.let(f"sub i64 {panel}, {first_panel}")
        place = w.mul(here, str(plan.panel_words))
        b = w.let(f"getelementptr float, ptr {self.packed_columns}, i64 {place}", "p")
        words, further = plan.multiplied
        with w.loop("0", str(plan.depth), further) as k:
            rows_at = w.let(f"getelementptr float, ptr {a}, i64 {w.mul(k, str(tile.rows))}", "p")
            columns_at = w.let(f"getelementptr float, ptr {b}, i64 {w.mul(k, str(tile.columns))}", "p")
            more = w.let(f"icmp ne i64 {k}, 0")
            operands = f"ptr {rows_at}, ptr {columns_at}, i64 {words}, i64 {plan.run}"
            w.emit(f"call void @{tile.name}({operands}, ptr {self.sums}, i1 {more})")
        column = w.mul(panel, str(tile.columns))
        if plan.columns % tile.columns == 0:
            self._finish(tile, rows, row, column, 0, PANEL_VECTORS, None)
            return
        partial = w.let(f"icmp eq i64 {panel}, {plan.panels - 1}")
        whole, ragged, done = w.label("whole"), w.label("ragged"), w.label("done")
        w.emit(f"br i1 {partial}, label %{ragged}, label %{whole}")
        w.place(whole)
        if plan.panels > 1:
            self._finish(tile, rows, row, column, 0, PANEL_VECTORS, None)
        w.emit(f"br label %{done}")
        w.place(ragged)
        for v in range(PANEL_VECTORS):
            if (plan.panels - 1) * tile.columns + v * self.lanes < plan.columns:
                here = w.add(column, str(v * self.lanes))
                self._finish(tile, rows, row, here, v, 1, self._columns_mask(here))
        w.emit(f"br label %{done}")
        w.place(done)

    def _finish(
        self, tile: Tile, rows: str, row: str, column: str, vector: int, copies: int, mask: Operand | None
    ) -> None:
        w = self.w
        stores = [op for op in self.kernel.body if isinstance(op, Store)]
        needed = definitions_for(self.kernel.body, stores, {self.found.total.name})
        outer = self.frame
        frame = replace(
            outer, axes={**outer.axes, self.column_axis: column}, vector=self.column_axis, copies=copies, masks=(mask,),
            values=dict(outer.values),
        )  # fmt: skip
        row_axes, t = set(self.found.rows), llvm_type(self.found.total.dtype, self.lanes)
        for op in needed:
            if not self.varies[op.name] & row_axes:
                frame.emit(op)
        with w.loop("0", rows) as i:
            self.frame = replace(frame, axes=dict(frame.axes), values=dict(frame.values))
            self._bind(self.found.rows, w.add(row, i))
            sums = []
            for copy in range(copies):
                place = w.add(w.mul(i, str(tile.columns)), str((vector + copy) * self.lanes))
                address = w.let(f"getelementptr float, ptr {self.sums}, i64 {place}", "p")
                sums.append(Operand(w.let(f"load {t}, ptr {address}, align 64"), self.found.total.dtype, self.lanes))
            self.frame.values[self.found.total.name] = sums
            for op in needed:
                if self.varies[op.name] & row_axes:
                    self.frame.emit(op)
            for store in stores:
                self.frame.emit(store)
            self.frame = outer


__all__ = ["render"]
