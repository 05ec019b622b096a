"""Plan rows for a GPU: threads side by side take vectors side by side, and a team of them shares a row.

In: a `Kernel`. Out: a `RowPlan`, and how its rows make up blocks.

A thread's vector is what one access of 16 bytes brings. Where lanes are reduced, a row is shared by as many threads as
it takes to have it in registers; longer rows are walked several times, from the cache. Where they are not, as many
threads as it takes to keep the GPU busy share the steps of the reduced axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litz.codegen.depend import depends
from litz.codegen.lanes import ACCESS_BYTES, WARP, vector_axis
from litz.codegen.plan_gpu_scan import scan_rows
from litz.codegen.plan_gpu_scatter import at_once, most_updates, widest_update
from litz.codegen.rows import Pass, RowPlan, may_be_held, plan_passes, shared_loads, volume
from litz.loop.dtype import DTYPES
from litz.loop.expr import ONE, Axis, Expr
from litz.loop.ir import POSITIONS, Kernel, Load, Reduce, Store, operands

_BLOCK = 256  # threads, where a team does not say otherwise
_SMALL_BLOCK, _FEW_UNITS = 64, 1 << 16  # so that few threads are on as many multiprocessors as there are
_ROW_VALUES = 32  # elements of a row that one thread had best have
_PACKED_REGISTERS = 40  # that it may have them in, all those that the passes share
_WIDEST_TEAM = 512  # threads that had best share a row
_MOST_THREADS = 1024  # that can
_IN_FLIGHT = 16  # elements that a thread has under way, in one vector or several
_BUSY = 1 << 18  # elements that keep all of a GPU busy even so
_THREADS = 1 << 17  # threads that do
_MANY_VECTORS = 32
_STEPS = 4  # of a reduction that a thread had best have for itself
_MOST_SHARING = 32  # threads that share the steps of one


@dataclass(frozen=True)
class GpuPlan:
    rows: RowPlan
    block: int  # threads
    pieces: Expr  # of a row, where it is cut: what a team takes at a time

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
        if self.rows.packed is None or self.rows.copies * self.rows.lanes <= _ROW_VALUES:
            return None
        return max(1, _MOST_THREADS // self.block)

    @property
    def grid(self) -> Expr:
        return (self.units + (self.teams - 1)) // self.teams

    def __str__(self) -> str:
        return f"grid {self.grid} of {self.block} threads\n{self.rows}"


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
    plan = RowPlan(kernel, vector, lanes, copies, team, False, passes, {}, packed)
    return GpuPlan(plan, max(team, _short_block(team)), ONE)


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
    words = max(1, sum(max(2, DTYPES[op.dtype].bytes) for op in shared)) / 4  # that an element takes
    most = int(_PACKED_REGISTERS / words) // lanes  # vectors that there are registers for
    likes = max(1, min(_ROW_VALUES // lanes, most))
    packs = bool(shared) and most > 0 and may_be_held(kernel, vector, passes)
    widest = _WIDEST_TEAM if not packs or -(-vectors // _WIDEST_TEAM) <= most else _MOST_THREADS
    team = 1
    while team < min(vectors, WARP) or (team < widest and -(-vectors // team) > likes):
        team *= 2
    copies = -(-vectors // team)
    if packs and copies <= most:
        return team, copies, tuple(op.name for op in shared)
    return min(team, _WIDEST_TEAM), min(walked, copies), None


def _short_block(team: int) -> int:
    """Threads of a block in which several short rows lie; a team of more than a warp has a block of its own."""
    return _BLOCK // 2 if team <= WARP else team


__all__ = ["WARP", "GpuPlan", "plan_for_gpu"]
