"""Render a kernel that reads along one axis and writes along another: tiles that are turned over in shared memory.

In: a `TurnedPlan`. Out: one LLVM function, and how it is started.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from litz.codegen.depend import depends
from litz.codegen.llvm.gpu_function import GpuFunction, Grid
from litz.codegen.llvm.writer import Module, Operand, llvm_type
from litz.codegen.turned import TILE, TurnedPlan, pitch
from litz.loop.dtype import DTYPES
from litz.loop.expr import Axis
from litz.loop.ir import Buffer, Load, Store, definitions_for


def render_turned(
    plan: TurnedPlan, buffers: dict[str, Buffer], module: Module, name: str, sizes: tuple[str, ...]
) -> Grid:
    return _Turned(plan, buffers, module, name, sizes).run()


class _Turned(GpuFunction):
    def __init__(self, plan: TurnedPlan, buffers: dict[str, Buffer], module: Module, name: str, sizes: tuple[str, ...]):
        super().__init__(plan.kernel, buffers, module, name, sizes, depends(plan.kernel.body, ()))
        self.plan = plan
        ops = {op.name: op for op in plan.kernel.body if isinstance(op, Load)}
        self.loads = [ops[name] for name in plan.turned]
        self.thread = self.register("tid")
        for load in self.loads:
            cells = f"[{TILE * pitch(load.dtype)} x {llvm_type(load.dtype)}]"
            module.declare(f"{self._tile(load)} = internal addrspace(3) global {cells} poison, align 16")

    def run(self) -> Grid:
        w, plan = self.w, self.plan
        sizes = self.scope(1, None)
        rest = self.wide(self.register("ctaid"))
        start: dict[Axis, str] = {}
        for axis in (plan.write, plan.read):
            tiles = sizes.size(plan.tiles(axis))
            start[axis] = w.mul(w.let(f"urem i64 {rest}, {tiles}"), str(TILE))
            rest = w.let(f"udiv i64 {rest}, {tiles}")
        at: dict[Axis, str] = {}
        for axis in reversed(plan.others):
            size = sizes.size(axis.size)
            at[axis] = w.let(f"urem i64 {rest}, {size}")
            rest = w.let(f"udiv i64 {rest}, {size}")
        stop = {axis: sizes.size(axis.size) for axis in (plan.read, plan.write)}
        ends = [w.let(f"icmp sle i64 {w.add(start[a], str(TILE))}, {stop[a]}") for a in (plan.read, plan.write)]
        whole = w.let(f"and i1 {ends[0]}, {ends[1]}")
        # The tiles at the end of an axis are taken element by element.
        with w.when(whole):
            self._tile_read(plan.read_lanes, at, start, None)
        with w.when(w.let(f"xor i1 {whole}, true")):
            self._tile_read(1, at, start, stop)
        self.barrier()
        with w.when(whole):
            self._tile_written(plan.write_lanes, at, start, None)
        with w.when(w.let(f"xor i1 {whole}, true")):
            self._tile_written(1, at, start, stop)
        return self.finish(plan.grid, plan.block)

    # -- walks of a tile ----------------------------------------------------------------------------
    def _places(self, lanes: int) -> list[tuple[str, str]]:
        """Of each of the thread's vectors, the row of the tile and where in it the vector begins."""
        w, across = self.w, TILE // lanes
        column = w.let(f"mul i32 {w.let(f'and i32 {self.thread}, {across - 1}')}, {lanes}")
        row = w.let(f"lshr i32 {self.thread}, {across.bit_length() - 1}")
        step = self.plan.block // across
        return [(w.let(f"add i32 {row}, {first}"), column) for first in range(0, TILE, step)]

    def _where_live(self, places: dict[Axis, str], stop: dict[Axis, str] | None) -> AbstractContextManager[None]:
        """A branch, unless all of the tile is there."""
        if stop is None:
            return nullcontext()
        tests = [self.w.let(f"icmp slt i64 {place}, {stop[axis]}") for axis, place in places.items()]
        return self.w.when(self.w.let(f"and i1 {tests[0]}, {tests[1]}"))

    def _tile_read(self, lanes: int, at: dict[Axis, str], start: dict[Axis, str], stop: dict[Axis, str] | None) -> None:
        w, plan = self.w, self.plan
        found: list[tuple[Load, Operand, str, str]] = []
        for row, column in self._places(lanes):
            scope = self.scope(lanes, plan.read)
            places = {
                plan.write: w.add(start[plan.write], self.wide(row)),
                plan.read: w.add(start[plan.read], self.wide(column)),
            }
            scope.axes = at | places
            with self._where_live(places, stop):
                for load in self.loads:
                    for op in definitions_for(plan.kernel.body, [load], scope.values):
                        scope.emit(op)
                    scope.emit(load)
                    value = w.splat(scope.values[load.name][0], lanes)
                    if stop is None:
                        found.append((load, value, row, column))
                    else:
                        self._put(load, value, row, column)
        for load, value, row, column in found:  # when all are under way
            self._put(load, value, row, column)

    def _tile_written(
        self, lanes: int, at: dict[Axis, str], start: dict[Axis, str], stop: dict[Axis, str] | None
    ) -> None:
        w, plan = self.w, self.plan
        for row, column in self._places(lanes):
            scope = self.scope(lanes, plan.write)
            places = {
                plan.read: w.add(start[plan.read], self.wide(row)),
                plan.write: w.add(start[plan.write], self.wide(column)),
            }
            scope.axes = at | places
            with self._where_live(places, stop):
                for load in self.loads:
                    scope.values[load.name] = [self._taken(load, row, column, lanes)]
                stores = [op for op in plan.kernel.body if isinstance(op, Store)]
                for op in definitions_for(plan.kernel.body, stores, scope.values):
                    scope.emit(op)
                for store in stores:
                    scope.emit(store)

    # -- shared memory ------------------------------------------------------------------------------
    def _tile(self, load: Load) -> str:
        return f"@tile{self.plan.turned.index(load.name)}"

    def _cell(self, load: Load, row: str, column: str) -> str:
        w = self.w
        cell = w.let(f"add i32 {w.let(f'mul i32 {row}, {pitch(load.dtype)}')}, {column}")
        return w.let(f"getelementptr {llvm_type(load.dtype)}, ptr addrspace(3) {self._tile(load)}, i32 {cell}", "p")

    def _put(self, load: Load, value: Operand, row: str, column: str) -> None:
        t, size = llvm_type(load.dtype), DTYPES[load.dtype].bytes
        for lane in range(value.lanes):
            one = value.text
            if value.lanes > 1:
                one = self.w.let(f"extractelement {value.type} {value.text}, i32 {lane}")
            at = self.w.let(f"add i32 {column}, {lane}") if lane else column
            self.w.emit(f"store {t} {one}, ptr addrspace(3) {self._cell(load, row, at)}, align {size}")

    def _taken(self, load: Load, row: str, column: str, lanes: int) -> Operand:
        """Elements that lie one below the other."""
        t, size, whole = llvm_type(load.dtype), DTYPES[load.dtype].bytes, "poison"
        wide = llvm_type(load.dtype, lanes)
        for lane in range(lanes):
            below = self.w.let(f"add i32 {column}, {lane}") if lane else column
            one = self.w.let(f"load {t}, ptr addrspace(3) {self._cell(load, below, row)}, align {size}")
            whole = one if lanes == 1 else self.w.let(f"insertelement {wide} {whole}, {t} {one}, i32 {lane}")
        return Operand(whole, load.dtype, lanes)


__all__ = ["render_turned"]
