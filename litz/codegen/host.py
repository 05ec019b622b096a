"""The host program: native functions that call kernels in order, with no Python in between.

In: the steps, their rendered kernels and the slot of each buffer (a table of pointers that the caller
fills). Out: functions `runN(slots, workspace, error)` in the module, one for each stretch of steps
between operators that only Python can call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litz.codegen import batch, shim
from litz.codegen.llvm.body import Frame
from litz.codegen.llvm.loops import Rendered
from litz.codegen.llvm.writer import Module, Writer
from litz.loop.expr import Expr
from litz.loop.fault import LAST_FAULT
from litz.loop.ir import Call

# Fewer scalar operations than this are done sooner than a second thread wakes.
_PARALLEL_WORK = 1 << 16
# Lines of one function: what LLVM needs for a function grows faster than the function.
_LONGEST_PART = 512
_PARAMETERS = "ptr %slots, ptr %workspace, ptr %sizes, ptr %error"


@dataclass(frozen=True)
class Launch:
    """A kernel's function, and the buffers that stand for its own, in the same order."""

    kernel: Rendered
    buffers: tuple[str, ...]


def declare_runtime(module: Module) -> None:
    module.declare("declare void @GOMP_parallel(ptr, ptr, i32, i32)")
    module.declare("declare i32 @omp_get_thread_num()")
    module.declare("declare i32 @omp_get_num_threads()")


def threads_for(kernel: Rendered, threads: int) -> int:
    if kernel.work < _PARALLEL_WORK:
        return 1
    return min(threads, kernel.units.int) if kernel.units.is_int else threads


def size_text(w: Writer, e: Expr, sizes: tuple[str, ...]) -> str:
    """An expression in sizes, computed from the table `%sizes`."""
    if e.is_int:
        return str(e.int)
    frame = Frame(w, {}, {}, 1, None, {}, sizes=w.load_sizes(sizes))
    return frame.size(e)


def write_team_body(module: Module, kernel: Rendered) -> None:
    """`NAME.team(data)`: what each thread of a team runs, on its share of the units."""
    w = Writer(module)
    pointers = []
    for position in range(len(kernel.buffers) + 3):
        address = w.let(f"getelementptr ptr, ptr %data, i64 {position}", "p")
        pointers.append(w.let(f"load ptr, ptr {address}"))
    units = w.let(f"load i64, ptr {w.address('ptr', '%data', len(pointers))}")
    me = w.let(f"sext i32 {w.let('call i32 @omp_get_thread_num()')} to i64")
    team = w.let(f"sext i32 {w.let('call i32 @omp_get_num_threads()')} to i64")
    *buffers, workspace, table, error = pointers
    w.lines.append(f"  %sizes = getelementptr i8, ptr {table}, i64 0")
    begin, end = (_share(w, turn, units, team, kernel.grain) for turn in (me, w.add(me, "1")))
    mine = w.let(f"getelementptr i8, ptr {workspace}, i64 {w.mul(me, str(kernel.workspace))}", "p")
    w.emit(_call(kernel, buffers, mine, error, begin, end))
    w.emit("ret void")
    w.define(f"{kernel.name}.team", "ptr %data")


def _share(w: Writer, turn: str, units: str, team: str, grain: int) -> str:
    """The unit that the thread of this turn begins with."""
    share = w.let(f"sdiv i64 {w.mul(turn, units)}, {team}")
    if grain == 1:
        return share
    whole = w.let(f"and i64 {share}, {-grain}")
    return w.let(f"select i1 {w.let(f'icmp eq i64 {turn}, {team}')}, i64 {units}, i64 {whole}")


def _call(kernel: Rendered, buffers: list[str], workspace: str, error: str, begin: str, end: str) -> str:
    arguments = [f"ptr {b}" for b in buffers]
    if kernel.workspace:
        arguments.append(f"ptr {workspace}")
    arguments += ["ptr %sizes", f"ptr {error}", f"i64 {begin}", f"i64 {end}"]
    return f"call void @{kernel.name}({', '.join(arguments)})"


class HostWriter:
    """One host function; a long one is several, called one after the other."""

    def __init__(self, module: Module, name: str, slots: dict[str, int], threads: int, sizes: tuple[str, ...]):
        self.w, self.name, self.slots, self.threads, self.sizes = Writer(module), name, slots, threads, sizes
        self.parts: list[str] = []

    def pointer(self, buffer: str) -> str:
        address = self.w.let(f"getelementptr ptr, ptr %slots, i64 {self.slots[buffer]}", "p")
        return self.w.let(f"load ptr, ptr {address}")

    def launch(self, launches: Sequence[Launch]) -> None:
        """Kernels that wait for nothing of each other."""
        self._make_room()
        if len(launches) == 1:
            self._launch(*launches)
            return
        team = self.threads if sum(launch.kernel.work for launch in launches) >= _PARALLEL_WORK else 1
        batch.launch(self.w, [(launch.kernel, [self.slots[b] for b in launch.buffers]) for launch in launches], team)

    def _launch(self, launch: Launch) -> None:
        kernel = launch.kernel
        pointers = [self.pointer(b) for b in launch.buffers]
        team = threads_for(kernel, self.threads)
        units = size_text(self.w, kernel.units, self.sizes)
        if team == 1:
            self.w.emit(_call(kernel, pointers, "%workspace", "%error", "0", units))
            return
        data = self.w.slot(f"[{len(pointers) + 4} x ptr]", 8)
        for position, pointer in enumerate([*pointers, "%workspace", "%sizes", "%error"]):
            self.w.emit(f"store ptr {pointer}, ptr {self.w.address('ptr', data, position)}")
        self.w.emit(f"store i64 {units}, ptr {self.w.address('ptr', data, len(pointers) + 3)}")
        self.w.emit(f"call void @GOMP_parallel(ptr @{kernel.name}.team, ptr {data}, i32 {team}, i32 0)")

    def stop_if_failed(self, held: list[str]) -> None:
        """From here on the caller can see what is done; a call that has failed ends, and says that it was in time."""
        w = self.w
        code = w.let("load i32, ptr %error")
        with w.when(w.let(f"icmp ne i32 {code}, 0")):
            w.emit(f"store i32 {w.let(f'or i32 {code}, {shim.IN_TIME}')}, ptr %error")
            self.release(held)
            w.emit("ret void")
            w.place(w.label("unreached"))

    def call(self, call: Call) -> list[str]:
        """A library operator through the C shim; the buffers it allocated."""
        self._make_room()
        return shim.write_call(self.w, call, self.slots, self.w.module, self.sizes)

    def release(self, buffers: list[str]) -> None:
        for name in buffers:
            shim.release(self.w, self.w.module, self.pointer(shim.handle_slot(name)))

    def _make_room(self) -> None:
        if len(self.w.lines) >= _LONGEST_PART:
            self._close_part()

    def _close_part(self) -> None:
        self.parts.append(f"{self.name}.{len(self.parts)}")
        self.w.emit("ret void")
        self.w.define(self.parts[-1], _PARAMETERS)
        self.w = Writer(self.w.module)

    def finish(self) -> None:
        if self.parts:
            self._close_part()
            for part in self.parts:
                self.w.emit(f"call void @{part}({_PARAMETERS})")
                if part != self.parts[-1]:
                    self._stop_after_failure()
        self.w.emit("ret void")
        self.w.define(self.name, _PARAMETERS)

    def _stop_after_failure(self) -> None:
        """Return if the part just called ended early: at an operator that failed, since what follows would read what
        it has not made, or ahead of the first effect. After an index out of range alone, steps go on: those that come
        release what others hold."""
        code = self.w.let("load i32, ptr %error")
        shim.stop_if(self.w, self.w.let(f"icmp sgt i32 {code}, {LAST_FAULT}"))
