"""Which sums of products are rendered as tiles, and how large the tiles are.

In: a kernel. Out: its `Tiling`, or None where packing (`contract.py`) or plain loops (`loops.py`) serve it better.

A tile is worth its code where products share what they read. How much they do is counted on the index expressions: two
loads of the tile that lie a constant apart are two, those that coincide are one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from litz.codegen.depend import depends
from litz.codegen.lanes import vector_axis
from litz.loop.dtype import DTYPES
from litz.loop.expr import Axis, Expr
from litz.loop.ir import Apply, Check, Index, Kernel, Load, Reduce, Scan, Store, definitions_for, operands
from litz.loop.radix import mixed_radix
from litz.target import Target

_WRITTEN_OUT = 8  # steps of the innermost reduced axis
_LARGEST = 8  # steps along one axis of a tile
_CHAINS = 4  # sums side by side that hide the latency of adding
_SHORT_WINDOW = 256  # steps in all: a sum that short is always worth its accumulators
# Cycles, measured: of an instruction in the tile, of adding up the lanes, of a byte from beyond the second cache.
_PER_INSTRUCTION, _ACROSS, _FAR_BYTE = 0.69, 3.5, 0.125
_GAIN = 0.8  # of the loads: a tile that saves less is not worth it


@dataclass(frozen=True)
class Tiling:
    total: Reduce
    factors: tuple[str, str]
    vector: Axis
    lanes: int
    rows: tuple[Axis, ...]  # parallel axes beside the vector axis, outermost first
    tile: tuple[tuple[Axis, int], ...]  # of these, the axes that are taken several steps at a time
    copies: int  # vectors side by side
    unrolled: tuple[Axis, ...]  # reduced axes that are written out
    cycles: float  # that it takes, about


def tiling(kernel: Kernel, target: Target) -> Tiling | None:
    found = _sum_of_products(kernel)
    if found is None:
        return None
    total, term = found
    ops = definitions_for(kernel.body, [total])
    loads = [op for op in ops if isinstance(op, Load)]
    vector = vector_axis(kernel)
    if vector is None or any(isinstance(op, Check) for op in ops) or not all(a.size.is_int for a in kernel.reduced):
        return None
    if vector not in kernel.reduced and vector not in depends(kernel.body, kernel.reduced)[total.name]:
        return None  # a sum that is the same in every lane
    if not all(_step(load.index, vector) in (0, 1) and not list(load.index.values()) for load in loads):
        return None
    if vector in kernel.reduced and any(_is_streamed(load, kernel, target) for load in loads):
        return None
    lanes = max(target.vector_bytes // DTYPES[total.dtype].bytes, 2)
    inner = [a for a in kernel.reduced if a != vector]
    unrolled = tuple(inner[-1:]) if inner and inner[-1].size.int <= _WRITTEN_OUT else ()
    rows = tuple(a for a in kernel.axes if a != vector)
    exprs = [op.index for op in loads] + [op.expr for op in ops if isinstance(op, Index)]
    even = [a for a in rows if a.size.is_int and a.size.int > 1 and all(_step(e, a) is not None for e in exprs)]
    registers = target.vector_registers
    vectors_in_row = -(-vector.size.int // lanes) if vector.size.is_int else registers
    costs = {
        (tile, copies): _cost(loads, tile, copies, vector, unrolled, registers)
        for tile in _tiles(even, registers // 2)
        for copies in (4, 2, 1)
        if copies * prod(step for _, step in tile) <= registers // 2 and copies <= vectors_in_row
    }
    plain = min(cost for (tile, _), cost in costs.items() if not tile)
    (tile, copies), best = min(costs.items(), key=lambda item: item[1])
    window = vector not in kernel.reduced and prod(a.size.int for a in kernel.reduced) <= _SHORT_WINDOW
    if best > _GAIN * plain and not window:
        return None
    sums = prod(a.size.hint for a in kernel.axes)
    cycles = _PER_INSTRUCTION * best * sums * prod(a.size.hint for a in kernel.reduced) / lanes
    if vector in kernel.reduced:
        cycles += _ACROSS * sums
    cycles += sum(_read_again(load, kernel, dict(tile), target) for load in loads)
    return Tiling(total, (term.args[0], term.args[1]), vector, lanes, rows, tile, copies, unrolled, cycles)


def _sum_of_products(kernel: Kernel) -> tuple[Reduce, Apply] | None:
    """The kernel's only reduction and the product it adds up; everything is stored after it."""
    reduces = [op for op in kernel.body if isinstance(op, Reduce)]
    if kernel.ordered or len(reduces) != 1 or any(isinstance(op, Scan) for op in kernel.body):
        return None
    (total,) = reduces
    values = {op.name: op for op in kernel.body if not isinstance(op, Store)}
    term = values[total.value]
    if total.kind != "sum" or total.dtype not in ("f32", "f64") or term.dtype != total.dtype:
        return None
    if not (isinstance(term, Apply) and term.op == "mul"):
        return None
    # What is stored before the sum is known, or for each step of it, is a pass of its own.
    within = {op.name for op in definitions_for(kernel.body, [total])}
    reduced = set(kernel.reduced)
    for store in kernel.stores:
        needed = definitions_for(kernel.body, [store], {total.name})
        exprs = [op.index for op in (store, *needed) if isinstance(op, (Load, Store))]
        exprs += [op.expr for op in needed if isinstance(op, Index)]
        if any(e.axes() & reduced for e in exprs) or not _rests_on(kernel, store, total.name):
            return None
    return (total, term) if within else None


def _rests_on(kernel: Kernel, store: Store, name: str) -> bool:
    return name in operands(store) or any(name in operands(op) for op in definitions_for(kernel.body, [store]))


def _step(e: Expr, axis: Axis) -> int | None:
    step = e.coefficient(axis)
    return step.int if step is not None and step.is_int else None


def _is_streamed(load: Load, kernel: Kernel, target: Target) -> bool:
    """Whether it reads more than the second cache holds, each element once: that is what takes the time, and is done
    sooner in one stream than in as many as a tile has rows."""
    axes = (*kernel.axes, *kernel.reduced)
    size = DTYPES[load.dtype].bytes * prod(axis.size.hint for axis in axes)
    return size > target.l2_bytes and load.index.axes() == set(axes) and mixed_radix(load.index, axes) is not None


def _tiles(axes: list[Axis], most: int) -> Iterator[tuple[tuple[Axis, int], ...]]:
    """No tile, one axis, or two of which the first divides evenly."""
    yield ()
    for axis in axes:
        for step in range(2, min(_LARGEST, most, axis.size.int) + 1):
            yield ((axis, step),)
    for first in axes:
        for second in axes:
            if first is second or axes.index(first) > axes.index(second):
                continue
            for a in range(2, _LARGEST + 1):
                for b in range(2, _LARGEST + 1):
                    if a * b <= most and first.size.int % a == 0 and second.size.int >= b:
                        yield ((first, a), (second, b))


def _cost(
    loads: list[Load],
    tile: tuple[tuple[Axis, int], ...],
    copies: int,
    vector: Axis,
    unrolled: tuple[Axis, ...],
    registers: int,
) -> float:
    """Instructions for each product of the tile, about: a multiply-add, loads, and addresses and masks of loads."""
    points = prod(step for _, step in tile)
    steps = prod(a.size.int for a in unrolled)
    read = addressed = 0.0
    for load in loads:
        moves = [(_step(load.index, axis) or 0, count) for axis, count in tile]
        moves += [(_step(load.index, axis) or 0, axis.size.int) for axis in unrolled]
        places = {sum(p) for p in product(*({step * i for i in range(count)} for step, count in moves))}
        read += len(places) * (copies if _step(load.index, vector) == 1 else 1)
        addressed += len(places) * (1.0 if load.mask is not None else 0.25)
    products = points * steps * copies
    cost = (max(products, read) + 0.5 * min(products, read) + addressed) / products
    # What does not fit into registers beside the accumulators is loaded again.
    cost *= max(1.0, (points * copies + read) / registers)
    # A tile that its axis does not fill works on what is left at a higher price.
    for axis, step in tile:
        left = axis.size.int % step
        if left:
            cost *= 1.05 + 0.5 * (step - left) / axis.size.int
    return cost * max(1.0, _CHAINS / (points * copies)) ** 0.5


def _read_again(load: Load, kernel: Kernel, tile: dict[Axis, int], target: Target) -> float:
    """What it costs that every tile reads all of an operand that the second cache does not hold."""
    own = load.index.axes()
    size = 4 * prod(a.size.hint for a in (*kernel.axes, *kernel.reduced) if a in own)
    others = (a for a in kernel.axes if a not in own)
    times = prod(-(-a.size.hint // tile.get(a, 1)) for a in others)
    return _FAR_BYTE * size * times if size > target.l2_bytes and times > 1 else 0.0
