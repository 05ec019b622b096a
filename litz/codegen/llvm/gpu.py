"""Render a kernel for a GPU: a plan's rows, each the work of a team of threads.

In: a `Kernel`. Out: one LLVM function, to become PTX, and a `Grid` that says how it is started. The function takes its
buffers, and then the sizes known only at run time.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.codegen.lanes import ACCESS_BYTES
from litz.codegen.llvm.body import Scope
from litz.codegen.llvm.build import GPU_TRIPLE
from litz.codegen.llvm.gpu_math import OWN
from litz.codegen.llvm.reduction import better_of, combine
from litz.codegen.llvm.rows import Rows
from litz.codegen.llvm.writer import Dialect, Module, Operand, Writer
from litz.codegen.plan_gpu import WARP, GpuPlan, plan_for_gpu
from litz.loop.dtype import DTYPES
from litz.loop.expr import ONE, Expr
from litz.loop.ir import Buffer, Kernel

TRIPLE = f'target triple = "{GPU_TRIPLE}"'
DIALECT = Dialect(
    bfloat=True, fences=False, aligned=ACCESS_BYTES, branches=True, together=4, own=OWN,
    fault="call void asm sideeffect \"trap;\", \"\"()",
)  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A kernel's function, the buffers it takes in order, and how many blocks of how many threads run it."""

    name: str
    buffers: tuple[str, ...]
    blocks: Expr
    threads: int


def render(kernel: Kernel, buffers: dict[str, Buffer], module: Module, name: str, sizes: tuple[str, ...] = ()) -> Grid:
    plan = plan_for_gpu(kernel)
    return _Function(plan, buffers, module, name, sizes).run()


class _Function:
    def __init__(self, plan: GpuPlan, buffers: dict[str, Buffer], module: Module, name: str, sizes: tuple[str, ...]):
        self.plan, self.module, self.name, self.sizes = plan, module, name, sizes
        rows = plan.rows
        self.used = tuple(dict.fromkeys((*rows.kernel.reads, *rows.kernel.writes)))
        self.w = Writer(module)
        self.numbers = frozenset(b for b in self.used if buffers[b].kind == "number")
        pointers = {b: self._held(i) if b in self.numbers else f"%b{i}" for i, b in enumerate(self.used)}
        frame = Scope(self.w, buffers, pointers, rows.lanes, rows.vector, rows.varies)
        frame.sizes = {size: f"%s{i}" for i, size in enumerate(sizes)}
        thread, block = self._register("tid"), self._register("ctaid")
        self.me = "0" if rows.team == 1 else self.w.let(f"and i32 {thread}, {rows.team - 1}")
        group = self.w.let(f"lshr i32 {thread}, {rows.team.bit_length() - 1}") if rows.team > 1 else thread
        self.unit = self._unit(block, group)
        me = self.me if self.me == "0" else self._wide(self.me)
        self.rows = Rows(rows, self.w, frame, me, self._across_team if rows.team > 1 else None)
        self.shared = 0

    def _unit(self, block: str, group: str) -> str:
        """The number of the thread's team, in 32 bits where all of them have room there."""
        teams, w = self.plan.teams, self.w
        if teams == 1:
            return self._wide(block)
        if self.plan.grid.is_int and self.plan.grid.int * teams <= 1 << 31:
            first = w.let(f"mul nuw i32 {block}, {teams}")
            return self._wide(w.let(f"add nuw i32 {first}, {group}"))
        return w.add(w.mul(self._wide(block), str(teams)), self._wide(group))

    def _held(self, position: int) -> str:
        """A number that the host computes is an argument by value: its memory is the host's."""
        cell = self.w.slot("double", 8)
        self.w.emit(f"store double %b{position}, ptr {cell}")
        return cell

    def _register(self, name: str) -> str:
        function = f"@llvm.nvvm.read.ptx.sreg.{name}.x"
        self.module.declare(f"declare i32 {function}()")
        return self.w.let(f"call i32 {function}()")

    def _wide(self, number: str) -> str:
        return self.w.let(f"zext nneg i32 {number} to i64", "i")

    def run(self) -> Grid:
        plan, w = self.plan, self.w
        rows = plan.rows
        with w.when(w.let(f"icmp slt i64 {self.unit}, {self.rows.frame.size(plan.units)}")):
            row = self.unit
            piece = "0"
            if plan.pieces is not ONE:
                pieces = self.rows.frame.size(plan.pieces)
                row = w.let(f"udiv i64 {self.unit}, {pieces}")
                piece = w.let(f"urem i64 {self.unit}, {pieces}") if rows.rows else self.unit
            self.rows.bind(row)
            if rows.vector is None or rows.over_reduced:
                self.rows.row()
            else:
                self._piece(w.mul(piece, str(rows.step * rows.copies)))
        w.emit("ret void")
        # Nothing is said of aliases: memory may be planned so that what is written lies where something was read.
        parameters = [f"{'double' if b in self.numbers else 'ptr'} %b{i}" for i, b in enumerate(self.used)]
        parameters += [f"i64 %s{i}" for i in range(len(self.sizes))]
        w.define(self.name, ", ".join(parameters), "ptx_kernel void", f'nounwind "nvvm.maxntid"="{plan.block}"')
        return Grid(self.name, self.used, plan.grid, plan.block)

    def _piece(self, start: str) -> None:
        """A team's share of a row, from `start` on. The last piece of a row may be shorter, and is walked."""
        w, rows, all_rows = self.w, self.plan.rows, self.rows
        assert rows.vector is not None
        length, mine = rows.step * rows.copies, w.mul(all_rows.me, str(rows.lanes))
        if all(factor % length == 0 for _, factor in rows.vector.size.terms):
            all_rows.at_vector(w.add(start, mine), rows.copies, (None,))
            return
        stop = all_rows.extent[rows.vector]
        is_whole = w.let(f"icmp sle i64 {w.add(start, str(length))}, {stop}")
        with w.when(is_whole):
            all_rows.at_vector(w.add(start, mine), rows.copies, (None,))
        with w.when(w.let(f"xor i1 {is_whole}, true")), w.loop(start, stop, rows.step) as first:
            v = w.add(first, mine)
            all_rows.at_vector(v, 1, (Operand(w.let(f"icmp slt i64 {v}, {stop}"), "b1", 1),))

    # -- teams --------------------------------------------------------------------------------------
    def _across_team(self, kind: str, value: Operand, place: Operand | None) -> tuple[Operand, Operand | None]:
        """Every thread of the team ends with what all of them found."""
        team = self.plan.rows.team
        value, place = self._across_warp(kind, value, place, min(team, WARP))
        if team <= WARP:
            return value, place
        warps = team // WARP
        lane = self.w.let(f"and i32 {self.me}, {WARP - 1}")
        warp = self.w.let(f"lshr i32 {self.me}, {WARP.bit_length() - 1}")
        cells = [(v, self._cells(v, warps)) for v in (value, place) if v is not None]
        with self.w.when(self.w.let(f"icmp eq i32 {lane}, 0")):
            for v, cell in cells:
                self.w.emit(f"store {_word(v)} {self._bits(v)}, ptr addrspace(3) {self._cell(cell, v, warp)}")
        self.w.module.declare("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)")
        self.w.emit("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")
        theirs = self.w.let(f"and i32 {lane}, {warps - 1}")
        found = []
        for v, cell in cells:
            address = self._cell(cell, v, theirs)
            found.append(self._from_bits(self.w.let(f"load {_word(v)}, ptr addrspace(3) {address}"), v))
        return self._across_warp(kind, found[0], found[1] if place is not None else None, warps)

    def _across_warp(
        self, kind: str, value: Operand, place: Operand | None, width: int
    ) -> tuple[Operand, Operand | None]:
        step = width // 2
        while step:
            other = self._shuffled(value, step)
            if place is None:
                value = combine(self.w, kind, value, other)
            else:
                value, place = better_of(self.w, kind, (value, place), (other, self._shuffled(place, step)))
            step //= 2
        return value, place

    def _shuffled(self, value: Operand, step: int) -> Operand:
        """The value of the thread whose number differs in this bit."""
        w = self.w
        w.module.declare("declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)")
        bits, word = self._bits(value), _word(value)
        if word == "i64":
            halves = [w.let(f"trunc i64 {bits} to i32"), w.let(f"trunc i64 {w.let(f'lshr i64 {bits}, 32')} to i32")]
        else:
            halves = [bits if word == "i32" else w.let(f"zext {word} {bits} to i32")]
        moved = [self._shuffle(half, step) for half in halves]
        if word == "i64":
            low, high = (w.let(f"zext i32 {part} to i64") for part in moved)
            whole = w.let(f"or i64 {low}, {w.let(f'shl i64 {high}, 32')}")
        else:
            whole = moved[0] if word == "i32" else w.let(f"trunc i32 {moved[0]} to {word}")
        return self._from_bits(whole, value)

    def _shuffle(self, half: str, step: int) -> str:
        return self.w.let(
            f"call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 {self._members()}, i32 {half}, i32 {step}, i32 31)"
        )

    def _members(self) -> str:
        """The threads of the warp that take part: of short teams, those of this one alone."""
        team = self.plan.rows.team
        if team >= WARP:
            return "-1"
        if not hasattr(self, "_mask"):
            lane = self.w.let(f"and i32 {self._register('tid')}, {WARP - team}")
            self._mask = self.w.let(f"shl i32 {(1 << team) - 1}, {lane}")
        return self._mask

    def _bits(self, value: Operand) -> str:
        word = _word(value)
        return value.text if value.type == word else self.w.let(f"bitcast {value.type} {value.text} to {word}")

    def _from_bits(self, bits: str, like: Operand) -> Operand:
        word = _word(like)
        text = bits if like.type == word else self.w.let(f"bitcast {word} {bits} to {like.type}")
        return like._replace(text=text)

    def _cells(self, value: Operand, count: int) -> str:
        """Shared memory: each reduction has its own, so that none waits for others to have read."""
        name = f"@shared{self.shared}"
        self.shared += 1
        self.module.declare(f"{name} = internal addrspace(3) global [{count} x {_word(value)}] poison, align 16")
        return name

    def _cell(self, cells: str, value: Operand, at: str) -> str:
        return self.w.let(f"getelementptr {_word(value)}, ptr addrspace(3) {cells}, i32 {at}", "p")


def _word(value: Operand) -> str:
    """The integer that holds it; a bool takes a byte."""
    return "i1" if value.dtype == "b1" else f"i{DTYPES[value.dtype].bits}"


__all__ = ["DIALECT", "TRIPLE", "Grid", "render"]
