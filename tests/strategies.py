"""Random loop programs that obey the rules by construction, for Hypothesis.

`programs()` draws a whole `Program`: one or two kernels over one to three axes, loads at permuted, broadcast
and reshaped indices, a gather, pointwise operators on f32, i64 and b1, an optional reduction with operators
after it. `arguments(program, seed)` gives tensors to run it on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from litz.loop.dtype import DTYPES, to_torch
from litz.loop.expr import Axis, Expr, Value, constant, expr
from litz.loop.fault import FAULTS
from litz.loop.ir import Apply, Buffer, Check, Const, Index, Kernel, Load, Op, Program, Reduce, Store, View
from litz.loop.scalar import BOOL, GIVEN, SCALARS

TYPES = ("f32", "i64", "b1")
# Defined on every number and the same on all machines: what a renderer can be held to, bit for bit.
EXACT = (
    *("add", "sub", "mul", "neg", "abs", "max", "min", "floor", "ceil", "trunc", "where", "cast"),
    *("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not"),
)
REDUCES = {"f32": ("sum", "max", "min", "argmax", "argmin"), "i64": ("sum", "max", "min"), "b1": ("any", "all")}


@dataclass
class _Builder:
    """A kernel being drawn: its body so far, and what type and which axes each value has."""

    draw: st.DrawFn
    prefix: str
    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    buffers: dict[str, Buffer]
    ops: tuple[str, ...]
    body: list[Op] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    depends: dict[str, frozenset[Axis]] = field(default_factory=dict)

    def name(self) -> str:
        return f"v{len(self.body)}"

    def add(self, op: Op, *of: str, axes: frozenset[Axis] = frozenset()) -> str:
        assert not isinstance(op, Store)
        self.body.append(op)
        self.types[op.name] = op.dtype
        self.depends[op.name] = axes.union(*(self.depends[v] for v in of))
        return op.name

    def pick(self, dtype: str) -> str:
        """A value of the type, cast or made where there is none."""
        found = [name for name, own in self.types.items() if own == dtype]
        fresh: bool = self.draw(st.integers(0, 9).map(lambda n: n == 0))
        if found and not fresh:
            return self.draw(st.sampled_from(found))
        if dtype == "b1":
            return self.add(Const(self.name(), "b1", self.draw(st.booleans())))
        if dtype == "i64":
            if self.draw(st.booleans()):
                axis = self.draw(st.sampled_from((*self.axes, *self.reduced)))
                index = expr(axis) * self.draw(st.integers(1, 3)) + self.draw(st.integers(-2, 2))
                return self.add(Index(self.name(), "i64", index), axes=frozenset({axis}))
            return self.add(Const(self.name(), "i64", self.draw(st.integers(-9, 9))))
        value = self.draw(st.floats(-8, 8, width=16) | st.sampled_from((float("inf"), -0.0, 0.1)))
        return self.add(Const(self.name(), "f32", value))

    def index(self) -> tuple[Expr, frozenset[Axis], int]:
        """An index over some of the axes, the axes, and how large a buffer it needs."""
        axes = self.draw(st.lists(st.sampled_from((*self.axes, *self.reduced)), unique=True, max_size=3))
        offset = self.draw(st.integers(0, 3))
        index, size = row_major(tuple(axes))
        way = self.draw(st.integers(0, 3))
        part = self.draw(st.integers(2, 4))
        if way == 1:
            index, size = index // part, (size - 1) // part + 1
        elif way == 2:
            index = (index + 1) % part * size + index  # a term that shares its axes with another
            size = part * size
        return index + offset, frozenset(index.axes()), size + offset

    def load(self, buffer: Buffer | None = None) -> str:
        index, axes, size = self.index()
        if buffer is None:
            buffer = Buffer(
                f"{self.prefix}x{len(self.buffers)}", self.draw(st.sampled_from(TYPES)), expr(size), "input"
            )
            self.buffers[buffer.name] = buffer
        else:
            # A buffer that exists already: any index, folded into it.
            index = index % buffer.size
            axes = frozenset(index.axes())
        mask = self.pick("b1") if not self.draw(st.integers(0, 4)) else None
        op = Load(self.name(), buffer.dtype, buffer.name, index, mask)
        return self.add(op, *([mask] if mask else []), axes=axes)

    def gather(self) -> str:
        rows, width = self.draw(st.integers(1, 5)), self.draw(st.integers(1, 3))
        table = Buffer(f"{self.prefix}x{len(self.buffers)}", "f32", expr(rows * width), "input")
        self.buffers[table.name] = table
        value = self.pick("i64")
        limit = self.add(Const(self.name(), "i64", rows))
        wrapped = self.add(Apply(self.name(), "i64", "remainder", (value, limit)), value, limit)
        wrap, fault = self.draw(st.booleans()), self.draw(st.sampled_from(list(FAULTS)))
        checked = self.add(Check(self.name(), "i64", wrapped, constant(rows), wrap, fault), wrapped)
        index = expr(Value(checked, rows)) * width + self.draw(st.integers(0, width - 1))
        return self.add(Load(self.name(), "f32", table.name, index), checked)

    def apply(self) -> str:
        row = SCALARS[self.draw(st.sampled_from(self.ops))]
        dtype = self.draw(st.sampled_from([t for t in TYPES if DTYPES[t].kind in row.kinds]))
        if row.name == "cast" and dtype == "f32":
            dtype = "i64"  # a float out of an integer's range has no certain value there
        args = ["b1"] * (row.name == "where") + [dtype] * (row.arity - (row.name == "where"))
        names = tuple(self.pick(arg) for arg in args)
        result = self.draw(st.sampled_from(TYPES)) if row.result == GIVEN else "b1" if row.result == BOOL else dtype
        return self.add(Apply(self.name(), result, row.name, names), *names)

    def reduce(self) -> str:
        dtype = self.draw(st.sampled_from(TYPES))
        value = self.pick(dtype)
        kind = self.draw(st.sampled_from(REDUCES[dtype]))
        result = "i64" if kind.startswith("arg") else dtype
        name = self.add(Reduce(self.name(), result, kind, value), value)
        self.depends[name] -= frozenset(self.reduced)
        return name

    def store(self, value: str, kind: str) -> Buffer:
        axes = tuple(a for a in (*self.axes, *self.reduced) if a in self.depends[value] or a in self.axes)
        index, size = row_major(axes)
        buffer = Buffer(f"{self.prefix}y{len(self.buffers)}", self.types[value], expr(size), kind)
        self.buffers[buffer.name] = buffer
        self.body.append(Store(buffer.name, index, value))
        return buffer


def row_major(axes: tuple[Axis, ...]) -> tuple[Expr, int]:
    """The contiguous index over the axes, and the size of what it covers."""
    index, step = constant(0), 1
    for axis in reversed(axes):
        index, step = index + expr(axis) * step, step * axis.size.int
    return index, step


@st.composite
def programs(draw: st.DrawFn, ops: tuple[str, ...] = EXACT) -> Program:
    buffers: dict[str, Buffer] = {}
    kernels, views = [], []
    carried: list[Buffer] = []
    count = draw(st.integers(1, 2))
    for number in range(count):
        axes = tuple(Axis(f"i{k}", draw(st.integers(1, 5))) for k in range(draw(st.integers(1, 3))))
        reduced = (Axis("r0", draw(st.integers(1, 4))),) if draw(st.booleans()) else ()
        build = _Builder(draw, f"k{number}", axes, reduced, buffers, ops)
        for buffer in carried:
            build.load(buffer)
        for _ in range(draw(st.integers(1, 3))):
            build.load()
        if draw(st.booleans()):
            build.gather()
        last = [build.apply() for _ in range(draw(st.integers(0, 5)))]
        if reduced:
            last = [build.reduce()] + [build.apply() for _ in range(draw(st.integers(0, 3)))]
        stored = {last[-1] if last else build.pick("f32"), draw(st.sampled_from(sorted(build.types)))}
        kinds = ("temp", "output") if number < count - 1 else ("output",)
        made = [build.store(value, draw(st.sampled_from(kinds))) for value in sorted(stored)]
        carried = made
        views += [View(b.name, b.dtype, (b.size,), (constant(1),)) for b in made if b.kind == "output"]
        kernels.append(Kernel(f"k{number}", axes, reduced, tuple(build.body), origins=(f"node{number}",)))
    inputs = tuple(name for name, buffer in buffers.items() if buffer.kind == "input")
    return Program(buffers, inputs, tuple(views), tuple(kernels))


def arguments(program: Program, seed: int = 0) -> list[torch.Tensor]:
    """Tensors for every input: small numbers, so that integers do not overflow and sums are exact enough."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for name in program.inputs:
        assert name is not None
        buffer = program.buffers[name]
        numbers = torch.randint(-4, 5, (buffer.size.int,), generator=generator)
        if DTYPES[buffer.dtype].kind == "float":
            numbers = numbers + torch.rand(numbers.shape, generator=generator)
        made.append((numbers > 0) if buffer.dtype == "b1" else numbers.to(to_torch(buffer.dtype)))
    return made


__all__ = ["EXACT", "arguments", "programs", "row_major"]
