"""Batches: kernels that wait for nothing of each other, run by one team of threads.

In: a program's steps and its memory layout. Out: which steps stand together; and, in the module, a table of a batch's
kernels and the function that walks it. Every thread has its share of all the work, as if it were one long loop: what
it costs to wake a team is paid once, and small kernels beside large ones keep no thread waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from litz.codegen.llvm.rendered import TRAILING, Rendered
from litz.codegen.llvm.team import declare_kernel, start_team, team_place
from litz.codegen.llvm.writer import Module, Writer
from litz.loop.contraction import contraction
from litz.loop.ir import Kernel, Program, Step
from litz.schedule.memory import Layout

_TEAM = "batch.team"
_WALK = "batch.walk"
_DATA = ("table", "count", "width", "total", "slots", "sizes", "error")  # what the two are given, in this order
_HEADER = ("part", "units", "first", "cost", "grain")  # of an entry; the slots of its buffers follow


# -- which -----------------------------------------------------------------------------------------
def batches(program: Program, layout: Layout) -> list[list[int]]:
    """The positions of all steps, in order, those of a batch together."""
    apart = {name for block in layout.apart for name in (*block.members, block.into)}
    found: list[list[int]] = []
    touched: set[str] = set()  # by the last batch
    written: set[str] = set()
    open_ = False
    for at, step in enumerate(program.steps):
        joins = _may_stand_beside_others(step, program, apart)
        if (
            open_
            and joins
            and at not in layout.pauses
            and at != layout.first_effect
            and written.isdisjoint((*step.reads, *step.writes))
            and touched.isdisjoint(step.writes)
        ):
            found[-1].append(at)
        else:
            found.append([at])
            touched.clear()
            written.clear()
        open_ = joins
        touched.update(step.reads, step.writes)
        written.update(step.writes)
    return found


def _may_stand_beside_others(step: Step, program: Program, apart: Collection[str | None]) -> bool:
    """Temporaries may lie where another one lay a step before, so nothing of a batch writes to one."""
    return (
        isinstance(step, Kernel)
        and not step.reduced
        and contraction(step) is None
        and all(axis.size.is_int for axis in step.axes)
        and all(program.buffers[name].kind != "temp" and name not in apart for name in step.writes)
    )


# -- how -------------------------------------------------------------------------------------------
def write_part(module: Module, kernel: Rendered) -> None:
    """`NAME.part(slots, entry, ...)`: the kernel, with its buffers named by the slots that the entry lists."""
    w = Writer(module)
    arguments = []
    for position in range(len(kernel.buffers)):
        slot = w.let(f"load i64, ptr {w.address('i64', '%row', len(_HEADER) + position)}")
        address = w.address("ptr", "%slots", slot)
        arguments.append(f"ptr {w.let(f'load ptr, ptr {address}')}")
    declare_kernel(module, kernel)
    w.emit(f"call void @{kernel.name}({', '.join((*arguments, *TRAILING))})")
    w.emit("ret void")
    w.define(f"{kernel.name}.part", ", ".join(("ptr %slots", "ptr %row", *TRAILING)))


def launch(w: Writer, kernels: Sequence[tuple[Rendered, Sequence[int]]], threads: int) -> None:
    """The kernels, each with the slots of its buffers, side by side on so many threads."""
    width = len(_HEADER) + max(len(slots) for _, slots in kernels)
    rows: list[str] = []
    total = 0
    for kernel, slots in kernels:
        units = kernel.units.int
        cost = max(1, kernel.work // max(1, units))
        entry = [units, total, cost, kernel.grain, *slots]
        entry += [0] * (width - 1 - len(entry))
        rows.append(", ".join((f"i64 ptrtoint (ptr @{kernel.name}.part to i64)", *(f"i64 {n}" for n in entry))))
        total += units * cost
    table = w.module.constant(f"[{len(rows) * width} x i64] [{', '.join(rows)}]")
    data = w.slot(f"[{len(_DATA)} x i64]", 8)
    numbers = (f"i64 {len(rows)}", f"i64 {width}", f"i64 {total}")
    given = (f"ptr {table}", *numbers, "ptr %slots", "ptr %sizes", "ptr %error")
    for position, value in enumerate(given):
        w.emit(f"store {value}, ptr {w.address('i64', data, position)}")
    if threads == 1:
        w.emit(f"call void @{_WALK}(ptr {data}, i64 0, i64 1)")
    else:
        start_team(w, _TEAM, data, threads)


def write_walk(module: Module) -> None:
    """What walks the tables of all batches in the module."""
    w = Writer(module)
    data = {}
    for position, name in enumerate(_DATA):
        kind = "i64" if name in ("count", "width", "total") else "ptr"
        data[name] = w.let(f"load {kind}, ptr {w.address('i64', '%data', position)}")
    low = w.let(f"sdiv i64 {w.mul('%me', data['total'])}, %team")
    high = w.let(f"sdiv i64 {w.mul(w.add('%me', '1'), data['total'])}, %team")
    with w.loop("0", data["count"]) as i:
        entry = w.address("i64", data["table"], w.mul(i, data["width"]))
        part, *numbers = (w.let(f"load i64, ptr {w.address('i64', entry, k)}") for k in range(len(_HEADER)))
        begin, end = (_unit(w, bound, *numbers) for bound in (low, high))
        with w.when(w.let(f"icmp slt i64 {begin}, {end}")):
            function = w.let(f"inttoptr i64 {part} to ptr")
            w.emit(
                f"call void {function}(ptr {data['slots']}, ptr {entry}, ptr {data['sizes']}, ptr {data['error']}, "
                f"i64 {begin}, i64 {end})"
            )
    w.emit("ret void")
    w.define(_WALK, "ptr %data, i64 %me, i64 %team")
    w = Writer(module)
    me, team = team_place(w)
    w.emit(f"call void @{_WALK}(ptr %data, i64 {me}, i64 {team})")
    w.emit("ret void")
    w.define(_TEAM, "ptr %data")


def _unit(w: Writer, bound: str, units: str, first: str, cost: str, grain: str) -> str:
    """The first unit at or behind `bound` in the work of all: the kernel's own begins at `first`."""
    passed = w.intrinsic("llvm.smax", "i64", w.let(f"sdiv i64 {w.let(f'sub i64 {bound}, {first}')}, {cost}"), "0")
    whole = w.let(f"and i64 {passed}, {w.let(f'sub i64 0, {grain}')}")
    return w.let(f"select i1 {w.let(f'icmp sge i64 {passed}, {units}')}, i64 {units}, i64 {whole}")
