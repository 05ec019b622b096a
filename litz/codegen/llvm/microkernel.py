"""The matrix product's inner loop: a tile of accumulators held in registers.

`NAME(a, b, depth, run, c, more)`: `a` is a packed tile of rows, `b` a packed panel of columns, `c` receives the
tile, or has it added when `more` is true. Every `run` words the accumulators are added to `c` and start
again from zero, which keeps rounding errors from piling up. Both are packed in chunks of as many words of
the depth as a vector has lanes: a row's chunk is one vector, so packing rows is plain copying, and every
address in the loop is the pointer plus a constant; a run is a whole number of chunks. What is left of a
depth that is no whole number of chunks is taken a word at a time.

A word is what one lane multiplies at once: a float32, a pair of bfloat16, four whole numbers (`loop/multiply.py`);
until then it is moved about as if it were of the sum's type. Instructions on tiles have a loop of their own
(`tile_registers.py`).

The functions depend on the machine alone, not on any shape, and are built once in a process.
"""

from __future__ import annotations

from litz.codegen.llvm import tile_registers
from litz.codegen.product import Tile
from litz.loop.panels import PANEL_VECTORS

_WORD = {"f32": "float", "i32": "i32"}
_ADD = {"f32": "fadd", "i32": "add"}
# What multiplies and adds, by its name and the bits of a vector, and what its factors are to LLVM; where it only
# multiplies, its result is added.
_INTRINSICS = {
    ("vdpbf16ps", 512): ("@llvm.x86.avx512bf16.dpbf16ps.512", "bfloat"),
    ("vpdpbusd", 512): ("@llvm.x86.avx512.vpdpbusd.512", "i8"),
    ("vpdpbusd", 256): ("@llvm.x86.avx512.vpdpbusd.256", "i8"),
    ("vpmaddwd", 512): ("@llvm.x86.avx512.pmaddw.d.512", "i16"),
    ("vpmaddwd", 256): ("@llvm.x86.avx2.pmadd.wd", "i16"),
}


def declaration(tile: Tile) -> str:
    return f"declare void @{tile.name}(ptr, ptr, i64, i64, ptr, i1)"


def text(tile: Tile) -> str:
    """The function, as a module of its own."""
    if tile.multiply.on_tiles:
        return tile_registers.text(tile)
    vector = f"<{tile.lanes} x {_word(tile)}>"
    tiles = [(row, v) for row in range(tile.rows) for v in range(PANEL_VECTORS)]
    parameters = "ptr noalias %a, ptr noalias %b, i64 %depth, i64 %run, ptr noalias %c, i1 %more"
    lines = [f"define void @{tile.name}({parameters}) nounwind {{", "entry:"]
    for row, v in tiles:
        lines.append(f"  %pc.{row}.{v} = getelementptr float, ptr %c, i64 {row * tile.columns + v * tile.lanes}")
    lines += [
        f"  %whole = and i64 %depth, {-tile.lanes}",
        "  %any = icmp ne i64 %whole, 0",
        "  br i1 %any, label %start, label %rest",
        *_runs(tile, vector, tiles),
        *_single_steps(tile, vector, tiles),
        "done:",
        "  ret void",
        "}",
        _declaration_of_instruction(tile, vector),
        "",
    ]
    return "\n".join(lines)


Places = list[tuple[int, int]]


def _runs(tile: Tile, vector: str, tiles: Places) -> list[str]:
    """Runs of chunks. A chunk is as many steps as a vector has lanes: every address is a pointer plus a constant."""
    lanes = tile.lanes
    lines = [
        "start:",
        "  %k.start = phi i64 [0, %entry], [%k.next, %run.kept]",
        "  %pa.start = phi ptr [%a, %entry], [%pa.next, %run.kept]",
        "  %pb.start = phi ptr [%b, %entry], [%pb.next, %run.kept]",
        "  %run.more = phi i1 [%more, %entry], [true, %run.kept]",
        "  %k.far = add i64 %k.start, %run",
        "  %near = icmp ult i64 %k.far, %whole",
        "  %k.end = select i1 %near, i64 %k.far, i64 %whole",
        "  br label %chunk",
        "chunk:",
        "  %k = phi i64 [%k.start, %start], [%k.next, %chunk]",
        "  %pa = phi ptr [%pa.start, %start], [%pa.next, %chunk]",
        "  %pb = phi ptr [%pb.start, %start], [%pb.next, %chunk]",
    ]
    for row, v in tiles:
        last = f"%s.{lanes - 1}.{row}.{v}"
        lines.append(f"  %acc.{row}.{v} = phi {vector} [zeroinitializer, %start], [{last}, %chunk]")
    running = {place: f"%acc.{place[0]}.{place[1]}" for place in tiles}
    for step in range(lanes):
        for v in range(PANEL_VECTORS):
            lines.append(f"  %pb.{step}.{v} = getelementptr float, ptr %pb, i64 {(step * PANEL_VECTORS + v) * lanes}")
        for row in range(tile.rows):
            lines.append(f"  %pa.{step}.{row} = getelementptr float, ptr %pa, i64 {row * lanes + step}")
        totals = {(row, v): f"%s.{step}.{row}.{v}" for row, v in tiles}
        lines += _multiply(tile, vector, f"{step}.", running, totals)
        running = totals
    return [
        *lines,
        f"  %k.next = add i64 %k, {lanes}",
        f"  %pa.next = getelementptr float, ptr %pa, i64 {tile.rows * lanes}",
        f"  %pb.next = getelementptr float, ptr %pb, i64 {lanes * tile.columns}",
        "  %on = icmp ult i64 %k.next, %k.end",
        "  br i1 %on, label %chunk, label %run.done",
        *_keep(tile, vector, "run", running),
        "  %again = icmp ult i64 %k.next, %whole",
        "  br i1 %again, label %start, label %rest",
    ]


def _keep(tile: Tile, vector: str, tag: str, sums: dict[tuple[int, int], str]) -> list[str]:
    """The block `TAG.done`: the sums go into `c`, or are added to it if `%TAG.more`; ends up in `TAG.kept`."""
    at = f"align {4 * tile.lanes}"
    lines = [f"{tag}.done:", f"  br i1 %{tag}.more, label %{tag}.add, label %{tag}.set", f"{tag}.add:"]
    for (row, v), total in sums.items():
        lines += [
            f"  %{tag}.old.{row}.{v} = load {vector}, ptr %pc.{row}.{v}, {at}",
            f"  %{tag}.new.{row}.{v} = {_ADD[tile.multiply.total]} {vector} %{tag}.old.{row}.{v}, {total}",
            f"  store {vector} %{tag}.new.{row}.{v}, ptr %pc.{row}.{v}, {at}",
        ]
    lines += [f"  br label %{tag}.kept", f"{tag}.set:"]
    for (row, v), total in sums.items():
        lines.append(f"  store {vector} {total}, ptr %pc.{row}.{v}, {at}")
    return [*lines, f"  br label %{tag}.kept", f"{tag}.kept:"]


def _single_steps(tile: Tile, vector: str, tiles: Places) -> list[str]:
    """What is left of the depth, one step at a time."""
    lanes = tile.lanes
    lines = [
        "rest:",
        "  %ra = phi ptr [%a, %entry], [%pa.next, %run.kept]",
        "  %rb = phi ptr [%b, %entry], [%pb.next, %run.kept]",
        "  %rest.more = phi i1 [%more, %entry], [true, %run.kept]",
        "  %more.steps = icmp ult i64 %whole, %depth",
        "  br i1 %more.steps, label %step, label %done",
        "step:",
        "  %j = phi i64 [%whole, %rest], [%j.next, %step]",
        "  %qa = phi ptr [%ra, %rest], [%qa.next, %step]",
        "  %pb.last.0 = phi ptr [%rb, %rest], [%qb.next, %step]",
    ]
    for row, v in tiles:
        lines.append(f"  %u.{row}.{v} = phi {vector} [zeroinitializer, %rest], [%t.{row}.{v}, %step]")
    for v in range(1, PANEL_VECTORS):
        lines.append(f"  %pb.last.{v} = getelementptr float, ptr %pb.last.0, i64 {v * lanes}")
    for row in range(tile.rows):
        lines.append(f"  %pa.last.{row} = getelementptr float, ptr %qa, i64 {row * lanes}")
    running = {(row, v): f"%u.{row}.{v}" for row, v in tiles}
    totals = {(row, v): f"%t.{row}.{v}" for row, v in tiles}
    return [
        *lines,
        *_multiply(tile, vector, "last.", running, totals),
        "  %j.next = add i64 %j, 1",
        "  %qa.next = getelementptr float, ptr %qa, i64 1",
        f"  %qb.next = getelementptr float, ptr %pb.last.0, i64 {tile.columns}",
        "  %steps.on = icmp ult i64 %j.next, %depth",
        "  br i1 %steps.on, label %step, label %rest.done",
        *_keep(tile, vector, "rest", totals),
        "  br label %done",
    ]


def _multiply(
    tile: Tile, vector: str, tag: str, running: dict[tuple[int, int], str], totals: dict[tuple[int, int], str]
) -> list[str]:
    """One step of the depth: `%pa.TAGrow` and `%pb.TAGv` are where its numbers lie."""
    lanes = tile.lanes
    lines = []
    for v in range(PANEL_VECTORS):
        lines.append(f"  %b.{tag}{v} = load {vector}, ptr %pb.{tag}{v}, align {4 * lanes}")
        lines += _as_factor(tile, vector, f"%b.{tag}{v}")
    for row in range(tile.rows):
        one, wide = f"%a.{tag}{row}", f"%w.{tag}{row}"
        lines += [
            f"  {one} = load {_word(tile)}, ptr %pa.{tag}{row}, align 4",
            f"  {wide}.0 = insertelement {vector} poison, {_word(tile)} {one}, i32 0",
            f"  {wide} = shufflevector {vector} {wide}.0, {vector} poison, <{lanes} x i32> zeroinitializer",
            *_as_factor(tile, vector, wide),
        ]
        for v in range(PANEL_VECTORS):
            lines += _multiply_add(tile, vector, totals[row, v], running[row, v], wide, f"%b.{tag}{v}")
    return lines


# -- the instruction ------------------------------------------------------------------------------
def _word(tile: Tile) -> str:
    return _WORD[tile.multiply.total]


def _intrinsic(tile: Tile) -> tuple[str, str]:
    """Of an instruction that takes several numbers at once: its name, and the type of its factors."""
    name, number = _INTRINSICS[tile.multiply.name, 32 * tile.lanes]
    return name, f"<{tile.multiply.group * tile.lanes} x {number}>"


def _as_factor(tile: Tile, vector: str, words: str) -> list[str]:
    """Words as the numbers they are, under a name of their own."""
    return [] if tile.multiply.group == 1 else [f"  {words}.n = bitcast {vector} {words} to {_intrinsic(tile)[1]}"]


def _multiply_add(tile: Tile, vector: str, new: str, total: str, left: str, right: str) -> list[str]:
    """Gives `new` the total and what the two words make."""
    if tile.multiply.name == "fma":
        operands = f"{vector} {left}, {vector} {right}, {vector} {total}"
        return [f"  {new} = call {vector} @llvm.fma.v{tile.lanes}f32({operands})"]
    if tile.multiply.group == 1:
        return [f"  {new}.p = mul {vector} {left}, {right}", f"  {new} = add {vector} {total}, {new}.p"]
    name, numbers = _intrinsic(tile)
    factors = f"{numbers} {left}.n, {numbers} {right}.n"
    if tile.multiply.name == "vpmaddwd":
        return [f"  {new}.p = call {vector} {name}({factors})", f"  {new} = add {vector} {total}, {new}.p"]
    return [f"  {new} = call {vector} {name}({vector} {total}, {factors})"]


def _declaration_of_instruction(tile: Tile, vector: str) -> str:
    if tile.multiply.name == "fma":
        return f"declare {vector} @llvm.fma.v{tile.lanes}f32({vector}, {vector}, {vector})"
    if tile.multiply.group == 1:
        return ""
    name, numbers = _intrinsic(tile)
    total = "" if tile.multiply.name == "vpmaddwd" else f"{vector}, "
    return f"declare {vector} {name}({total}{numbers}, {numbers})"


__all__ = ["declaration", "text"]
