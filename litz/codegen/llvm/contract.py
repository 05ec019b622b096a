"""Render a matrix product (or a convolution, which is one) around the micro-kernel.

In: a kernel and its `Contraction`. Out: one function, as `loops.py` makes them, with a workspace.

A unit of work is a block of columns for a stretch of rows. Its thread packs the block's columns once
into panels, then takes the rows in groups of tiles: packs a group, and for each panel and tile runs the
micro-kernel and, while the tile is still in the first cache, everything that follows the sum.

The packing loops are the kernel's own loads, so a convolution's window with its masked edges, a
transposed operand or a strided one are all the same code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from litz.codegen.depend import depends
from litz.codegen.llvm import microkernel
from litz.codegen.llvm.body import Scope
from litz.codegen.llvm.microkernel import Tile
from litz.codegen.llvm.packing import Nest, transpose
from litz.codegen.llvm.rendered import TRAILING, Rendered
from litz.codegen.llvm.writer import Module, Operand, Writer
from litz.codegen.rows import volume
from litz.loop.contraction import Contraction
from litz.loop.expr import ZERO, Axis, Expr, expr
from litz.loop.ir import Buffer, Kernel, Load, Store, definitions_for
from litz.loop.panels import Panels, panels
from litz.target import Target

_RUN = (32, 128)  # products summed in one go: rounding errors grow with the root, the time with the inverse
_MULTIPLY, _PACK = 1.15, 0.37  # cycles, measured: of a vector of products, of a number packed
# Of the second cache: packed columns, which stream from the one behind it, a panel at a time; packed rows, which stay
# in it beside a panel.
_COLUMNS, _ROWS = Fraction(1), Fraction(5, 16)


def packed_panels(found: Contraction, kernel: Kernel, target: Target) -> Panels | None:
    """How the columns lie, if that is as the micro-kernel reads them: constants are packed when they are made."""
    inner = inner_axis(kernel, found)
    outer = tuple(axis for axis in kernel.reduced if axis != inner)
    if len(found.columns) != 1 or found.batch or found.right.mask is not None:
        return None
    sizes = [axis.size for axis in (*outer, inner, *found.columns)]
    if not all(size.is_int for size in sizes):
        return None
    line = ZERO
    for axis in outer:
        line = line * axis.size + expr(axis)
    (column,) = found.columns
    made = panels(volume(outer).int, inner.size.int, column.size.int, microkernel.tiles(target)[0].lanes)
    return made if found.right.index == made.at(line, expr(inner), expr(column)) else None


@dataclass(frozen=True)
class Shape:
    """The sizes everything is derived from; `depth` counts padding, so that it is whole vectors."""

    batch: Expr
    rows: Expr
    columns: int
    depth: int
    tile: Tile
    block: int  # panels in a block of columns
    blocks: int
    stretches: int  # shares of the rows
    group: int  # tiles in a group of rows
    packed: bool = False  # the columns, already

    @property
    def panels(self) -> int:
        return -(-self.columns // self.tile.columns)

    @property
    def units(self) -> Expr:
        return self.batch * (self.blocks * self.stretches)

    @property
    def panel_floats(self) -> int:
        return self.depth * self.tile.columns

    @property
    def tile_floats(self) -> int:
        return self.depth * self.tile.rows

    @property
    def workspace(self) -> int:
        columns = 0 if self.packed else self.block * self.panel_floats
        floats = columns + self.group * self.tile_floats + self.tile.rows * self.tile.columns
        return 4 * floats + 4096


def cycles(found: Contraction, kernel: Kernel, target: Target) -> float:
    """What the product takes, about: multiply-adds of whole tiles, and packing."""
    tile = microkernel.tiles(target)[-1]
    rows, columns, depth = (volume(axes).hint for axes in (found.rows, found.columns, kernel.reduced))
    whole = (-(-n // step) * step for n, step in ((rows, tile.rows), (columns, tile.columns)))
    packs = rows if packed_panels(found, kernel, target) is not None else rows + columns
    return volume(found.batch).hint * depth * (_MULTIPLY * prod(whole) / tile.lanes + _PACK * packs)


def plan(found: Contraction, kernel: Kernel, inner: Axis, target: Target) -> Shape:
    tile = microkernel.tiles(target)[0]
    rows, columns = volume(found.rows), volume(found.columns).int
    lanes = tile.lanes
    depth = volume(kernel.reduced).int // inner.size.int * (-(-inner.size.int // lanes) * lanes)
    count = -(-columns // tile.columns)
    block = max(1, min(count, int(_COLUMNS * target.l2_bytes) // (4 * depth * tile.columns)))
    blocks = -(-count // block)
    block = -(-count // blocks)  # even blocks
    group = max(1, min(8, int(_ROWS * target.l2_bytes) // (4 * depth * tile.rows)))
    stretches = min(target.threads, max(1, rows.hint // tile.rows)) if target.threads > 1 else 1
    packed = packed_panels(found, kernel, target) is not None
    return Shape(volume(found.batch), rows, columns, depth, tile, block, -(-count // block), stretches, group, packed)


def render(
    kernel: Kernel,
    found: Contraction,
    buffers: dict[str, Buffer],
    target: Target,
    module: Module,
    name: str,
    sizes: tuple[str, ...] = (),
) -> tuple[Rendered, tuple[Tile, ...]]:
    """The rendered kernel, and the micro-kernels it calls."""
    return _Renderer(kernel, found, buffers, target, module, name, sizes).run()


def inner_axis(kernel: Kernel, found: Contraction) -> Axis:
    """The reduced axis along which rows are packed: contiguous in the rows' operand, if any is."""
    for axis in reversed(kernel.reduced):
        if _step(found.left, axis) == 1:
            return axis
    return kernel.reduced[-1]


def _step(load: Load, axis: Axis) -> int | None:
    step = load.index.coefficient(axis)
    return step.int if step is not None and step.is_int else None


def _run(depth: int, lanes: int) -> int:
    """How many products are summed in one go: a quarter of them, in whole vectors, within bounds."""
    least, most = _RUN
    return min(most, max(least, -(-depth // (4 * lanes)) * lanes))


class _Renderer:
    def __init__(
        self,
        kernel: Kernel,
        found: Contraction,
        buffers: dict[str, Buffer],
        target: Target,
        module: Module,
        name: str,
        sizes: tuple[str, ...],
    ):
        self.kernel, self.found, self.buffers, self.name = kernel, found, buffers, name
        self.inner = inner_axis(kernel, found)
        self.outer = tuple(a for a in kernel.reduced if a != self.inner)
        self.shape = plan(found, kernel, self.inner, target)
        self.heights = microkernel.tiles(target)
        self.lanes = self.shape.tile.lanes
        self.w = Writer(module)
        self.used = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
        self.varies = depends(kernel.body, kernel.reduced)
        self.frame = Scope(
            self.w, buffers, {b: f"%b{i}" for i, b in enumerate(self.used)}, self.lanes, None, self.varies
        )
        self.frame.sizes = self.w.load_sizes(sizes)
        self.extent = {a: self.frame.size(a.size) for a in (*kernel.axes, *kernel.reduced)}
        self.row_count = self.frame.size(self.shape.rows)
        self.column_axis = found.columns[-1]
        self.called: dict[Tile, None] = {}

    def run(self) -> tuple[Rendered, tuple[Tile, ...]]:
        w, shape = self.w, self.shape
        tiles_at = 0 if shape.packed else 4 * shape.block * shape.panel_floats
        scratch_at = tiles_at + 4 * shape.group * shape.tile_floats
        self.packed_columns = self.frame.pointers[self.found.right.buffer] if shape.packed else "%work"
        self.packed_rows = w.let(f"getelementptr i8, ptr %work, i64 {tiles_at}", "p")
        self.scratch = w.let(f"getelementptr i8, ptr %work, i64 {scratch_at}", "p")
        packed = w.slot("i64", 8)  # which block's columns are packed
        w.emit(f"store i64 -1, ptr {packed}")
        with w.loop("%begin", "%end") as unit:
            stretch = w.let(f"urem i64 {unit}, {shape.stretches}")
            block = w.let(f"udiv i64 {unit}, {shape.stretches}")
            outer = self.frame
            self.frame = replace(outer, axes={}, values={})
            batch = w.let(f"udiv i64 {block}, {shape.blocks}")
            self._bind(self.found.batch, batch)
            first_panel = w.mul(w.let(f"urem i64 {block}, {shape.blocks}"), str(shape.block))
            last_panel = w.minimum(w.add(first_panel, str(shape.block)), str(shape.panels))
            if not shape.packed:
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
        work = 2 * (shape.batch * shape.rows).hint * shape.columns * shape.depth
        for tile in self.called:
            w.module.declare(microkernel.declaration(tile))
        return Rendered(self.name, self.used, shape.units, work, shape.workspace), tuple(self.called)

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
        w, shape = self.w, self.shape
        place = w.mul(w.let(f"sub i64 {panel}, {first_panel}"), str(shape.panel_floats))
        target = w.let(f"getelementptr float, ptr {self.packed_columns}, i64 {place}", "p")
        column = w.mul(panel, str(shape.tile.columns))
        along_columns = _step(self.found.right, self.column_axis) == 1 and len(self.found.columns) == 1
        along_depth = _step(self.found.right, self.inner) == 1 and self.inner.size.int % self.lanes == 0
        with self._outer_loops(self.outer) as flat:
            base = w.mul(flat, str(self._padded_inner() * shape.tile.columns))
            if along_depth and not along_columns and len(self.found.columns) == 1:
                self._pack_transposed(target, base, column)
            else:
                self._pack_straight(target, base, column)

    def _padded_inner(self) -> int:
        return -(-self.inner.size.int // self.lanes) * self.lanes

    def _outer_loops(self, axes: tuple[Axis, ...]):
        return Nest(self, axes)

    def _pack_straight(self, target: str, base: str, column: str) -> None:
        """Step by step of the depth, a vector of columns at a time."""
        w, lanes, size = self.w, self.lanes, self.inner.size.int
        with w.loop("0", str(size)) as k:
            for v in range(microkernel.PANEL_VECTORS):
                here = w.add(column, str(v * lanes))
                frame = self._column_frame(here, self._columns_mask(here))
                frame.axes[self.inner] = k
                value = self._load(frame, self.found.right)
                place = w.add(w.add(base, w.mul(k, str(self.shape.tile.columns))), str(v * lanes))
                self._put(value.text, target, place)
        self._zero(target, base, size)

    def _zero(self, target: str, base: str, start: int) -> None:
        """Rows of the panel past the end of the depth."""
        w, lanes = self.w, self.lanes
        if start == self._padded_inner():
            return
        with w.loop(str(start), str(self._padded_inner())) as k:
            for v in range(microkernel.PANEL_VECTORS):
                place = w.add(w.add(base, w.mul(k, str(self.shape.tile.columns))), str(v * lanes))
                self._put("zeroinitializer", target, place)

    def _pack_transposed(self, target: str, base: str, column: str) -> None:
        """A square of columns by depth at a time, read along the depth and turned in registers."""
        w, lanes = self.w, self.lanes
        whole = self.shape.columns % self.shape.tile.columns == 0
        with w.loop("0", str(self.inner.size.int), lanes) as k:
            for v in range(microkernel.PANEL_VECTORS):
                rows = []
                for lane in range(lanes):
                    here = w.add(column, str(v * lanes + lane))
                    if not whole:
                        # Past the last column, read the last one again: its sums are never stored.
                        here = w.minimum(here, str(self.shape.columns - 1))
                    frame = replace(
                        self.frame,
                        axes={**self.frame.axes, self.inner: k, self.column_axis: here},
                        vector=self.inner,
                        values={},
                    )
                    rows.append(self._load(frame, self.found.right).text)
                for row, text in enumerate(transpose(w, rows, lanes)):
                    place = w.add(w.add(base, w.mul(w.add(k, str(row)), str(self.shape.tile.columns))), str(v * lanes))
                    self._put(text, target, place)

    def _put(self, text: str, target: str, place: str) -> None:
        """A vector into packed memory, `place` floats on."""
        w = self.w
        w.emit(f"store <{self.lanes} x float> {text}, ptr {w.address('float', target, place)}, align 64")

    def _columns_mask(self, here: str) -> Operand | None:
        if self.shape.columns % self.shape.tile.columns == 0:
            return None
        return self.w.lanes_below(here, str(self.shape.columns), self.lanes)

    def _column_frame(self, column: str, mask: Operand | None) -> Scope:
        """Lanes run across columns from `column` on."""
        return replace(
            self.frame, axes={**self.frame.axes, self.column_axis: column}, vector=self.column_axis, masks=(mask,),
            values=dict(self.frame.values),
        )  # fmt: skip

    def _load(self, frame: Scope, load: Load) -> Operand:
        for op in definitions_for(self.kernel.body, [load]):
            if op.name not in frame.values:
                frame.emit(op)
        frame.emit(load)
        return self.w.splat(frame.get(load.name, 0), self.lanes)

    # -- rows ---------------------------------------------------------------------------------------
    def _rows(self, stretch: str, first_panel: str, last_panel: str) -> None:
        """This unit's share of the tiles, in groups; the last tile may be a shorter one."""
        w, shape = self.w, self.shape
        height = shape.tile.rows
        full = w.let(f"udiv i64 {self.row_count}, {height}")
        begin = w.let(f"udiv i64 {w.mul(stretch, full)}, {shape.stretches}")
        end = w.let(f"udiv i64 {w.mul(w.add(stretch, '1'), full)}, {shape.stretches}")
        with w.loop(begin, end, shape.group) as group:
            stop = w.minimum(w.add(group, str(shape.group)), end)
            with w.loop(group, stop) as tile:
                position = w.let(f"sub i64 {tile}, {group}")
                self._pack_tile(shape.tile, w.mul(tile, str(height)), str(height), position)
            with w.loop(first_panel, last_panel) as panel, w.loop(group, stop) as tile:
                position = w.let(f"sub i64 {tile}, {group}")
                self._tile(shape.tile, str(height), w.mul(tile, str(height)), position, panel, first_panel)
        if not shape.rows.is_int:
            rest, short = w.let(f"urem i64 {self.row_count}, {height}"), shape.tile
        elif shape.rows.int % height:
            left = shape.rows.int % height
            rest, short = str(left), min((t for t in self.heights if t.rows >= left), key=lambda t: t.rows)
        else:
            return
        last = w.let(f"icmp eq i64 {stretch}, {shape.stretches - 1}")
        some = w.let(f"icmp ne i64 {rest}, 0")
        with w.when(w.let(f"and i1 {last}, {some}")):
            row = w.mul(full, str(height))
            self._pack_tile(short, row, rest, "0")
            with w.loop(first_panel, last_panel) as panel:
                self._tile(short, rest, row, "0", panel, first_panel)

    def _pack_tile(self, tile: Tile, row: str, rows: str, position: str) -> None:
        w, lanes, size = self.w, self.lanes, self.inner.size.int
        start = w.mul(position, str(self.shape.tile_floats))
        if self._rows_lie_together() and tile.rows <= lanes:
            self._pack_tile_transposed(tile, row, rows, start)
            return
        with w.loop("0", rows) as i:
            outer = self.frame
            self.frame = replace(outer, axes=dict(outer.axes), values=dict(outer.values), vector=None)
            self._bind(self.found.rows, w.add(row, i))
            with self._outer_loops(self.outer) as flat:
                # What does not move along the inner axis, such as a mask at the image's edge, comes first.
                uniform = replace(self.frame, vector=self.inner, values=dict(self.frame.values))
                for op in definitions_for(self.kernel.body, [self.found.left]):
                    if self.inner not in self.varies[op.name]:
                        uniform.emit(op)
                chunk = w.mul(flat, str(self._padded_inner() // lanes))
                with w.loop("0", str(size), lanes) as k:
                    mask = w.lanes_below(k, str(size), lanes) if size % lanes else None
                    frame = replace(
                        uniform, axes={**uniform.axes, self.inner: k}, masks=(mask,), values=dict(uniform.values)
                    )
                    value = self._load(frame, self.found.left)
                    at = w.add(chunk, w.let(f"udiv i64 {k}, {lanes}"))
                    place = w.add(start, w.mul(w.add(w.mul(at, str(tile.rows)), i), str(lanes)))
                    self._put(value.text, self.packed_rows, place)
            self.frame = outer

    def _rows_lie_together(self) -> bool:
        """Whether the rows' operand is a matrix that lies there transposed."""
        left, rows = self.found.left, self.found.rows
        return (
            len(rows) == 1 and _step(left, rows[0]) == 1 and _step(left, self.inner) != 1
            and not definitions_for(self.kernel.body, [left]) and left.mask is None
        )  # fmt: skip

    def _pack_tile_transposed(self, tile: Tile, row: str, rows: str, start: str) -> None:
        """A square of rows by depth at a time, read along the rows and turned in registers."""
        w, lanes, size = self.w, self.lanes, self.inner.size.int
        (axis,) = self.found.rows
        mask = w.lanes_below("0", rows, lanes)

        def square(k: str, depth: int, chunk: str) -> None:
            read = []
            for step in range(depth):
                axes = {**self.frame.axes, self.inner: w.add(k, str(step)), axis: row}
                frame = replace(self.frame, axes=axes, vector=axis, masks=(mask,), values=dict(self.frame.values))
                read.append(self._load(frame, self.found.left).text)
            read += ["zeroinitializer"] * (lanes - depth)
            at = w.add(chunk, w.let(f"udiv i64 {k}, {lanes}"))
            for i, text in enumerate(transpose(w, read, lanes)[: tile.rows]):
                self._put(
                    text, self.packed_rows, w.add(start, w.mul(w.add(w.mul(at, str(tile.rows)), str(i)), str(lanes)))
                )

        with self._outer_loops(self.outer) as flat:
            chunk = w.mul(flat, str(self._padded_inner() // lanes))
            with w.loop("0", str(size - size % lanes), lanes) as k:
                square(k, lanes, chunk)
            if size % lanes:
                square(str(size - size % lanes), size % lanes, chunk)

    def _tile(self, tile: Tile, rows: str, row: str, position: str, panel: str, first_panel: str) -> None:
        """One micro-kernel, then what follows the sum, for its rows and columns."""
        w, shape = self.w, self.shape
        self.called[tile] = None
        a = w.let(f"getelementptr float, ptr {self.packed_rows}, i64 {w.mul(position, str(shape.tile_floats))}", "p")
        here = panel if shape.packed else w.let(f"sub i64 {panel}, {first_panel}")
        place = w.mul(here, str(shape.panel_floats))
        b = w.let(f"getelementptr float, ptr {self.packed_columns}, i64 {place}", "p")
        size, padded = self.inner.size.int, self._padded_inner()
        # Padding at the end is left out; where each line has some, a line is multiplied at a time.
        lines = bool(self.outer) and size < padded
        depth = shape.depth if self.outer and not lines else size
        with w.loop("0", str(shape.depth), padded if lines else shape.depth) as k:
            rows_at = w.let(f"getelementptr float, ptr {a}, i64 {w.mul(k, str(tile.rows))}", "p")
            columns_at = w.let(f"getelementptr float, ptr {b}, i64 {w.mul(k, str(tile.columns))}", "p")
            more = w.let(f"icmp ne i64 {k}, 0")
            operands = f"ptr {rows_at}, ptr {columns_at}, i64 {depth}, i64 {_run(depth, self.lanes)}"
            w.emit(f"call void @{tile.name}({operands}, ptr {self.scratch}, i1 {more})")
        column = w.mul(panel, str(tile.columns))
        if shape.columns % tile.columns == 0:
            self._finish(tile, rows, row, column, 0, microkernel.PANEL_VECTORS, None)
            return
        partial = w.let(f"icmp eq i64 {panel}, {shape.panels - 1}")
        whole, ragged, done = w.label("whole"), w.label("ragged"), w.label("done")
        w.emit(f"br i1 {partial}, label %{ragged}, label %{whole}")
        w.place(whole)
        if shape.panels > 1:
            self._finish(tile, rows, row, column, 0, microkernel.PANEL_VECTORS, None)
        w.emit(f"br label %{done}")
        w.place(ragged)
        for v in range(microkernel.PANEL_VECTORS):
            if (shape.panels - 1) * tile.columns + v * self.lanes < shape.columns:
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
        row_axes = set(self.found.rows)
        for op in needed:
            if not self.varies[op.name] & row_axes:
                frame.emit(op)
        with w.loop("0", rows) as i:
            self.frame = replace(frame, axes=dict(frame.axes), values=dict(frame.values))
            self._bind(self.found.rows, w.add(row, i))
            sums = []
            for copy in range(copies):
                place = w.add(w.mul(i, str(tile.columns)), str((vector + copy) * self.lanes))
                address = w.let(f"getelementptr float, ptr {self.scratch}, i64 {place}", "p")
                sums.append(Operand(w.let(f"load <{self.lanes} x float>, ptr {address}, align 64"), "f32", self.lanes))
            self.frame.values[self.found.total.name] = sums
            for op in needed:
                if self.varies[op.name] & row_axes:
                    self.frame.emit(op)
            for store in stores:
                self.frame.emit(store)
            self.frame = outer


__all__ = ["Expr", "Shape", "inner_axis", "plan", "render"]
