"""The matrix product's inner loop: a tile of accumulators held in registers.

`NAME(a, b, depth, c, more)`: `a` is a packed tile of rows, `b` a packed panel of columns, `c` receives the
tile, or has it added when `more` is true: long sums are taken in stretches, which keeps their rounding
errors from piling up. Both are packed in chunks of as many steps of the depth as a vector has lanes: a
row's chunk is one vector, so packing rows is plain copying, and every address in the loop is the pointer
plus a constant.

The functions depend on the machine alone, not on any shape, and are built once in a process.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.target import Target

PANEL_VECTORS = 2  # vectors of columns in a panel


@dataclass(frozen=True)
class Tile:
    """Rows by columns that one call computes."""

    rows: int
    lanes: int

    @property
    def columns(self) -> int:
        return PANEL_VECTORS * self.lanes

    @property
    def name(self) -> str:
        return f"litz_tile_{self.rows}x{self.columns}"


def tiles(target: Target) -> tuple[Tile, ...]:
    """The tiles to choose from, tallest first: as many accumulators as registers allow, then shorter ones."""
    lanes = target.vector_bytes // 4
    tallest = (target.vector_registers - PANEL_VECTORS - 1) // PANEL_VECTORS
    heights = [tallest, 8, 4] if tallest > 8 else [tallest, 3]
    return tuple(Tile(rows, lanes) for rows in heights)


def declaration(tile: Tile) -> str:
    return f"declare void @{tile.name}(ptr, ptr, i64, ptr, i1)"


def text(tile: Tile) -> str:
    """The function, as a module of its own."""
    rows, lanes = tile.rows, tile.lanes
    vector = f"<{lanes} x float>"
    lines = [
        f"define void @{tile.name}(ptr noalias %a, ptr noalias %b, i64 %depth, ptr noalias %c, i1 %more) nounwind {{",
        "entry:",
        "  br label %chunk",
        "chunk:",
        "  %k = phi i64 [0, %entry], [%k.next, %chunk]",
        "  %pa = phi ptr [%a, %entry], [%pa.next, %chunk]",
        "  %pb = phi ptr [%b, %entry], [%pb.next, %chunk]",
    ]
    running = {}
    for row in range(rows):
        for v in range(PANEL_VECTORS):
            lines.append(
                f"  %acc.{row}.{v} = phi {vector} [zeroinitializer, %entry], [%s.{lanes - 1}.{row}.{v}, %chunk]"
            )
            running[row, v] = f"%acc.{row}.{v}"
    for step in range(lanes):
        for v in range(PANEL_VECTORS):
            lines.append(f"  %pb.{step}.{v} = getelementptr float, ptr %pb, i64 {(step * PANEL_VECTORS + v) * lanes}")
            lines.append(f"  %b.{step}.{v} = load {vector}, ptr %pb.{step}.{v}, align {4 * lanes}")
        for row in range(rows):
            one, wide = f"%a.{step}.{row}", f"%w.{step}.{row}"
            lines += [
                f"  %pa.{step}.{row} = getelementptr float, ptr %pa, i64 {row * lanes + step}",
                f"  {one} = load float, ptr %pa.{step}.{row}, align 4",
                f"  {wide}.0 = insertelement {vector} poison, float {one}, i32 0",
                f"  {wide} = shufflevector {vector} {wide}.0, {vector} poison, <{lanes} x i32> zeroinitializer",
            ]
            for v in range(PANEL_VECTORS):
                total = f"%s.{step}.{row}.{v}"
                factors = f"{vector} {wide}, {vector} %b.{step}.{v}"
                lines.append(f"  {total} = call {vector} @llvm.fma.v{lanes}f32({factors}, {vector} {running[row, v]})")
                running[row, v] = total
    lines += [
        f"  %k.next = add i64 %k, {lanes}",
        f"  %pa.next = getelementptr float, ptr %pa, i64 {rows * lanes}",
        f"  %pb.next = getelementptr float, ptr %pb, i64 {lanes * tile.columns}",
        "  %on = icmp ult i64 %k.next, %depth",
        "  br i1 %on, label %chunk, label %done",
        "done:",
    ]
    for row, v in running:
        lines.append(f"  %pc.{row}.{v} = getelementptr float, ptr %c, i64 {row * tile.columns + v * lanes}")
    lines += ["  br i1 %more, label %add, label %set", "add:"]
    for (row, v), value in running.items():
        lines += [
            f"  %old.{row}.{v} = load {vector}, ptr %pc.{row}.{v}, align {4 * lanes}",
            f"  %new.{row}.{v} = fadd {vector} %old.{row}.{v}, {value}",
            f"  store {vector} %new.{row}.{v}, ptr %pc.{row}.{v}, align {4 * lanes}",
        ]
    lines += ["  ret void", "set:"]
    for (row, v), value in running.items():
        lines.append(f"  store {vector} {value}, ptr %pc.{row}.{v}, align {4 * lanes}")
    lines += ["  ret void", "}", f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})", ""]
    return "\n".join(lines)
