"""Plan rows for a GPU: threads side by side take vectors side by side, and a team of them shares a row.

In: a `Kernel`. Out: a `RowPlan`, and how its rows make up blocks.

A thread's vector is what one access of 16 bytes brings. Where lanes are reduced, a row is shared by as many threads as
it takes to have it in registers; longer rows are walked several times, from the cache. Where they are not, as many
threads as it takes to keep the GPU busy share the steps of the reduced axes.

Where columns are summed on the way (`loop/totals.py`), as many blocks as there are totals take rows in turn. A thread
has the same columns of every row, and so their totals to itself: in registers, or in memory that the block shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from litz.codegen.depend import depends
from litz.codegen.lanes import ACCESS_BYTES, WARP, vector_axis
from litz.codegen.plan_gpu_scan import scan_rows
from litz.codegen.plan_gpu_scatter import at_once, most_updates, widest_update
from litz.codegen.rows import Pass, RowPlan, keep_halves, may_be_held, plan_passes, shared_loads, volume
from litz.loop.dtype import DTYPES
from litz.loop.expr import ONE, Axis, Expr, expr
from litz.loop.ir import POSITIONS, Kernel, Load, Reduce, Store, operands
from litz.loop.totals import parts_of, totals_of

_BLOCK = 256  # threads, where a team does not say otherwise
_SMALL_BLOCK, _FEW_UNITS = 64, 1 << 16  # so that few threads are on as many multiprocessors as there are
_FEW_ROWS = 512  # of which each had best have as many threads as it has vectors: one after the other takes too long
_ROW_VALUES = 32  # elements of a row that one thread had best have
_PACKED_REGISTERS = 40  # that it may have them in, all those that the passes share
_ALONE_REGISTERS = 72  # the same, where a block has a multiprocessor to itself in any case
_WIDEST_TEAM = 512  # threads that had best share a row
_MOST_THREADS = 1024  # that can
_IN_FLIGHT = 16  # elements that a thread has under way, in one vector or several
_BUSY = 1 << 18  # elements that keep all of a GPU busy even so
_THREADS = 1 << 17  # threads that do
_MANY_VECTORS = 32
_STEPS = 4  # of a reduction that a thread had best have for itself
_MOST_SHARING = 32  # threads that share the steps of one
_TURN_VALUES = 12288  # elements that a multiprocessor's threads have in all, while they take rows in turn
_TURN_THREADS = 768  # that those are at most
_TURN_REGISTERS = 64  # that one of few may have its share of a row in
_TURN_TEAMS = (256, 512, 1024)  # threads of a team, the fewer the better
_TOTAL_BYTES = 4
_STAGED_BYTES = 2  # of each column, for which there is room behind the totals
_TOTAL_REGISTERS = 16  # that a thread may have totals in


@dataclass(frozen=True)
class GpuPlan:
    rows: RowPlan
    block: int  # threads
    pieces: Expr  # of a row, where it is cut: what a team takes at a time
    parts: int | None = None  # blocks that take rows in turn, where columns are summed on the way

    @property
    def units(self) -> Expr:
        """Teams that are needed."""
        return volume(self.rows.rows) * self.pieces

    @property
    def teams(self) -> int:
        """In a block."""
        return self.block // self.rows.team

    @property
    def abreast(self) -> int | None:
        """Blocks that must have room on a multiprocessor: while one with long rows adds up, another loads."""
        if self.parts is not None:
            threads = min(_TURN_THREADS, _TURN_VALUES // (self.rows.copies * self.rows.lanes))
            return max(1, (threads + self.block // 2) // self.block)
        if self.rows.packed is None or self.rows.copies * self.rows.lanes <= _ROW_VALUES:
            return None
        shared = [op for op in self.rows.kernel.loads if op.name in self.rows.packed]
        if self.rows.copies * self.rows.lanes * _words(shared) > _PACKED_REGISTERS:
            return 1
        return max(1, _MOST_THREADS // self.block)

    @cached_property
    def totals(self) -> tuple[Store, ...]:
        """What is summed down the columns."""
        return totals_of(self.rows.kernel)

    @property
    def totals_in_registers(self) -> bool:
        """Whether a thread has its columns' totals in registers; else they are in memory that the block shares."""
        rows = self.rows
        taken = len(self.totals) * rows.copies * rows.lanes
        return rows.packed is not None and taken <= _TOTAL_REGISTERS

    @property
    def loads_ahead(self) -> bool:
        """Whether the next row is loaded while the last pass over one is computed."""
        if self.parts is None or self.rows.packed is None:
            return False
        return self.block * (self.abreast or 1) <= _TURN_THREADS  # else there are too few registers

    @property
    def total_vectors(self) -> int:
        """Of a team's row, those included that lie behind its end."""
        assert self.rows.vector is not None
        return -(-self.rows.vector.size.int // self.rows.step) * self.rows.team

    @property
    def total_bytes(self) -> int:
        """Memory that a block needs for its totals: where they always are, or where its teams put them together."""
        if self.parts is None or (self.totals_in_registers and self.teams == 1):
            return 0
        return len(self.totals) * self.teams * self.total_vectors * self.rows.lanes * _TOTAL_BYTES

    @cached_property
    def staged(self) -> tuple[Load, ...]:
        """What is the same for all rows and fits in no registers, but in shared memory: in the cache, rows would take
        its place."""
        rows = self.rows
        if self.parts is None or rows.packed is None or self.teams > 1:
            return ()
        common = [op for op in shared_loads(rows.passes) if not op.index.axes() & {*rows.rows} and not operands(op)]
        found = [op for op in common if op.name not in rows.packed and rows.vector in op.index.axes()]
        return tuple(found) if sum(DTYPES[op.dtype].bytes for op in found) <= _STAGED_BYTES else ()

    @property
    def shared_bytes(self) -> int:
        """For totals, and behind them for what is staged."""
        staged = sum(DTYPES[op.dtype].bytes for op in self.staged)
        return self.total_bytes + (self.total_vectors * self.rows.lanes * staged if staged else 0)

    @property
    def grid(self) -> Expr:
        if self.parts is not None:
            return expr(self.parts)
        return (self.units + (self.teams - 1)) // self.teams

    def __str__(self) -> str:
        where = "registers" if self.totals_in_registers else "shared memory"
        lines = [f"grid {self.grid} of {self.block} threads"]
        if self.parts is not None:
            ahead = ", the next one ahead" if self.loads_ahead else ""
            staged = f", staged: {', '.join(op.name for op in self.staged)}" if self.staged else ""
            lines.append(f"rows in turn{ahead}, {len(self.totals)} totals in {where}{staged}")
        return "\n".join([*lines, str(self.rows)])


def plan_for_gpu(kernel: Kernel) -> GpuPlan:
    kernel = at_once(kernel)
    scan = scan_rows(kernel, _lanes)
    if scan is not None:
        return GpuPlan(scan, _BLOCK // 4 if scan.team == 1 else max(scan.team, _short_block(scan.team)), ONE)
    vector = None if kernel.ordered and kernel.reduced else vector_axis(kernel)
    varies = depends(kernel.body, kernel.reduced)
    passes = plan_passes(kernel, varies)
    if vector is None:
        return GpuPlan(RowPlan(kernel, None, 1, 1, 1, False, passes, {}), _BLOCK, ONE)
    lanes = _lanes(kernel, vector)
    if vector not in kernel.reduced and kernel.reduced:
        lanes, team = _columns(kernel, vector, lanes)
        plan = RowPlan(kernel, vector, lanes, 1, team, False, passes, {})
        return GpuPlan(plan, _BLOCK if team <= 8 else 2 * _BLOCK, (vector.size + (lanes - 1)) // lanes)
    if vector not in kernel.reduced:
        team, copies = _pointwise_team(kernel, vector, lanes)
        copies = min(copies, most_updates(kernel) or copies)
        plan = RowPlan(kernel, vector, lanes, copies, team, False, passes, {})
        pieces = (vector.size + (plan.step * copies - 1)) // (plan.step * copies)
        few = (volume(plan.rows) * pieces).hint < _FEW_UNITS
        block = (_SMALL_BLOCK if few else _BLOCK) if team == 1 else max(team, _short_block(team))
        return GpuPlan(plan, block, pieces)
    team, copies, packed = _team(kernel, vector, lanes, passes)
    kept: dict[str, int] = {}
    if packed is not None:
        passes, kept = keep_halves(kernel, varies, passes)
    plan = RowPlan(kernel, vector, lanes, copies, team, False, passes, kept, packed)
    parts = parts_of(kernel)
    block = _short_block(team) if parts is None or team > WARP else _BLOCK
    return GpuPlan(plan, max(team, block), ONE, parts)


def _columns(kernel: Kernel, vector: Axis, lanes: int) -> tuple[int, int]:
    """Lanes of a vector, and threads that share the steps of its reductions: more and more, until the GPU is busy."""
    points, steps = volume(kernel.axes).hint, volume(kernel.reduced).hint
    longest = max(axis.size.hint for axis in kernel.reduced)
    team = 1
    while (
        team < _MOST_SHARING and team * points < _THREADS * lanes and longest >= 2 * team and steps >= 2 * team * _STEPS
    ):
        team *= 2
    while lanes > 1 and team * points < _THREADS // 4 * lanes:
        lanes //= 2
    return lanes, team


def _pointwise_team(kernel: Kernel, vector: Axis, lanes: int) -> tuple[int, int]:
    """Threads that go through a row side by side, and the vectors each has under way; one thread for each vector where
    there are few elements in all."""
    points = volume(kernel.axes).hint
    vectors = -(-vector.size.hint // lanes)
    if points < _BUSY or vectors < WARP:
        return 1, 1
    copies = _copies(lanes)
    team = WARP
    while team < _BLOCK and vectors >= 2 * team * copies:
        team *= 2
    whole = -(-vectors // team)
    return team, whole if whole <= 2 * copies else copies  # a short row is not cut, since its rest would be idle


def _copies(lanes: int) -> int:
    return max(1, _IN_FLIGHT // lanes)


def _lanes(kernel: Kernel, vector: Axis) -> int:
    """Elements that an access of the narrowest type in wide use brings, fewer where vectors would not be aligned."""
    accesses = [op for op in kernel.body if isinstance(op, (Load, Store)) and vector in op.index.axes()]
    types = {op.name: op.dtype for op in kernel.body if not isinstance(op, Store)}
    size = min((max(2, DTYPES[_dtype(op, types)].bytes) for op in accesses), default=4)
    lanes = ACCESS_BYTES // size
    while lanes > 1 and not (_fills(lanes, vector.size) and all(_is_aligned(op, vector, lanes) for op in accesses)):
        lanes //= 2
    return 1 if _has_positions(kernel) else min(lanes, widest_update(kernel, vector) or lanes)


def _has_positions(kernel: Kernel) -> bool:
    return any(isinstance(op, Reduce) and op.kind in POSITIONS for op in kernel.body)


def _dtype(op: Load | Store, types: dict[str, str]) -> str:
    return op.dtype if isinstance(op, Load) else types[op.value]


def _fills(lanes: int, size: Expr) -> bool:
    """Whether the axis is vectors, or so many that the last, shorter one hardly counts."""
    return size.hint >= _MANY_VECTORS * lanes or all(factor % lanes == 0 for _, factor in size.terms)


def _is_aligned(op: Load | Store, vector: Axis, lanes: int) -> bool:
    """Whether its vectors begin at multiples of their width, where it has some; what is gathered has none."""
    step = op.index.coefficient(vector)
    if step is None or step is not ONE:
        return True
    return all(factor % lanes == 0 for monomial, factor in op.index.terms if monomial != (vector,))


def _team(kernel: Kernel, vector: Axis, lanes: int, passes: Sequence[Pass]) -> tuple[int, int, tuple[str, ...] | None]:
    """Threads that share a row, vectors that each has side by side, and what is packed where those are all of it."""
    walked = 1 if _has_positions(kernel) else _copies(lanes)  # of a position, one vector at a time keeps track
    if not vector.size.is_int:
        return _WIDEST_TEAM, walked, None
    vectors = max(1, -(-vector.size.int // lanes))
    shared = [op for op in shared_loads(passes) if not operands(op)]
    # What is the same for all rows stays in the cache where it does not fit.
    own = [op for op in shared if op.index.axes() & {*kernel.axes}]
    in_turn = bool(totals_of(kernel))
    few = volume(kernel.axes).hint <= _FEW_ROWS and not in_turn
    likes = 1 if few else _ROW_VALUES // lanes
    fits: list[_Packed] = []
    if may_be_held(kernel, vector, passes):
        ways = [(shared, _PACKED_REGISTERS), (own, _PACKED_REGISTERS)]
        fits = [found for loads, room in ways if (found := _packed(vectors, lanes, likes, loads, room)) is not None]
    if fits and in_turn:
        # A warp that has rows to itself waits for no other; and few threads with many registers have the next row on
        # its way.
        wide = _packed(vectors, lanes, likes, own, _TURN_REGISTERS)
        by_warps = [found for found in fits if found[0] <= WARP]
        fits = [*fits, wide] if wide is not None else fits
        return [*by_warps, *(found for most in _TURN_TEAMS for found in fits if found[0] <= most)][0]
    if fits:
        # So many threads leave each too few registers to compute in: half of them with twice the row do not spill.
        alone = _packed(vectors, lanes, likes, shared, _ALONE_REGISTERS) if fits[0][0] > _WIDEST_TEAM else None
        return alone if alone is not None and alone[0] < fits[0][0] else fits[0]
    team = _grown(vectors, max(1, min(likes, _room(shared, _PACKED_REGISTERS) // lanes)), _WIDEST_TEAM)
    return team, min(walked, -(-vectors // team)), None


_Packed = tuple[int, int, tuple[str, ...]]  # threads, vectors of each, and the loads that are packed


def _packed(vectors: int, lanes: int, likes: int, loads: Sequence[Load], registers: int) -> _Packed | None:
    """Threads that have a row in registers; None where it does not fit."""
    most = _room(loads, registers) // lanes if loads else 0
    if most == 0:
        return None
    widest = _WIDEST_TEAM if -(-vectors // _WIDEST_TEAM) <= most else _MOST_THREADS
    team = _grown(vectors, max(1, min(likes, most)), widest)
    copies = -(-vectors // team)
    return (team, copies, tuple(op.name for op in loads)) if copies <= most else None


def _room(loads: Sequence[Load], registers: int) -> int:
    """Elements of a row that a thread has registers for, with all that is loaded of each."""
    return int(registers / _words(loads))


def _words(loads: Sequence[Load]) -> float:
    """Registers that an element takes, of all that the passes share."""
    return max(1, sum(max(2, DTYPES[op.dtype].bytes) for op in loads)) / 4


def _grown(vectors: int, likes: int, widest: int) -> int:
    """Threads among which the vectors of a row are shared, so that each has as many as it likes."""
    team = 1
    while team < min(vectors, WARP) or (team < widest and -(-vectors // team) > likes):
        team *= 2
    return team


def _short_block(team: int) -> int:
    """Threads of a block in which several short rows lie; a team of more than a warp has a block of its own."""
    return _BLOCK // 2 if team <= WARP else team


__all__ = ["WARP", "GpuPlan", "plan_for_gpu"]
