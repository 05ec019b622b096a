"""Plan kernels that read along one axis and write along another: tiles, turned over in the memory that a block shares.

In: a `Kernel`. Out: its `TurnedPlan`, frozen and printable, or None where nothing is to be turned.

A block takes one tile of both axes. What lies along the first axis is read in vectors along it, and left in shared
memory; when all threads have done so, everything is computed in vectors along the second axis, and stored. So both
sides of memory are seen in runs, where one of them would be seen element by element.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.codegen.lanes import ACCESS_BYTES
from litz.codegen.rows import volume
from litz.loop.dtype import DTYPES
from litz.loop.expr import ONE, Axis, Expr
from litz.loop.ir import Kernel, Load, Store

TILE = 64  # elements along either axis
_THREADS = 256
_WORTH_IT = 1 << 16  # elements
_ROOM = 48 << 10  # bytes that a block may share


@dataclass(frozen=True)
class TurnedPlan:
    kernel: Kernel
    read: Axis  # along which the turned loads lie
    write: Axis  # along which all else lies
    turned: tuple[str, ...]  # loads
    read_lanes: int
    write_lanes: int

    @property
    def block(self) -> int:
        return _THREADS

    @property
    def others(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.kernel.axes if a not in (self.read, self.write))

    def tiles(self, axis: Axis) -> Expr:
        return (axis.size + (TILE - 1)) // TILE

    @property
    def grid(self) -> Expr:
        return volume(self.others) * self.tiles(self.read) * self.tiles(self.write)

    def __str__(self) -> str:
        others = ", ".join(f"{a.name}: {a.size}" for a in self.others)
        return (
            f"grid {self.grid} of {self.block} threads\n"
            f"tiles({others}) of {TILE} x {TILE}: {', '.join(self.turned)} along {self.read.name} by {self.read_lanes}"
            f", the rest along {self.write.name} by {self.write_lanes}"
        )


def pitch(dtype: str) -> int:
    """Elements from one row of a tile to the next in shared memory: a word more, so that columns are in all banks."""
    return TILE + max(1, 4 // DTYPES[dtype].bytes)


def plan_turned(kernel: Kernel) -> TurnedPlan | None:
    if kernel.reduced or kernel.ordered or len(kernel.axes) < 2 or volume(kernel.axes).hint < _WORTH_IT:
        return None
    stores = [op for op in kernel.body if isinstance(op, Store)]
    along = {_contiguous(op, kernel.axes) for op in stores}
    write = along.pop() if len(along) == 1 else None
    if write is None or write.size.hint < TILE // 2:
        return None
    axes = {op: _contiguous(op, kernel.axes) for op in kernel.body if isinstance(op, Load) and _may_turn(op, write)}
    reads = {axis for axis in axes.values() if axis is not None and axis is not write}
    if len(reads) != 1:
        return None
    (read,) = reads
    turned = tuple(op for op, axis in axes.items() if axis is read)
    room = sum(TILE * pitch(op.dtype) * DTYPES[op.dtype].bytes for op in turned)
    if read.size.hint < TILE // 2 or room > _ROOM:
        return None
    types = {op.name: op.dtype for op in kernel.body if not isinstance(op, Store)}
    rest = [op for op in kernel.body if isinstance(op, (Load, Store)) and op not in turned and write in op.index.axes()]
    sizes = [DTYPES[op.dtype if isinstance(op, Load) else types[op.value]].bytes for op in rest]
    return TurnedPlan(
        kernel, read, write, tuple(op.name for op in turned),
        _lanes(turned, [DTYPES[op.dtype].bytes for op in turned], read), _lanes(rest, sizes, write),
    )  # fmt: skip


def _may_turn(op: Load, write: Axis) -> bool:
    """Whether it is read across the tile, and can be read before all else is known."""
    return op.dtype != "b1" and write in op.index.axes() and not list(op.index.values())


def _contiguous(op: Load | Store, axes: tuple[Axis, ...]) -> Axis | None:
    for axis in axes:
        if op.index.coefficient(axis) is ONE and axis.size is not ONE:
            return axis
    return None


def _lanes(ops: tuple[Load, ...] | list[Load | Store], sizes: list[int], axis: Axis) -> int:
    lanes = ACCESS_BYTES // max(max(sizes), 2)
    while lanes > 1 and not all(_aligned(op, axis, lanes) for op in ops):
        lanes //= 2
    return lanes


def _aligned(op: Load | Store, axis: Axis, lanes: int) -> bool:
    if op.index.coefficient(axis) is not ONE:
        return True  # no vector of memory
    return all(factor % lanes == 0 for monomial, factor in op.index.terms if monomial != (axis,))


__all__ = ["TILE", "TurnedPlan", "pitch", "plan_turned"]
