"""Teams of threads: a kernel's units shared out, by the OpenMP library that torch has loaded.

In: a rendered kernel. Out: the function that each thread of a team runs, and the calls that start teams and kernels.
"""

from __future__ import annotations

from litz.codegen.llvm.rendered import Rendered
from litz.codegen.llvm.writer import Module, Writer

# Fewer scalar operations than this are done sooner than a second thread wakes.
PARALLEL_WORK = 1 << 16


def threads_for(kernel: Rendered, threads: int) -> int:
    if kernel.work < PARALLEL_WORK:
        return 1
    return min(threads, kernel.units.int) if kernel.units.is_int else threads


def team_place(w: Writer) -> tuple[str, str]:
    """Which thread of its team this is, and how many there are."""
    found = []
    for name in ("omp_get_thread_num", "omp_get_num_threads"):
        w.module.declare(f"declare i32 @{name}()")
        found.append(w.let(f"sext i32 {w.let(f'call i32 @{name}()')} to i64"))
    return found[0], found[1]


def start_team(w: Writer, function: str, data: str, threads: int) -> None:
    """No more threads than the process allows now: a process that was forked, as data loaders are, has to do with one,
    since those of its parent are not there and would be waited for."""
    w.module.declare("declare void @GOMP_parallel(ptr, ptr, i32, i32)")
    w.module.declare("declare i32 @omp_get_max_threads()")
    allowed = w.intrinsic("llvm.smin", "i32", w.let("call i32 @omp_get_max_threads()"), str(threads))
    w.emit(f"call void @GOMP_parallel(ptr @{function}, ptr {data}, i32 {allowed}, i32 0)")


def write_team_body(module: Module, kernel: Rendered) -> None:
    """`NAME.team(data)`: what each thread of a team runs, on its share of the units."""
    w = Writer(module)
    pointers = []
    for position in range(len(kernel.buffers) + 3):
        address = w.let(f"getelementptr ptr, ptr %data, i64 {position}", "p")
        pointers.append(w.let(f"load ptr, ptr {address}"))
    units = w.let(f"load i64, ptr {w.address('ptr', '%data', len(pointers))}")
    me, team = team_place(w)
    *buffers, workspace, table, error = pointers
    w.lines.append(f"  %sizes = getelementptr i8, ptr {table}, i64 0")
    begin, end = (_share(w, turn, units, team, kernel.grain) for turn in (me, w.add(me, "1")))
    mine = w.let(f"getelementptr i8, ptr {workspace}, i64 {w.mul(me, str(kernel.workspace))}", "p")
    w.emit(call_text(kernel, buffers, mine, error, begin, end))
    w.emit("ret void")
    w.define(f"{kernel.name}.team", "ptr %data")


def _share(w: Writer, turn: str, units: str, team: str, grain: int) -> str:
    """The unit that the thread of this turn begins with."""
    share = w.let(f"sdiv i64 {w.mul(turn, units)}, {team}")
    if grain == 1:
        return share
    whole = w.let(f"and i64 {share}, {-grain}")
    return w.let(f"select i1 {w.let(f'icmp eq i64 {turn}, {team}')}, i64 {units}, i64 {whole}")


def declare_kernel(module: Module, kernel: Rendered) -> None:
    """In a module other than its own."""
    pointers = len(kernel.buffers) + bool(kernel.workspace) + 2
    module.declare(f"declare void @{kernel.name}({', '.join(['ptr'] * pointers)}, i64, i64)")


def call_text(kernel: Rendered, buffers: list[str], workspace: str, error: str, begin: str, end: str) -> str:
    arguments = [f"ptr {b}" for b in buffers]
    if kernel.workspace:
        arguments.append(f"ptr {workspace}")
    arguments += ["ptr %sizes", f"ptr {error}", f"i64 {begin}", f"i64 {end}"]
    return f"call void @{kernel.name}({', '.join(arguments)})"
