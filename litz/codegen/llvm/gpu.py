"""Render a kernel for a GPU: a plan's rows, each the work of a team of threads.

In: a `Kernel`. Out: one LLVM function, to become PTX, and a `Grid` that says how it is started. The function takes its
buffers, and then the sizes known only at run time. What reads across the rows it writes is rendered by tiles instead
(`gpu_turned.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from litz.codegen.drop_roundings import drop_roundings
from litz.codegen.lanes import ACCESS_BYTES
from litz.codegen.llvm import gpu_atomics
from litz.codegen.llvm.ahead import Ahead
from litz.codegen.llvm.build import GPU_TRIPLE
from litz.codegen.llvm.gpu_function import GpuFunction, Grid
from litz.codegen.llvm.gpu_math import COARSE, OWN
from litz.codegen.llvm.gpu_scan import before_thread
from litz.codegen.llvm.gpu_totals import Totals
from litz.codegen.llvm.gpu_turned import render_turned
from litz.codegen.llvm.reduction import better_of, combine, running
from litz.codegen.llvm.rows import Rows
from litz.codegen.llvm.vectors import live_of
from litz.codegen.llvm.writer import Dialect, Module, Operand, llvm_type
from litz.codegen.plan_gpu import WARP, GpuPlan, plan_for_gpu
from litz.codegen.rows import volume
from litz.codegen.shorten import shorten
from litz.codegen.turned import plan_turned
from litz.loop.dtype import DTYPES
from litz.loop.expr import ONE
from litz.loop.ir import Buffer, Kernel, Load, Store
from litz.target import GpuTarget

_WIDEST = 8  # bytes of the widest type
TRIPLE = f'target triple = "{GPU_TRIPLE}"'
DIALECT = Dialect(
    bfloat=True, fences=False, aligned=ACCESS_BYTES, branches=True, together=4, own=OWN, coarse=COARSE,
    sums_from_first=True, upper_product="llvm.nvvm.mulhi.ui", update=gpu_atomics.update,
    fault="call void asm sideeffect \"trap;\", \"\"()",
)  # fmt: skip


def dialect_for(target: GpuTarget) -> Dialect:
    return DIALECT if target.level >= 90 else replace(DIALECT, update=gpu_atomics.update_before_sm_90)


def as_rendered(kernel: Kernel) -> Kernel:
    """The kernel in the operators that it is rendered in."""
    return shorten(drop_roundings(kernel))


def render(kernel: Kernel, buffers: dict[str, Buffer], module: Module, name: str, sizes: tuple[str, ...] = ()) -> Grid:
    kernel = as_rendered(kernel)
    turned = plan_turned(kernel)
    if turned is not None:
        return render_turned(turned, buffers, module, name, sizes)
    return _RowFunction(plan_for_gpu(kernel), buffers, module, name, sizes).run()


class _RowFunction(GpuFunction):
    def __init__(self, plan: GpuPlan, buffers: dict[str, Buffer], module: Module, name: str, sizes: tuple[str, ...]):
        rows = plan.rows
        super().__init__(rows.kernel, buffers, module, name, sizes, rows.varies)
        self.plan = plan
        frame = self.scope(rows.lanes, rows.vector)
        thread, block = self.register("tid"), self.register("ctaid")
        # Threads that lie side by side take vectors that do: of one team, or of as many as share a block.
        near, far = self._parts(thread, rows.team if rows.shared_axis is None else plan.teams)
        self.me, self.group = (near, far) if rows.shared_axis is None else (far, near)
        self.unit = self._unit(block, self.group)
        self.members = self._members(thread)
        me = self.me if self.me == "0" else self.wide(self.me)
        across = self._across_team if rows.shared_axis is None else self._across_steps
        across_team, before_me = (across, self._before_me) if rows.team > 1 else (None, None)
        # A grid lies along x. Of the number along z, LLVM knows that it is less than 65536.
        zero = None if plan.parts is None else self.w.let(f"mul i32 {self.register('ctaid', 'z')}, 65537")
        self.rows = Rows(rows, self.w, frame, me, across_team, before_me, self._alone, self._add_to_total, zero)
        self.shared = 0
        self.phase = "0"  # of cells that are used again by the next row, those which this row uses
        self.block = block
        self.totals = None if plan.parts is None else Totals(plan, self, self.rows, self.group)

    def _parts(self, thread: str, count: int) -> tuple[str, str]:
        """The thread's number among `count` side by side, and the number of those."""
        if count == 1:
            return "0", thread
        near = self.w.let(f"and i32 {thread}, {count - 1}")
        return near, "0" if count == self.plan.block else self.w.let(f"lshr i32 {thread}, {count.bit_length() - 1}")

    def _unit(self, block: str, group: str) -> str:
        """The number of the thread's team, in 32 bits where all of them have room there."""
        teams, w = self.plan.teams, self.w
        if teams == 1:
            return self.wide(block)
        if self.plan.grid.is_int and self.plan.grid.int * teams <= 1 << 31:
            first = w.let(f"mul nuw i32 {block}, {teams}")
            return self.wide(w.let(f"add nuw i32 {first}, {group}"))
        return w.add(w.mul(self.wide(block), str(teams)), self.wide(group))

    def run(self) -> Grid:
        plan, w = self.plan, self.w
        rows = plan.rows
        if self.totals is not None:
            self._in_turn(self.totals)
            return self.finish(plan.grid, plan.block, plan.abreast, self.totals.asks_for)
        units = self.rows.frame.size(plan.units)
        is_there = w.let(f"icmp slt i64 {self.unit}, {units}")
        if rows.shared_axis is not None:
            # All threads of a block meet: those that no unit is left for go along with the last one, and store nothing.
            last = w.let(f"sub i64 {units}, 1")
            self.unit = w.minimum(self.unit, last)
            piece = self._bind()
            with w.when(w.let(f"icmp sge i64 {last}, 0")):
                self._columns(w.mul(piece, str(rows.lanes)), is_there)
        else:
            with w.when(is_there):
                piece = self._bind()
                if rows.vector is None or rows.over_reduced:
                    self.rows.row()
                else:
                    self._piece(w.mul(piece, str(rows.step * rows.copies)))
        return self.finish(plan.grid, plan.block, plan.abreast)

    def _in_turn(self, totals: Totals) -> None:
        """The rows of one block: each of its teams takes every so many of them."""
        plan, w = self.plan, self.w
        assert plan.parts is not None
        first = block = self.wide(self.block)
        if plan.teams > 1:
            first = w.add(block, w.mul(self.wide(self.group), str(plan.parts)))
        totals.begin()
        totals.stage()
        self.rows.staged = totals.staged
        self.rows.load_common()
        phase = w.slot("i32", 4)
        w.emit(f"store i32 0, ptr {phase}")
        count, step = self.rows.frame.size(volume(plan.rows.rows)), plan.parts * plan.teams
        ahead = Ahead(self.rows) if plan.loads_ahead else None
        if ahead is not None:
            with w.when(w.let(f"icmp slt i64 {first}, {count}")):
                ahead.begin(self.rows.axes_of(first))
        with w.loop(first, count, step) as row:
            self.phase = w.let(f"load i32, ptr {phase}")
            w.emit(f"store i32 {w.let(f'xor i32 {self.phase}, 1')}, ptr {phase}")
            self.rows.bind(row)
            if ahead is not None:
                ahead.take()
                following = w.add(row, str(step))
                is_there = w.let(f"icmp slt i64 {following}, {count}")
                axes = self.rows.axes_of(following)
                self.rows.after_vector = partial(ahead.after_vector, axes=axes, is_there=is_there)
            self.rows.row()
        totals.end(block)

    def _add_to_total(self, op: Store, vector: int) -> None:
        assert self.totals is not None
        self.totals.add(op, vector)

    def _bind(self) -> str:
        """The row that the unit is of, and which piece of it."""
        plan, w = self.plan, self.w
        row, piece = self.unit, "0"
        if plan.pieces is not ONE:
            pieces = self.rows.frame.size(plan.pieces)
            row = w.let(f"udiv i64 {self.unit}, {pieces}")
            piece = w.let(f"urem i64 {self.unit}, {pieces}") if plan.rows.rows else self.unit
        self.rows.bind(row)
        return piece

    def _columns(self, v: str, is_there: str) -> None:
        """One vector, over all of the reduced axes."""
        w, rows = self.w, self.plan.rows
        mask: Operand | None = Operand(is_there, "b1", 1)
        if self.plan.units.is_int and self.plan.units.int % self.plan.teams == 0:
            mask = None
        assert rows.vector is not None
        stop = self.rows.extent[rows.vector]
        tail = live_of(w, v, stop, rows.lanes, False, ragged=not self.rows.is_divided)
        if mask is not None and tail is not None:
            t = llvm_type("b1", rows.lanes)
            tail = tail._replace(text=w.let(f"and {t} {tail.text}, {w.splat(mask, rows.lanes).text}"))
        self.rows.at_vector(v, 1, (mask if tail is None else tail,))

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
            all_rows.at_vector(v, 1, (live_of(w, v, stop, rows.lanes, all_rows.is_divided),))

    # -- teams --------------------------------------------------------------------------------------
    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread of a team stores what all of them know: and only when all have loaded, since it may lie there."""
        rows = self.plan.rows
        if any(isinstance(op, Load) and rows.vector not in rows.varies[op.name] for op in rows.kernel.body):
            if rows.team > WARP or rows.shared_axis is not None:
                self.barrier()
            else:
                self.w.module.declare("declare void @llvm.nvvm.bar.warp.sync(i32)")
                self.w.emit(f"call void @llvm.nvvm.bar.warp.sync(i32 {self.members})")
        with self.w.when(self.w.let(f"icmp eq i32 {self.me}, 0")):
            yield

    def _across_steps(self, kind: str, value: Operand, place: Operand | None) -> tuple[Operand, Operand | None]:
        """Threads that share steps of one vector meet in shared memory: half of those left tell the other half."""
        w = self.w
        slots = [(v, w.slot(v.type)) for v in (value, place) if v is not None]
        for v, slot in slots:
            w.emit(f"store {v.type} {v.text}, ptr {slot}")

        def mine() -> list[Operand]:
            return [v._replace(text=w.let(f"load {v.type}, ptr {slot}")) for v, slot in slots]

        left = self.plan.rows.team
        while left > 1:
            left //= 2
            self.barrier()  # what was there has been read
            part = w.let(f"lshr i32 {self.me}, {left.bit_length() - 1}")
            with w.when(w.let(f"icmp eq i32 {part}, 1")):
                for number, v in enumerate(mine()):
                    self._put(number, v, self._seat(w.let(f"sub i32 {self.me}, {left}")))
            self.barrier()
            with w.when(w.let(f"icmp eq i32 {part}, 0")):
                ours = mine()
                theirs = [self._taken(number, v, self._seat(self.me)) for number, v in enumerate(ours)]
                if place is None:
                    both = [combine(w, kind, ours[0], theirs[0])]
                else:
                    both = [*better_of(w, kind, (ours[0], ours[1]), (theirs[0], theirs[1]))]
                for v, (_, slot) in zip(both, slots, strict=True):
                    w.emit(f"store {v.type} {v.text}, ptr {slot}")
        self.barrier()
        with w.when(w.let(f"icmp eq i32 {self.me}, 0")):
            for number, v in enumerate(mine()):
                self._put(number, v, self._seat("0"))
        self.barrier()
        found = [self._taken(number, v, self._seat("0")) for number, v in enumerate([v for v, _ in slots])]
        return found[0], found[1] if place is not None else None

    def _seat(self, row: str) -> str:
        first = row if row == "0" else self.w.let(f"mul i32 {row}, {self.plan.teams}")
        return self.group if first == "0" else self.w.let(f"add i32 {first}, {self.group}")

    def _seat_bytes(self) -> int:
        return max(self.plan.rows.lanes, 1) * _WIDEST

    def _meeting(self, number: int) -> str:
        """Memory for one vector of each of half of the block's threads, for all reductions, one after the other."""
        name, seats = f"@meeting{number}", max(self.plan.block // 2, self.plan.teams)
        size = seats * self._seat_bytes()
        self.module.declare(f"{name} = internal addrspace(3) global [{size} x i8] poison, align 16")
        return name

    def _put(self, number: int, value: Operand, seat: str) -> None:
        text, t = value.text, value.type
        if value.dtype == "b1":
            t = "i8" if value.lanes == 1 else f"<{value.lanes} x i8>"
            text = self.w.let(f"zext {value.type} {text} to {t}")
        self.w.emit(f"store {t} {text}, ptr addrspace(3) {self._place(number, seat)}, align {self._aligned(value)}")

    def _taken(self, number: int, like: Operand, seat: str) -> Operand:
        t = like.type
        if like.dtype == "b1":
            t = "i8" if like.lanes == 1 else f"<{like.lanes} x i8>"
        text = self.w.let(f"load {t}, ptr addrspace(3) {self._place(number, seat)}, align {self._aligned(like)}")
        return like._replace(text=self.w.let(f"icmp ne {t} {text}, zeroinitializer") if like.dtype == "b1" else text)

    def _aligned(self, value: Operand) -> int:
        return min(16, value.lanes * max(1, DTYPES[value.dtype].bits // 8))

    def _place(self, number: int, seat: str) -> str:
        offset = self.w.let(f"mul i32 {seat}, {self._seat_bytes()}")
        return self.w.let(f"getelementptr i8, ptr addrspace(3) {self._meeting(number)}, i32 {offset}", "p")

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
        self.barrier()
        theirs = self.w.let(f"and i32 {lane}, {warps - 1}")
        found = []
        for v, cell in cells:
            address = self._cell(cell, v, theirs)
            found.append(self._from_bits(self.w.let(f"load {_word(v)}, ptr addrspace(3) {address}"), v))
        return self._across_warp(kind, found[0], found[1] if place is not None else None, warps)

    def _before_me(self, kind: str, totals: Sequence[Operand]) -> list[tuple[Operand, Operand]]:
        """Of what each thread of the team has: what those before this one make, and what all make."""
        team, w = self.plan.rows.team, self.w
        found = [before_thread(w, kind, total, self.me, min(team, WARP), self._shuffled) for total in totals]
        if team <= WARP:
            return found
        warps = team // WARP
        lane, warp = w.let(f"and i32 {self.me}, {WARP - 1}"), w.let(f"lshr i32 {self.me}, {WARP.bit_length() - 1}")
        cells = [self._cells(total, warps) for total in totals]
        self.barrier()  # what was there before has been read
        with w.when(w.let(f"icmp eq i32 {lane}, 0")):
            for cell, (_, whole) in zip(cells, found, strict=True):
                w.emit(f"store {_word(whole)} {self._bits(whole)}, ptr addrspace(3) {self._cell(cell, whole, warp)}")
        self.barrier()
        theirs, joined = w.let(f"and i32 {lane}, {warps - 1}"), []
        for cell, (before, whole) in zip(cells, found, strict=True):
            address = self._cell(cell, whole, theirs)
            total = self._from_bits(w.let(f"load {_word(whole)}, ptr addrspace(3) {address}"), whole)
            earlier, whole = before_thread(w, kind, total, theirs, warps, self._shuffled)
            joined.append((running(w, kind, self._of_lane(earlier, warp), before), whole))
        return joined

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
        return self._exchanged(value, "bfly", str(step))

    def _of_lane(self, value: Operand, lane: str) -> Operand:
        """The value of that thread of the warp."""
        return self._exchanged(value, "idx", lane)

    def _exchanged(self, value: Operand, how: str, with_whom: str) -> Operand:
        w = self.w
        bits, word = self._bits(value), _word(value)
        if word == "i64":
            halves = [w.let(f"trunc i64 {bits} to i32"), w.let(f"trunc i64 {w.let(f'lshr i64 {bits}, 32')} to i32")]
        else:
            halves = [bits if word == "i32" else w.let(f"zext {word} {bits} to i32")]
        moved = [self._shuffle(half, how, with_whom) for half in halves]
        if word == "i64":
            low, high = (w.let(f"zext i32 {part} to i64") for part in moved)
            whole = w.let(f"or i64 {low}, {w.let(f'shl i64 {high}, 32')}")
        else:
            whole = moved[0] if word == "i32" else w.let(f"trunc i32 {moved[0]} to {word}")
        return self._from_bits(whole, value)

    def _shuffle(self, half: str, how: str, with_whom: str) -> str:
        function = f"@llvm.nvvm.shfl.sync.{how}.i32"
        self.module.declare(f"declare i32 {function}(i32, i32, i32, i32)")
        return self.w.let(f"call i32 {function}(i32 {self.members}, i32 {half}, i32 {with_whom}, i32 31)")

    def _members(self, thread: str) -> str:
        """The threads of the warp that take part in what a team exchanges: of short teams, those of this one alone."""
        team = self.plan.rows.team
        if team == 1 or team >= WARP:
            return "-1"
        return self.w.let(f"shl i32 {(1 << team) - 1}, {self.w.let(f'and i32 {thread}, {WARP - team}')}")

    def _bits(self, value: Operand) -> str:
        word = _word(value)
        return value.text if value.type == word else self.w.let(f"bitcast {value.type} {value.text} to {word}")

    def _from_bits(self, bits: str, like: Operand) -> Operand:
        word = _word(like)
        text = bits if like.type == word else self.w.let(f"bitcast {word} {bits} to {like.type}")
        return like._replace(text=text)

    def _cells(self, value: Operand, count: int) -> str:
        """Shared memory: each reduction has its own, so that none waits for others to have read. Where rows come one
        after the other, there are two of each: nobody is further ahead than by one row, since all meet in each."""
        name = f"@shared{self.shared}"
        self.shared += 1
        count *= 1 if self.totals is None else 2
        self.module.declare(f"{name} = internal addrspace(3) global [{count} x {_word(value)}] poison, align 16")
        return name

    def _cell(self, cells: str, value: Operand, at: str) -> str:
        if self.totals is not None:
            warps = self.plan.rows.team // WARP
            at = self.w.let(f"add i32 {at}, {self.w.let(f'mul i32 {self.phase}, {warps}')}")
        return self.w.let(f"getelementptr {_word(value)}, ptr addrspace(3) {cells}, i32 {at}", "p")


def _word(value: Operand) -> str:
    """The integer that holds it; a bool takes a byte."""
    return "i1" if value.dtype == "b1" else f"i{DTYPES[value.dtype].bits}"


__all__ = ["DIALECT", "TRIPLE", "Grid", "as_rendered", "dialect_for", "render"]
