"""Plan a matrix product (or a convolution, which is one): its tiles, the instruction, and how its factors are packed.

In: a kernel and its `Contraction`. Out: a frozen `ProductPlan`, which prints, and which `llvm/contract.py` writes down.

Packed memory is made of words (`loop/multiply.py`): one number for float32, pairs along the depth for bfloat16, fours
for whole numbers of 8 bits. A panel has, word by word of the depth, a number of columns side by side; a tile of rows
has chunks of as many words as a vector has lanes, row after row. So whatever the instruction, a row's chunk is one
vector, and all else is counted in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from litz.codegen.rows import volume
from litz.loop.contraction import Contraction
from litz.loop.expr import ZERO, Axis, Expr, expr
from litz.loop.ir import Kernel, Load, Store, definitions_for
from litz.loop.multiply import WORD, Multiply, multiply_for
from litz.loop.panels import PANEL_VECTORS, Panels, panels
from litz.target import Target

_RUN = (32, 128)  # words summed in one go: rounding errors grow with the root, the time with the inverse
_MULTIPLY, _PACK = 1.15, 0.37  # cycles, measured: of a vector of words, of a word packed
# Of the second cache: packed columns, which stream from the one behind it, a panel at a time; packed rows, which stay
# in it beside a panel.
_COLUMNS, _ROWS = Fraction(1), Fraction(5, 16)
_GROUP = 8  # tiles in a group of rows at most
_SQUARE = 16  # rows and columns of a tile that is a register


@dataclass(frozen=True)
class Tile:
    """Rows by columns that one call of the micro-kernel computes."""

    multiply: Multiply
    rows: int
    lanes: int  # words in a vector

    @property
    def columns(self) -> int:
        return PANEL_VECTORS * self.lanes

    @property
    def name(self) -> str:
        return f"litz_{self.multiply.name}_{self.rows}x{self.columns}"


@dataclass(frozen=True)
class ProductPlan:
    """The sizes everything is derived from; `inner` counts numbers, what is said to be deep counts words."""

    batch: Expr
    rows: Expr
    columns: int
    lines: int  # of the depth, each padded to whole chunks
    inner: int
    tiles: tuple[Tile, ...]  # tallest first; shorter ones are for the rows that are left
    block: int  # panels in a block of columns
    blocks: int
    stretches: int  # shares of the rows
    group: int  # tiles in a group of rows
    run: int  # words summed in one go
    rows_from: str  # how rows are packed: "lines" along the depth, or "columns" of the operand, which are turned
    columns_from: str  # the same of columns: "lines" across them, "columns" along the depth; "panels": they are packed

    @property
    def tile(self) -> Tile:
        return self.tiles[0]

    @property
    def multiply(self) -> Multiply:
        return self.tile.multiply

    @property
    def is_packed(self) -> bool:
        return self.columns_from == "panels"

    @property
    def lanes(self) -> int:
        return self.tile.lanes

    @property
    def chunk(self) -> int:
        """Numbers in a chunk."""
        return self.lanes * self.multiply.group

    @property
    def words(self) -> int:
        """Of a line, with numbers in them."""
        return -(-self.inner // self.multiply.group)

    @property
    def padded(self) -> int:
        """Words of a line in whole chunks."""
        return -(-self.inner // self.chunk) * self.lanes

    @property
    def depth(self) -> int:
        return self.lines * self.padded

    @property
    def multiplied(self) -> tuple[int, int]:
        """How many words are multiplied in one call, and the words from the start of that to the next: padding at the
        end is left out; where each line has some, a line is multiplied at a time."""
        if self.lines == 1:
            return self.words, self.depth
        return (self.words, self.padded) if self.words < self.padded else (self.depth, self.depth)

    @property
    def panels(self) -> int:
        return -(-self.columns // self.tile.columns)

    @property
    def units(self) -> Expr:
        return self.batch * (self.blocks * self.stretches)

    @property
    def panel_words(self) -> int:
        return self.depth * self.tile.columns

    @property
    def tile_words(self) -> int:
        return self.depth * self.tile.rows

    @property
    def tiles_at(self) -> int:
        """Where packed rows begin in the workspace, in bytes: behind packed columns."""
        return 0 if self.is_packed else WORD * self.block * self.panel_words

    @property
    def sums_at(self) -> int:
        return self.tiles_at + WORD * self.group * self.tile_words

    @property
    def workspace(self) -> int:
        return self.sums_at + 4 * self.tile.rows * self.tile.columns + 4096

    def short(self, rows: int) -> Tile:
        """The shortest that takes so many rows."""
        return min((tile for tile in self.tiles if tile.rows >= rows), key=lambda tile: tile.rows)

    def __str__(self) -> str:
        one, heights = self.multiply, ", ".join(str(tile.rows) for tile in self.tiles)
        factors = one.rows if one.rows == one.columns else f"{one.rows} and {one.columns}"
        packed = {"lines": "along the depth", "columns": "turned"}[self.rows_from]
        how = {"lines": "across the depth", "columns": "turned", "panels": "before"}[self.columns_from]
        batch = "" if self.batch.is_int and self.batch.int == 1 else f", {self.batch} times"
        return "\n".join(
            [
                f"product of {factors} by {one.name}, {one.group} in a word{batch}",
                f"rows {self.rows} in tiles of {heights}, {self.group} in a group, {self.stretches} shares: {packed}",
                f"columns {self.columns} in panels of {self.tile.columns}, {self.block} in each of {self.blocks} "
                f"blocks: packed {how}",
                f"depth {self.lines} x {self.inner} in {self.depth} words, chunks of {self.lanes}, runs of {self.run}",
            ]
        )


def plan_product(found: Contraction, kernel: Kernel, target: Target) -> ProductPlan:
    tiles = tiles_for(instruction(found, target), target)
    tile, inner, outer = tiles[0], inner_axis(kernel, found), outer_axes(kernel, found)
    rows, columns, lanes = volume(found.rows), volume(found.columns).int, tile.lanes
    made = panels(volume(outer).int, inner.size.int, columns, lanes, tile.multiply.group)
    depth, count = made.depth, made.count
    block = max(1, min(count, int(_COLUMNS * target.l2_bytes) // (WORD * depth * tile.columns)))
    blocks = -(-count // block)
    block = -(-count // blocks)  # even blocks
    group = max(1, min(_GROUP, int(_ROWS * target.l2_bytes) // (WORD * depth * tile.rows)))
    stretches = min(target.threads, max(1, rows.hint // tile.rows)) if target.threads > 1 else 1
    return ProductPlan(
        volume(found.batch), rows, columns, made.lines, made.inner, tiles, block, -(-count // block), stretches, group,
        _run(made, lanes, _is_whole(kernel, tile.multiply)), _rows_from(found, kernel, inner),
        "panels" if packed_panels(found, kernel, target) is not None else _columns_from(found, inner),
    )  # fmt: skip


def instruction(found: Contraction, target: Target) -> Multiply:
    return multiply_for(target, found.left.dtype, found.right.dtype, found.total.dtype)


def tiles_for(multiply: Multiply, target: Target) -> tuple[Tile, ...]:
    """The tiles to choose from, tallest first: as many accumulators as registers allow, then shorter ones."""
    lanes = target.vector_bytes // WORD
    if multiply.on_tiles:
        return Tile(multiply, 2 * _SQUARE, _SQUARE), Tile(multiply, _SQUARE, _SQUARE)
    tallest = (target.vector_registers - PANEL_VECTORS - 1) // PANEL_VECTORS
    heights = [tallest, 8, 4] if tallest > 8 else [tallest, 3]
    return tuple(Tile(multiply, rows, lanes) for rows in heights)


def packed_panels(found: Contraction, kernel: Kernel, target: Target) -> Panels | None:
    """How the columns lie, if that is as the micro-kernel reads them: constants are packed when they are made."""
    inner, outer = inner_axis(kernel, found), outer_axes(kernel, found)
    multiply = instruction(found, target)
    if len(found.columns) != 1 or found.batch or found.right.mask is not None or multiply.columns != found.right.dtype:
        return None
    sizes = [axis.size for axis in (*outer, inner, *found.columns)]
    if not all(size.is_int for size in sizes):
        return None
    line = ZERO
    for axis in outer:
        line = line * axis.size + expr(axis)
    (column,) = found.columns
    made = panels(volume(outer).int, inner.size.int, column.size.int, target.vector_bytes // WORD, multiply.group)
    return made if found.right.index == made.at(line, expr(inner), expr(column)) else None


def cycles(found: Contraction, kernel: Kernel, target: Target) -> float:
    """What the product takes, about: multiply-adds of whole tiles, and packing."""
    multiply = instruction(found, target)
    tile = tiles_for(multiply, target)[-1]
    rows, columns, depth = (volume(axes).hint for axes in (found.rows, found.columns, kernel.reduced))
    whole = (-(-n // step) * step for n, step in ((rows, tile.rows), (columns, tile.columns)))
    packs = rows if packed_panels(found, kernel, target) is not None else rows + columns
    words = depth / multiply.group
    return volume(found.batch).hint * words * (_MULTIPLY * prod(whole) / tile.lanes + _PACK * packs)


def inner_axis(kernel: Kernel, found: Contraction) -> Axis:
    """The reduced axis along which rows are packed: contiguous in the rows' operand, if any is."""
    for axis in reversed(kernel.reduced):
        if _step(found.left, axis) == 1:
            return axis
    return kernel.reduced[-1]


def outer_axes(kernel: Kernel, found: Contraction) -> tuple[Axis, ...]:
    inner = inner_axis(kernel, found)
    return tuple(axis for axis in kernel.reduced if axis != inner)


def _step(load: Load, axis: Axis) -> int | None:
    step = load.index.coefficient(axis)
    return step.int if step is not None and step.is_int else None


def _run(made: Panels, lanes: int, is_whole: bool) -> int:
    """How many words are summed in one go: a quarter of them, in whole vectors, within bounds; or all of them."""
    whole = made.depth if made.inner % (lanes * made.group) == 0 else -(-made.inner // made.group)
    if is_whole:
        return -(-whole // lanes) * lanes
    least, most = _RUN
    return min(most, max(least, -(-whole // (4 * lanes)) * lanes))


def _is_whole(kernel: Kernel, multiply: Multiply) -> bool:
    """Whether nothing is gained by runs: sums are exact, or add up in tiles, or all that is stored has 16 bits."""
    if multiply.on_tiles or multiply.total == "i32":
        return True
    types = {op.name: op.dtype for op in kernel.body if not isinstance(op, Store)}
    return all(types[store.value] in ("bf16", "f16") for store in kernel.stores)


def _rows_from(found: Contraction, kernel: Kernel, inner: Axis) -> str:
    """Whether the rows' operand is a matrix that lies there transposed."""
    left, rows = found.left, found.rows
    is_turned = len(rows) == 1 and _step(left, rows[0]) == 1 and _step(left, inner) != 1
    return "columns" if is_turned and not definitions_for(kernel.body, [found.read[0]]) else "lines"


def _columns_from(found: Contraction, inner: Axis) -> str:
    (column,) = found.columns
    return "columns" if _step(found.right, inner) == 1 and _step(found.right, column) != 1 else "lines"


__all__ = [
    "ProductPlan", "Tile", "cycles", "inner_axis", "instruction", "outer_axes", "packed_panels", "plan_product",
    "tiles_for",
]  # fmt: skip
