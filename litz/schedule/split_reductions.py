"""Split reductions: a long one, of few, is done in parts that run side by side, and the parts are put together.

In: a program whose kernels are fused. Out: the same, where each kernel that would leave most of the machine idle is
several: for every pass over the reduced axes one that reduces the parts and one that puts them together, and at last
one for what is stored element by element. How many parts is the target's affair (`Target.parts`).

The parts of one reduction lie side by side in memory, whatever was reduced, since that is what threads share best: sums
down columns are walked by few threads each, but what comes of them is put together along rows. The order in which
numbers meet does not depend on which thread is first, so a result is the same each time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from litz.context import Context
from litz.loop.dtype import DTYPES
from litz.loop.expr import ONE, ZERO, Axis, Expr, expr
from litz.loop.ir import (
    COMBINE,
    Apply,
    Buffer,
    Check,
    Const,
    Definition,
    Index,
    Kernel,
    Load,
    Op,
    Program,
    Reduce,
    Step,
    Store,
    identity,
    operands,
)
from litz.loop.lanes import vector_axis
from litz.loop.passes import pass_of_each
from litz.loop.radix import flat, volume
from litz.loop.totals import totals_of
from litz.target import Machine

_ACCESS_BYTES = 16  # that a thread reads at once
_WORTH_HANGING_OVER = 8  # parts, for which each step may as well be asked whether it exists


def split_reductions(program: Program, ctx: Context) -> Program:
    buffers = dict(program.buffers)
    steps: list[Step] = []
    in_parts = {op.buffer for kernel in program.kernels for op in totals_of(kernel)}
    for step in program.steps:
        if not in_parts.isdisjoint(step.reads):
            steps.append(step)  # puts parts together already
            continue
        if isinstance(step, Kernel) and (cut := cut_of(step, ctx.target)) is not None:
            pieces = _Pieces(step, cut).made()
            if pieces is not None and ctx.spend(f"split {step.name}"):
                buffers |= {buffer.name: buffer for buffer in pieces.buffers}
                steps += pieces.kernels
                continue
        steps.append(step)
    return replace(program, buffers=buffers, steps=tuple(steps))


# -- what is cut, and where -------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """A reduced axis in `count` stretches of `length` steps; the last may hang over the end."""

    axis: Axis
    count: Expr
    length: int

    @property
    def hangs_over(self) -> bool:
        return self.count * self.length != self.axis.size


@dataclass(frozen=True)
class Cut:
    runs: tuple[Run, ...]  # of the axes that are cut
    in_columns: bool  # neighbours in memory are of different reductions


def cut_of(kernel: Kernel, target: Machine) -> Cut | None:
    """How the kernel's reductions are cut on this machine; None where each is best done in one go."""
    reduces = [op for op in kernel.body if isinstance(op, Reduce)]
    if not reduces or kernel.ordered or any(op.kind not in COMBINE for op in reduces):
        return None
    lanes = vector_axis(kernel)
    columns = None if lanes is None or lanes in kernel.reduced else lanes
    rows, length = (volume(axes).hint for axes in (kernel.axes, kernel.reduced))
    wanted = target.parts(rows, length, None if columns is None else _abreast(kernel, columns))
    if wanted < 2:
        return None
    runs: list[Run] = []
    axes = [axis for axis in kernel.reduced if axis.size is not ONE]
    for axis in axes:  # the outermost first
        run = _run(axis, wanted)
        if run is not None:
            runs.append(run)
            wanted //= max(1, run.count.hint)
    if len(runs) == len(axes) and all(run.length == 1 for run in runs):
        runs.pop()  # a part has more than one step
    return Cut(tuple(runs), columns is not None) if runs else None


def _run(axis: Axis, wanted: int) -> Run | None:
    """The axis in about as many stretches, all alike if possible; None where that is not worth it."""
    if wanted < 2:
        return None
    if not axis.size.is_int:
        length = 1 << max(0, (axis.size.hint // wanted).bit_length() - 1)
        return Run(axis, (axis.size + (length - 1)) // length, length)
    size = axis.size.int
    if size <= wanted:
        return Run(axis, axis.size, 1)
    even = [count for count in range(-(-wanted // 2), 2 * wanted + 1) if size % count == 0]
    if even:
        count = min(even, key=lambda count: abs(count - wanted))
        return Run(axis, expr(count), size // count)
    if wanted < _WORTH_HANGING_OVER:
        return None
    length = -(-size // wanted)
    return Run(axis, expr(-(-size // length)), length)


def _abreast(kernel: Kernel, columns: Axis) -> int:
    """Columns that a thread takes side by side."""
    walked = [op for op in kernel.loads if op.index.coefficient(columns) == ONE]
    least = min((max(2, DTYPES[op.dtype].bytes) for op in walked), default=4)
    return _ACCESS_BYTES // least


def is_known_early(kernel: Kernel, buffer: str) -> bool:
    """Whether what the kernel stores there takes no reduction that is not there before the last pass over its elements:
    in parts, it is stored on the way."""
    passes = list(zip(kernel.body, pass_of_each(kernel), strict=True))
    last = max((number for op, number in passes if isinstance(op, Reduce)), default=0)
    return all(number <= last for op, number in passes if isinstance(op, Store) and op.buffer == buffer)


# -- the kernels it becomes -------------------------------------------------------------------------
@dataclass(frozen=True)
class _Made:
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]


class _Pieces:
    def __init__(self, kernel: Kernel, cut: Cut):
        self.kernel, self.cut = kernel, cut
        self.reduced = frozenset(kernel.reduced)
        self.types = {op.name: op.dtype for op in kernel.body if not isinstance(op, Store)}
        self.varies = self._varying()
        # A part of a cut axis, and a step within it.
        self.parts = {run.axis: Axis(f"p{i}", run.count) for i, run in enumerate(cut.runs)}
        self.steps = {run.axis: Axis(f"q{i}", run.length) for i, run in enumerate(cut.runs)}
        self.buffers: dict[str, Buffer] = {}
        self.totals: dict[str, str] = {}  # reductions that are put together, and where they are kept
        self.here = flat(kernel.axes)

    def _varying(self) -> frozenset[str]:
        """Values that differ from step to step of the reduced axes."""
        found: set[str] = set()
        for op in self.kernel.body:
            if isinstance(op, (Store, Reduce)):
                continue
            axes = op.index.axes() if isinstance(op, Load) else op.expr.axes() if isinstance(op, Index) else set()
            if self.reduced.intersection(axes) or found.intersection(operands(op)):
                found.add(op.name)
        return frozenset(found)

    def made(self) -> _Made | None:
        """All of it; None if one of the kernels would find what another has put where the whole found what was there
        before."""
        passes = list(zip(self.kernel.body, pass_of_each(self.kernel), strict=True))
        last = max(number for op, number in passes if isinstance(op, Reduce))
        # What is stored at each step is so on the way, where it is known by then and every step exists.
        within = {id(op): at for op, at in passes if isinstance(op, Store) and self._is_within(op)}
        hangs_over = any(run.hangs_over for run in self.cut.runs)
        late = [op for op in self.kernel.stores if id(op) in within and (hangs_over or within[id(op)] > last)]
        once = [op for op in self.kernel.stores if id(op) not in within]
        kernels: list[Kernel] = []
        for number in range(last + 1):
            mine = [op for op, at in passes if isinstance(op, Reduce) and at == number]
            stores = [op for op in self.kernel.stores if within.get(id(op)) == number and op not in late]
            kernels.append(self._partial(number, mine, stores))
            kernels.append(self._together(number, mine, once if number == last else []))
        if late:
            kernels.append(self._element_by_element(late))
        written: set[str] = set()
        for kernel in kernels:
            if written.intersection(kernel.reads):
                return None
            written.update(name for name in kernel.writes if name not in self.buffers)
        return self._without_what_is_not_read(kernels)

    def _is_within(self, op: Store) -> bool:
        """Whether it is done at each step of the reduced axes, and not once after them."""
        return bool(op.index.axes() & self.reduced or self.varies.intersection(operands(op)))

    def _without_what_is_not_read(self, kernels: Sequence[Kernel]) -> _Made:
        read = {name for kernel in kernels for name in kernel.reads}
        unread = self.buffers.keys() - read
        trimmed = [
            replace(kernel, body=tuple(op for op in kernel.body if not (isinstance(op, Store) and op.buffer in unread)))
            for kernel in kernels
        ]
        return _Made(tuple(trimmed), tuple(buffer for name, buffer in self.buffers.items() if name in read))

    # -- parts ----------------------------------------------------------------------------------------
    @property
    def _count(self) -> Expr:
        return volume(self.parts.values())

    def _partial(self, number: int, reduces: Sequence[Reduce], stores: Sequence[Store]) -> Kernel:
        """Reduces each part."""
        moved = {run.axis: self._at(run) for run in self.cut.runs}
        body, inside = self._inside(moved)
        for op in self._definitions([*reduces, *stores]):
            body += _moved(op, moved, inside if op.name in self.varies else None)
        body += [replace(op, index=op.index.substitute(moved)) for op in stores]
        place = self.here * self._count + flat(self.parts.values())
        for op in reduces:
            value = op.value
            if inside is not None:
                value, none, dtype = f"{op.name}_in", f"{op.name}_none", self.types[op.value]
                body.append(Const(none, dtype, identity(op.kind, dtype)))
                body.append(Apply(value, dtype, "where", (inside, op.value, none)))
            body.append(Reduce(op.name, op.dtype, op.kind, value))
            body.append(Store(self._buffer(f"part_{op.name}", op.dtype, self._count), place, op.name))
        steps = (self.steps.get(axis, axis) for axis in self.kernel.reduced)
        ahead, behind = self.parts.values(), self.kernel.axes
        axes = (*ahead, *behind) if self.cut.in_columns else (*behind, *ahead)
        return self._kernel(f"parts{number}", axes, [axis for axis in steps if axis.size is not ONE], body)

    def _at(self, run: Run) -> Expr:
        """Where a step of a part is on the axis."""
        step = ZERO if run.length == 1 else expr(self.steps[run.axis])
        return expr(self.parts[run.axis]) * run.length + step

    def _inside(self, moved: Mapping[Axis, Expr]) -> tuple[list[Op], str | None]:
        """Whether the step exists, where a part may hang over the end of its axis."""
        body: list[Op] = []
        found: str | None = None
        for number, run in enumerate(run for run in self.cut.runs if run.hangs_over):
            at, end, test, both = (f"{what}{number}" for what in ("at", "end", "inside", "both"))
            body += [Index(at, "i64", moved[run.axis]), Index(end, "i64", run.axis.size)]
            body.append(Apply(test, "b1", "lt", (at, end)))
            if found is not None:
                body.append(Apply(both, "b1", "and", (found, test)))
            found = test if found is None else both
        return body, found

    def _together(self, number: int, reduces: Sequence[Reduce], stores: Sequence[Store]) -> Kernel:
        """Puts the parts together, and stores what follows of all reductions alone."""
        part = Axis("p0", self._count)
        body: list[Op] = []
        for op in reduces:
            read = f"{op.name}_part"
            body.append(Load(read, op.dtype, self._named(f"part_{op.name}"), self.here * part.size + part))
            body.append(Reduce(op.name, op.dtype, op.kind, read))
        body += self._definitions(stores, {op.name for op in reduces})
        body += stores
        for op in reduces:
            self.totals[op.name] = self._buffer(f"all_{op.name}", op.dtype, ONE)
            body.append(Store(self.totals[op.name], self.here, op.name))
        return self._kernel(f"together{number}", self.kernel.axes, [part], body)

    def _element_by_element(self, stores: Sequence[Store]) -> Kernel:
        """What is stored at each step, now that all reductions are known."""
        axes, reduced = self.kernel.axes, self.kernel.reduced
        order = (*reduced, *axes) if self.cut.in_columns else (*axes, *reduced)
        return self._kernel("rest", order, [], [*self._definitions(stores), *stores])

    # -- what they share ------------------------------------------------------------------------------
    def _definitions(self, sinks: Sequence[Op], known: Collection[str] = ()) -> list[Definition]:
        """What the sinks rest on, besides what is known; reductions that were put together before are read."""
        needed = {name for op in sinks for name in operands(op)}
        found: list[Definition] = []
        for op in reversed(self.kernel.body):
            if isinstance(op, Store) or op.name not in needed or op.name in known:
                continue
            if op.name in self.totals:
                found.append(Load(op.name, op.dtype, self.totals[op.name], self.here))
            else:
                found.append(op)
                needed.update(operands(op))
        return found[::-1]

    def _named(self, what: str) -> str:
        return f"{self.kernel.name}_{what}"

    def _buffer(self, what: str, dtype: str, times: Expr) -> str:
        name = self._named(what)
        self.buffers[name] = Buffer(name, dtype, volume(self.kernel.axes) * times)
        return name

    def _kernel(self, what: str, axes: Sequence[Axis], reduced: Sequence[Axis], body: Sequence[Op]) -> Kernel:
        return Kernel(self._named(what), tuple(axes), tuple(reduced), tuple(body), self.kernel.origins)


def _moved(op: Definition, moved: Mapping[Axis, Expr], inside: str | None) -> list[Op]:
    """The operator with its axes in parts; `inside`: what is loaded is loaded only where that holds."""
    if isinstance(op, Load):
        op = replace(op, index=op.index.substitute(moved))
        if inside is None:
            return [op]
        if op.mask is None:
            return [replace(op, mask=inside)]
        both = f"{op.name}_if"
        return [Apply(both, "b1", "and", (op.mask, inside)), replace(op, mask=both)]
    if isinstance(op, Index):
        return [replace(op, expr=op.expr.substitute(moved))]
    return [replace(op, limit=op.limit.substitute(moved)) if isinstance(op, Check) else op]


__all__ = ["Cut", "Run", "cut_of", "is_known_early", "split_reductions"]
