"""The loop IR: a `Program` is a list of steps over flat buffers; a step is a `Kernel` or a `Call`.

A `Kernel` is an iteration space and a body in SSA form. Every axis is parallel or reduced; a value
depends on the axes that reach it, and `Reduce` takes the reduced ones away. The body is written once,
as if all of a row were in registers: how many passes over the reduced axes that takes is the
renderer's business. A matrix product is simply `sum(a * b)`; the renderer recognises it.

Buffers are flat: an index is an offset in elements. Views exist only as index arithmetic.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Union

from litz.loop.dtype import DTYPES
from litz.loop.exact import Exact
from litz.loop.expr import ONE, Axis, Expr, Value, expr
from litz.loop.formula import Formula, Measures

POSITIONS = ("argmax", "argmin", "argpool")  # reductions that give a place instead of a value
REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", *POSITIONS)
SCANS = ("sum", "prod", "max", "min", "logaddexp")
UPDATES = ("put", "sum", "prod", "max", "min", "total")
# The scalar operator by which what a reduction found here and there becomes one.
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


def identity(kind: str, dtype: str) -> float | int | bool:
    """Where a reduction starts."""
    number = DTYPES[dtype]
    if kind in ("sum", "any"):
        return 0
    if kind in ("prod", "all"):
        return 1
    lowest = kind in ("max", "argmax", "argpool", "logaddexp")
    if number.kind == "float":
        return float("-inf") if lowest else float("inf")
    if number.kind == "bool":
        return not lowest
    if number.kind == "uint":
        return 0 if lowest else (1 << number.bits) - 1
    return -(1 << (number.bits - 1)) if lowest else (1 << (number.bits - 1)) - 1


@dataclass(frozen=True)
class Buffer:
    """Flat memory. `input`: the caller's; `output`: handed to the caller; `temp`: the arena's; `number`: one number in
    memory of the host, wherever the program runs: an argument of the caller's, or a float64 that the host computes."""

    name: str
    dtype: str
    size: Expr
    kind: str = "temp"


@dataclass(frozen=True)
class Load:
    """`buffer[index]`; where `mask` is false, zero, and nothing is read."""

    name: str
    dtype: str
    buffer: str
    index: Expr
    mask: str | None = None


@dataclass(frozen=True, eq=False)
class Const(Exact):
    name: str
    dtype: str
    value: float | int | bool


@dataclass(frozen=True)
class Index:
    """An index expression as a value."""

    name: str
    dtype: str
    expr: Expr


@dataclass(frozen=True)
class Apply:
    """A scalar operator of `loop/scalar.py` applied to earlier values."""

    name: str
    dtype: str
    op: str
    args: tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """An index taken from data: a negative one counts from the end if `wrap`; one out of `limit` raises what
    `loop/fault.py` has for `fault`."""

    name: str
    dtype: str
    value: str
    limit: Expr
    wrap: bool = True
    fault: str = "index"


@dataclass(frozen=True)
class Reduce:
    """`kind` over the reduced axes. `argmax` and `argmin` give the flat position, the first of equals; `argpool` that
    of the greatest as well, but of several NaNs the last."""

    name: str
    dtype: str
    kind: str
    value: str


@dataclass(frozen=True)
class Scan:
    """`kind` over the steps of the reduced axis up to this one: a value for every step, made in their order."""

    name: str
    dtype: str
    kind: str
    value: str


@dataclass(frozen=True)
class Store:
    """`buffer[index] = value`. With `update`, steps of the reduced axes may mean one element, and do so in their order:
    `put` keeps the last value, the others combine it with what is there, rounded to its type each time. Parallel steps
    never mean one element. Where steps do not run in order, as on a GPU, that is any order.

    A `total` is of parallel steps: all that mean one element are added up there, whatever it held before; where none
    does is zero. Which do so is in the index: it has the number of the row by its remainder (`loop/totals.py`)."""

    buffer: str
    index: Expr
    value: str
    update: str | None = None

    @property
    def updates(self) -> bool:
        """Whether it changes what is there, step by step."""
        return self.update not in (None, "total")


Definition = Union[Load, Const, Index, Apply, Check, Reduce, Scan]  # what gives a value a name
Op = Union[Definition, Store]


def operands(op: Op) -> tuple[str, ...]:
    """The values an operator reads, those inside its index included."""
    if isinstance(op, Apply):
        return op.args
    if isinstance(op, Load):
        inside = tuple(sorted(v.name for v in op.index.values()))
        return inside if op.mask is None else (*inside, op.mask)
    if isinstance(op, Store):
        return (*sorted(v.name for v in op.index.values()), op.value)
    if isinstance(op, (Check, Reduce, Scan)):
        return (op.value,)
    if isinstance(op, Index):
        return tuple(sorted(v.name for v in op.expr.values()))
    return ()


def definitions_for(body: tuple[Op, ...], sinks: Iterable[Op], known: Container[str] = ()) -> list[Definition]:
    """The definitions that `sinks` rest on, in order; what rests only on values in `known` is left out with them."""
    made = {op.name: op for op in body if not isinstance(op, Store)}
    wanted: set[str] = set()
    todo = [name for op in sinks for name in operands(op)]
    while todo:
        name = todo.pop()
        if name not in wanted and name not in known:
            wanted.add(name)
            todo.extend(operands(made[name]))
    return [op for op in body if not isinstance(op, Store) and op.name in wanted]


@dataclass(frozen=True)
class Kernel:
    name: str
    axes: tuple[Axis, ...]  # parallel, outermost first
    reduced: tuple[Axis, ...]
    body: tuple[Op, ...]
    origins: tuple[str, ...] = field(default=(), compare=False)  # fx node names, for reports

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        return tuple(op for op in self.body if isinstance(op, Load))

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        return tuple(op for op in self.body if isinstance(op, Store))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        updated = (op.buffer for op in self.stores if op.updates)
        return tuple(dict.fromkeys((*(op.buffer for op in self.loads), *updated)))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(op.buffer for op in self.stores))

    @cached_property
    def ordered(self) -> bool:
        """Whether the steps of the reduced axes must run one after the other."""
        return any(isinstance(op, Scan) or (isinstance(op, Store) and op.updates) for op in self.body)


def contiguous(sizes: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Strides without gaps, the last dimension innermost."""
    strides: list[Expr] = []
    step = ONE
    for size in reversed(sizes):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


@dataclass(frozen=True)
class View:
    """A tensor as the outside sees it: a window on a buffer."""

    buffer: str
    dtype: str
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr = expr(0)

    def at(self, index: tuple[Expr, ...]) -> Expr:
        total = self.offset
        for i, stride in zip(index, self.strides, strict=True):
            total = total + i * stride
        return total


@dataclass(frozen=True)
class Number:
    """A float known only when the program is called, as an argument: the one that the buffer of this name holds."""

    name: str


# What an argument of a call may be; lists nest.
Arg = Union[View, Expr, Number, None, bool, int, float, complex, str, object, tuple]


@dataclass(frozen=True, eq=False)
class Call(Exact):
    """An operator called as it is. `results` are the windows its outputs are written to or bound to.

    `owns`: the operator allocates its results, and their buffers live outside the arena.
    `why`: the reason it was not generated, for the report.
    """

    name: str
    target: str  # "aten::mm" or "aten::mm.out", ...
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    results: tuple[View | None, ...]
    mutates: tuple[str, ...] = ()
    why: str = ""
    origins: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        given = (self.args, self.kwargs)
        return tuple(dict.fromkeys((*(v.buffer for v in views(given)), *(n.name for n in numbers(given)))))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        made = tuple(v.buffer for v in self.results if v is not None)
        return tuple(dict.fromkeys((*made, *self.mutates)))


Step = Union[Kernel, Call]


def views(arg: Arg) -> Iterator[View]:
    if isinstance(arg, View):
        yield arg
    elif isinstance(arg, (tuple, list)):
        for item in arg:
            yield from views(item)


def numbers(arg: Arg) -> Iterator[Number]:
    if isinstance(arg, Number):
        yield arg
    elif isinstance(arg, (tuple, list)):
        for item in arg:
            yield from numbers(item)


@dataclass(frozen=True)
class SizeSource:
    """Where a size comes from at run time: an argument that is a number, a dimension of one that is a tensor, or a
    formula over those."""

    name: str
    input: int | None = None
    dim: int | None = None
    formula: Formula | None = None

    def read(self, args: Sequence[Any], known: Measures) -> int:
        """Its value in a call with these arguments, after what formulas are made of."""
        if self.input is None:
            assert self.formula is not None
            return self.formula.at(known)
        value = args[self.input]
        return int(value) if self.dim is None else value.shape[self.dim]


@dataclass(frozen=True)
class NumberSource:
    """Where a number comes from at run time: an argument that is a tensor of one element, or a formula of floats."""

    name: str
    input: int | None = None
    formula: Formula | None = None

    def read(self, args: Sequence[Any], known: Measures) -> float | int:
        if self.input is None:
            assert self.formula is not None
            return float(self.formula.at(known))
        return args[self.input].item()


def measure(
    sizes: Sequence[SizeSource], numbers: Sequence[NumberSource], args: Sequence[Any]
) -> dict[str, int | float]:
    """The sizes and floats of a call with these arguments: what arguments tell, then what is computed of that."""
    known: dict[str, int | float] = {}
    sources: tuple[SizeSource | NumberSource, ...] = (*sizes, *numbers)
    for computed in (False, True):
        for source in sources:
            if (source.input is None) is computed:
                known[source.name] = source.read(args, known)
    return known


@dataclass(frozen=True, eq=False)
class Program(Exact):
    buffers: dict[str, Buffer]
    inputs: tuple[str | None, ...]  # one an argument: its buffer, or None for what is not a tensor
    outputs: tuple[Arg, ...]  # views, and plain values returned as they are
    steps: tuple[Step, ...]
    sizes: tuple[SizeSource, ...] = ()
    numbers: tuple[NumberSource, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(step for step in self.steps if isinstance(step, Kernel))

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(step for step in self.steps if isinstance(step, Call))

    def named(self, inputs: Iterable[int]) -> tuple[str, ...]:
        """The buffers of these arguments."""
        return tuple(name for i in inputs if (name := self.inputs[i]) is not None)


__all__ = [
    "COMBINE", "REDUCTIONS", "SCANS", "UPDATES", "Apply", "Arg", "Axis", "Buffer", "Call", "Check", "Const",
    "Definition", "Expr", "Index", "Kernel", "Load", "Number", "NumberSource", "Op", "Program", "Reduce", "Scan",
    "SizeSource", "Step", "Store", "Value", "View", "definitions_for", "identity", "measure", "numbers", "operands",
    "views",
]  # fmt: skip
