"""The matrix product's inner loop on registers that are tiles: sixteen rows of sixteen words.

In: a `Tile`, of sixteen rows or of two such tiles above each other. Out: its function, as `microkernel.py` has it.
Packed memory is what the instructions read: a chunk of rows is a tile, one row after the other; so is a chunk of a
panel's columns, two tiles side by side. The depth is taken in whole chunks, whose padding is zeros, and in one run.
"""

from __future__ import annotations

from litz.codegen.product import Tile
from litz.loop.panels import PANEL_VECTORS

_ROW = 64  # bytes of a tile's row
_SQUARE = 16
_SUMS, _ROWS, _COLUMNS = 0, 4, 6  # the first tile of each kind; there are eight
_TILES = 8


def text(tile: Tile) -> str:
    """The function, as a module of its own."""
    high = tile.rows // _SQUARE
    places = [(r, c, _SUMS + r * PANEL_VECTORS + c) for r in range(high) for c in range(PANEL_VECTORS)]
    across = tile.columns * 4  # bytes from one row of sums, or of columns, to the next
    parameters = "ptr noalias %a, ptr noalias %b, i64 %depth, i64 %run, ptr noalias %c, i1 %more"
    lines = [
        f'@litz.tiles = private unnamed_addr constant [64 x i8] c"{_configuration()}"',
        f"define void @{tile.name}({parameters}) nounwind {{",
        "entry:",
        "  call void @llvm.x86.ldtilecfg(ptr @litz.tiles)",
        *(f"  %pc.{r}.{c} = getelementptr i8, ptr %c, i64 {r * _SQUARE * across + c * _ROW}" for r, c, _ in places),
        "  br i1 %more, label %old, label %new",
        "new:",
        *(f"  call void @llvm.x86.tilezero(i8 {t})" for _, _, t in places),
        "  br label %chunk",
        "old:",
        *(f"  call void @llvm.x86.tileloadd64(i8 {t}, ptr %pc.{r}.{c}, i64 {across})" for r, c, t in places),
        "  br label %chunk",
        "chunk:",
        "  %k = phi i64 [0, %new], [0, %old], [%k.next, %chunk]",
        "  %pa = phi ptr [%a, %new], [%a, %old], [%pa.next, %chunk]",
        "  %pb = phi ptr [%b, %new], [%b, %old], [%pb.next, %chunk]",
    ]
    for c in range(PANEL_VECTORS):
        lines += [
            f"  %pb.{c} = getelementptr i8, ptr %pb, i64 {c * _ROW}",
            f"  call void @llvm.x86.tileloadd64(i8 {_COLUMNS + c}, ptr %pb.{c}, i64 {across})",
        ]
    for r in range(high):
        lines += [
            f"  %pa.{r} = getelementptr i8, ptr %pa, i64 {r * _SQUARE * _ROW}",
            f"  call void @llvm.x86.tileloadd64(i8 {_ROWS + r}, ptr %pa.{r}, i64 {_ROW})",
        ]
    instruction = f"@llvm.x86.{tile.multiply.name}"
    lines += [f"  call void {instruction}(i8 {t}, i8 {_ROWS + r}, i8 {_COLUMNS + c})" for r, c, t in places]
    lines += [
        f"  %k.next = add i64 %k, {_SQUARE}",
        f"  %pa.next = getelementptr i8, ptr %pa, i64 {tile.rows * _ROW}",
        f"  %pb.next = getelementptr i8, ptr %pb, i64 {_SQUARE * across}",
        "  %on = icmp ult i64 %k.next, %depth",
        "  br i1 %on, label %chunk, label %done",
        "done:",
        *(f"  call void @llvm.x86.tilestored64(i8 {t}, ptr %pc.{r}.{c}, i64 {across})" for r, c, t in places),
        "  call void @llvm.x86.tilerelease()",
        "  ret void",
        "}",
        "declare void @llvm.x86.ldtilecfg(ptr)",
        "declare void @llvm.x86.tilezero(i8 immarg)",
        "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
        "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
        f"declare void {instruction}(i8 immarg, i8 immarg, i8 immarg)",
        "declare void @llvm.x86.tilerelease()",
        "",
    ]
    return "\n".join(lines)


def _configuration() -> str:
    """What `ldtilecfg` reads: the kind, bytes of a row of each tile, and how many rows."""
    data = bytearray(64)
    data[0] = 1
    for tile in range(_TILES):
        data[16 + 2 * tile] = _ROW
        data[48 + tile] = _SQUARE
    return "".join(f"\\{byte:02X}" for byte in data)


__all__ = ["text"]
