"""The meaning of a plan of tiles, as `interpret.py` has that of rows.

In: a `TurnedPlan` and memory. Out: memory as the plan leaves it, or a `PlanError` where a point is not computed once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from litz.codegen.coverage import Coverage
from litz.codegen.turned import TILE, TurnedPlan
from litz.loop.expr import Axis
from litz.loop.interpret import Body, Memory, Sizes, as_type, number_of
from litz.loop.ir import Buffer, Load, Store, definitions_for


def run_turned(plan: TurnedPlan, buffers: Mapping[str, Buffer], memory: Memory, sizes: Sizes) -> None:
    """Values are arrays `(blocks, rows of a tile, columns)`."""
    kernel = plan.kernel
    extent = {axis: number_of(axis.size, sizes) for axis in kernel.axes}
    rest: np.ndarray = np.arange(number_of(plan.grid, sizes)).reshape(-1, 1, 1)
    start: dict[Axis, np.ndarray] = {}
    others: dict[Axis, np.ndarray] = {}
    for axis in (plan.write, plan.read):
        tiles = number_of(plan.tiles(axis), sizes)
        start[axis], rest = rest % tiles * TILE, rest // tiles
    for axis in reversed(plan.others):
        others[axis], rest = rest % extent[axis], rest // extent[axis]
    down: np.ndarray = np.arange(TILE).reshape(1, -1, 1)
    along: np.ndarray = np.arange(TILE).reshape(1, 1, -1)

    def standing(rows: int, columns: int) -> tuple[Body, np.ndarray]:
        axes = (plan.read, plan.write)
        at = {axes[rows]: start[axes[rows]] + down, axes[columns]: start[axes[columns]] + along}
        body = Body(kernel, buffers, memory, sizes, rank=3)
        body.axes = others | at
        live: np.ndarray = np.ones((), bool)
        for axis, place in at.items():
            live = live & (place < extent[axis])
        return body, live

    with np.errstate(all="ignore"):
        reading, live = standing(1, 0)
        tiles_of = {}
        for name in plan.turned:
            (load,) = (op for op in kernel.body if isinstance(op, Load) and op.name == name)
            for op in (*definitions_for(kernel.body, [load], reading.values), load):
                reading.values[op.name] = as_type(reading.value(op, live), op.dtype)
            tiles_of[name] = np.broadcast_to(reading.values[name], live.shape).swapaxes(1, 2)
        writing, live = standing(0, 1)
        writing.values = dict(tiles_of)
        stores = [op for op in kernel.body if isinstance(op, Store)]
        for op in definitions_for(kernel.body, stores, writing.values):
            writing.values[op.name] = as_type(writing.value(op, live), op.dtype)
        covered = Coverage(f"kernel {kernel.name}", extent)
        covered.add(writing.axes, live)
        for store in stores:
            writing.store(store, live)
    covered.check()


__all__ = ["run_turned"]
