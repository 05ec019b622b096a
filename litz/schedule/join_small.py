"""Join small: kernels of a few elements each, which have nothing to do with one another, are one.

In: a program in order. Out: the same, where such kernels over axes of the same sizes are one kernel, at the place of
the last of them that may wait so long. Whether starting a kernel costs as much as all that such a one does is the
target's affair (`Target.starts_are_dear`).

A network with a hundred batch norms counts its batches and writes its running statistics back: hundreds of kernels that
take no time, and more to start than the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from litz.context import Context
from litz.loop.expr import Axis, Expr, Value, expr
from litz.loop.ir import Apply, Check, Index, Kernel, Load, Op, Program, Reduce, Scan, Step, Store
from litz.loop.radix import volume

_FEW = 4096  # elements
_MOST_OPS = 240  # in a kernel
_MOST_BUFFERS = 128  # of which it is told the addresses


def join_small(program: Program, ctx: Context) -> Program:
    if not ctx.target.starts_are_dear:
        return program
    joining = _Joining(ctx)
    for step in program.steps:
        joining.add(step)
    joining.flush(joining.waiting)
    return replace(program, steps=tuple(joining.steps))


@dataclass
class _Group:
    """Kernels that wait to be one."""

    members: list[Kernel] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def take(self, kernel: Kernel) -> None:
        self.members.append(kernel)
        self.reads.update(kernel.reads)
        self.writes.update(kernel.writes)

    def meets(self, step: Step) -> bool:
        """Whether it must have run before the step does."""
        return not (self.writes.isdisjoint((*step.reads, *step.writes)) and self.reads.isdisjoint(step.writes))

    def has_room(self, kernel: Kernel) -> bool:
        ops = sum(len(member.body) for member in (*self.members, kernel))
        return ops <= _MOST_OPS and len(self.reads | self.writes | {*kernel.reads, *kernel.writes}) <= _MOST_BUFFERS


class _Joining:
    def __init__(self, ctx: Context):
        self.ctx = ctx
        self.steps: list[Step] = []
        self.waiting: dict[tuple[Expr, ...], _Group] = {}  # by the sizes of their axes, in the order they began

    def add(self, step: Step) -> None:
        self.flush([sizes for sizes, group in self.waiting.items() if group.meets(step)])
        if not (isinstance(step, Kernel) and _is_small(step)):
            self.steps.append(step)
            return
        sizes = tuple(axis.size for axis in step.axes)
        if sizes in self.waiting and not self.waiting[sizes].has_room(step):
            self.flush([sizes])
        self.waiting.setdefault(sizes, _Group()).take(step)

    def flush(self, which: Sequence[tuple[Expr, ...]] | dict[tuple[Expr, ...], _Group]) -> None:
        for sizes in list(which):
            members = self.waiting.pop(sizes).members
            if len(members) > 1 and self.ctx.spend(f"join {len(members)} small kernels"):
                self.steps.append(_joined(members))
            else:
                self.steps += members


def _is_small(kernel: Kernel) -> bool:
    """One that may find fault with its data does not wait: it stands before what the caller could see."""
    checks = any(isinstance(op, Check) for op in kernel.body)
    return not kernel.reduced and not checks and volume(kernel.axes).hint <= _FEW


def _joined(members: Sequence[Kernel]) -> Kernel:
    first = members[0]
    body: list[Op] = []
    for number, member in enumerate(members):
        axes = {own: expr(axis) for own, axis in zip(member.axes, first.axes, strict=True) if own != axis}
        body += [_renamed(op, f"m{number}_", axes) for op in member.body]
    origins = tuple(dict.fromkeys(origin for member in members for origin in member.origins))
    return Kernel(f"{first.name}_and_{len(members) - 1}", first.axes, (), tuple(body), origins)


def _renamed(op: Op, prefix: str, axes: dict[Axis, Expr]) -> Op:
    """The operator with its values' names begun by `prefix`, over other axes."""

    def index(e: Expr) -> Expr:
        values = {value: expr(Value(f"{prefix}{value.name}", value.limit)) for value in e.values()}
        return e.substitute({**axes, **values}) if axes or values else e

    if isinstance(op, Store):
        return replace(op, index=index(op.index), value=f"{prefix}{op.value}")
    assert not isinstance(op, (Check, Reduce, Scan)), "nothing is reduced or checked"
    name = f"{prefix}{op.name}"
    if isinstance(op, Load):
        return replace(op, name=name, index=index(op.index), mask=None if op.mask is None else f"{prefix}{op.mask}")
    if isinstance(op, Apply):
        return replace(op, name=name, args=tuple(f"{prefix}{arg}" for arg in op.args))
    return replace(op, name=name, expr=index(op.expr)) if isinstance(op, Index) else replace(op, name=name)


__all__ = ["join_small"]
