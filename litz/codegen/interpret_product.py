"""The meaning of a plan of a matrix product, as `interpret.py` has that of rows.

In: a kernel that is a product, its `ProductPlan`, and memory. Out: memory as the plan leaves it, or a `PlanError` where
a point of the result is not computed once. Factors are what packed memory holds of them, zeros behind the last; they
are multiplied word by word, each run of words summed in the sum's type by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from litz.codegen.coverage import Coverage
from litz.codegen.product import ProductPlan, inner_axis, outer_axes
from litz.loop.contraction import Contraction
from litz.loop.expr import Axis
from litz.loop.interpret import Body, Memory, Sizes, as_type, number_of
from litz.loop.ir import Buffer, Definition, Kernel, Store, definitions_for


@dataclass(frozen=True)
class _Tile:
    """Where a tile stands: the number of its batch, its first row, how many rows, and its panel of columns."""

    batch: int
    row: int
    rows: int
    panel: int


def run_product(
    plan: ProductPlan, kernel: Kernel, found: Contraction, buffers: Mapping[str, Buffer], memory: Memory, sizes: Sizes
) -> None:
    extent = {axis: number_of(axis.size, sizes) for axis in (*kernel.axes, *kernel.reduced)}
    covered = Coverage(f"kernel {kernel.name}", {axis: extent[axis] for axis in kernel.axes})
    with np.errstate(all="ignore"):
        for tile in _tiles(plan, number_of(plan.batch, sizes), number_of(plan.rows, sizes)):
            body, live = _standing(plan, kernel, found, tile, extent, Body(kernel, buffers, memory, sizes, rank=3))
            total = _total(plan, kernel, found, body, live, extent)
            body.values = {found.total.name: as_type(total, found.total.dtype)}
            stores = [op for op in kernel.body if isinstance(op, Store)]
            for op in definitions_for(kernel.body, stores, body.values):
                body.values[op.name] = as_type(body.value(op, live), op.dtype)
            covered.add({axis: body.axes[axis] for axis in kernel.axes}, live)
            for store in stores:
                body.store(store, live)
    covered.check()


def _tiles(plan: ProductPlan, batches: int, rows: int) -> Iterator[_Tile]:
    """As units of work come to them: a block of columns for a share of the rows."""
    height = plan.tile.rows
    whole = rows // height
    for unit in range(batches * plan.blocks * plan.stretches):
        stretch, at = unit % plan.stretches, unit // plan.stretches
        first = at % plan.blocks * plan.block
        panels = range(first, min(first + plan.block, plan.panels))
        begin, end = (share * whole // plan.stretches for share in (stretch, stretch + 1))
        taken = [(tile * height, height) for tile in range(begin, end)]
        if stretch == plan.stretches - 1 and rows % height:
            taken.append((whole * height, rows % height))
        yield from (_Tile(at // plan.blocks, row, count, panel) for panel in panels for row, count in taken)


def _standing(
    plan: ProductPlan, kernel: Kernel, found: Contraction, tile: _Tile, extent: Mapping[Axis, int], body: Body
) -> tuple[Body, np.ndarray]:
    """Values are arrays `(rows, columns, depth)`."""
    row: np.ndarray = (tile.row + np.arange(tile.rows)).reshape(-1, 1, 1)
    column: np.ndarray = (tile.panel * plan.tile.columns + np.arange(plan.tile.columns)).reshape(1, -1, 1)
    body.axes = _counted(found.batch, np.full((1, 1, 1), tile.batch), extent)
    body.axes |= _counted(found.rows, row, extent) | _counted(found.columns, column, extent)
    return body, column < plan.columns


def _counted(axes: tuple[Axis, ...], flat: np.ndarray, extent: Mapping[Axis, int]) -> dict[Axis, np.ndarray]:
    """The axes that a number counts through, last fastest."""
    places: dict[Axis, np.ndarray] = {}
    for axis in reversed(axes[1:]):
        places[axis], flat = flat % extent[axis], flat // extent[axis]
    return places | ({axes[0]: flat} if axes else {})


def _total(
    plan: ProductPlan, kernel: Kernel, found: Contraction, body: Body, live: np.ndarray, extent: Mapping[Axis, int]
) -> np.ndarray:
    """The sums of all products, call by call of the micro-kernel, run by run."""
    group = plan.multiply.group
    step: np.ndarray = np.arange(plan.depth * group).reshape(1, 1, -1)
    line: np.ndarray = step // (plan.padded * group)
    inner: np.ndarray = step % (plan.padded * group)
    body.axes |= _counted(outer_axes(kernel, found), line, extent) | {inner_axis(kernel, found): inner}
    there = inner < plan.inner
    columns = _packed(kernel, found.factors[1], body, there & live)
    rows = _packed(kernel, found.factors[0], body, there)
    products = rows * columns
    words, further = plan.multiplied
    total = np.zeros(products.shape[:2], products.dtype)
    for start in range(0, plan.depth, further):
        for run in range(start, start + words, plan.run):
            numbers = products[..., run * group : min(run + plan.run, start + words) * group]
            total = total + np.cumsum(numbers, axis=-1, dtype=products.dtype)[..., -1]
    return total[..., None]


def _packed(kernel: Kernel, factor: Definition, body: Body, there: np.ndarray) -> np.ndarray:
    """What packed memory holds of a factor: zeros where there is nothing of it."""
    body.values = {}
    for op in (*definitions_for(kernel.body, [factor]), factor):
        body.values[op.name] = as_type(body.value(op, there), op.dtype)
    made = np.asarray(body.values[factor.name])
    return np.where(there, made, made.dtype.type(0))


__all__ = ["run_product"]
