"""Recognise a matrix product in a kernel's body: one `sum(a * b)` where each factor has axes of its own.

In: a `Kernel`. Out: its `Contraction`, or None. Convolutions are products too: their reduced axes run
over the window and the channels, and the factor that is the image may be masked at its edges. Factors of 16 bits are
made float32 before they are multiplied: their product is exact then, and the sum one of float32. Those of 8 bits are
made 32 bits wide; what stands for the image beyond its edges may be a number of their own, their zero point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litz.loop.expr import Axis
from litz.loop.ir import Apply, Definition, Kernel, Load, Reduce, Store, operands

# By the type of the sum: what factors are before they are made it.
_NARROW = {"f32": ("bf16", "f16", "i8"), "i32": ("u8", "i8")}


@dataclass(frozen=True)
class Contraction:
    total: Reduce
    product: Apply
    left: Load  # varies over rows
    right: Load  # varies over columns
    factors: tuple[Definition, Definition]  # what is multiplied: of the sum's type
    read: tuple[Definition, Definition]  # what they are of their own type: the loads, or what stands for one past edges
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]


def contraction(kernel: Kernel) -> Contraction | None:
    reduces = [op for op in kernel.body if isinstance(op, Reduce)]
    if len(reduces) != 1 or reduces[0].kind != "sum" or reduces[0].dtype not in _NARROW:
        return None
    values: dict[str, Definition] = {op.name: op for op in kernel.body if not isinstance(op, Store)}
    product = values[reduces[0].value]
    if not isinstance(product, Apply) or product.op != "mul":
        return None
    multiplied = [values[a] for a in product.args]
    reads = [read for f in multiplied if (read := _read_by(f, values)) is not None]
    loads = [load for read in reads if (load := _load_of(read, values)) is not None]
    if len(loads) != 2 or _walks_again(kernel, product, values):
        return None
    own = [_axes_of(f, values) for f in reads]
    parallel = set(kernel.axes)
    batch = own[0] & own[1] & parallel
    sides = [(own[i] & parallel) - batch for i in (0, 1)]
    if not all(sides) or (sides[0] | sides[1] | batch) != parallel:
        return None
    contiguous = _unit_axis(kernel)
    right = 0 if contiguous in sides[0] else 1
    if loads[right].mask is not None and loads[1 - right].mask is None:
        right = 1 - right
    if len(sides[right]) > 1 and len(sides[1 - right]) == 1:
        right = 1 - right  # columns are counted along one axis
    if len(sides[right]) > 1 or loads[right].mask is not None:
        return None

    def ordered(axes: set[Axis]) -> tuple[Axis, ...]:
        return tuple(a for a in kernel.axes if a in axes)

    return Contraction(
        reduces[0], product, loads[1 - right], loads[right], (multiplied[1 - right], multiplied[right]),
        (reads[1 - right], reads[right]),
        ordered(batch), ordered(sides[1 - right]), ordered(sides[right]),
    )  # fmt: skip


def _read_by(factor: Definition, values: dict) -> Definition | None:
    """What the factor is, or is the wider form of."""
    if isinstance(factor, Load) and factor.dtype in _NARROW:
        return factor
    if not isinstance(factor, Apply) or factor.op != "cast":
        return None
    read = values[factor.args[0]]
    return read if read.dtype in _NARROW.get(factor.dtype, ()) else None


def _load_of(read: Definition, values: dict) -> Load | None:
    """The load that the value is; or is where its mask holds, while elsewhere it is one number for all."""
    if isinstance(read, Load):
        return read
    if not isinstance(read, Apply) or read.op != "where":
        return None
    mask, load, beyond = (values[name] for name in read.args)
    if not isinstance(load, Load) or load.mask != mask.name or any(map(_own_axes, _behind(beyond, values))):
        return None
    return load


def _walks_again(kernel: Kernel, product: Apply, values: dict) -> bool:
    """Whether what is not summed runs over the reduced axes too, as where a total is spread over its row again."""
    summed = {op.name for op in _behind(product, values)}
    others = [op for op in kernel.body if getattr(op, "name", None) not in summed]
    return any(_own_axes(op) & set(kernel.reduced) for op in others)


def _axes_of(read: Definition, values: dict) -> set[Axis]:
    return set().union(*(_own_axes(op) for op in _behind(read, values)))


def _behind(op: Any, values: dict) -> list[Any]:
    """The operation and all it is computed from."""
    found = [op]
    for one in found:  # which grows as it is walked
        found += [used for name in operands(one) if (used := values[name]) not in found]
    return found


def _own_axes(op: Any) -> set[Axis]:
    where = op.index if isinstance(op, (Load, Store)) else getattr(op, "expr", None)
    return set() if where is None else set(where.axes())


def _unit_axis(kernel: Kernel) -> Axis | None:
    for store in kernel.stores:
        for axis in kernel.axes:
            step = store.index.coefficient(axis)
            if step is not None and step.is_int and step.int == 1:
                return axis
    return None
