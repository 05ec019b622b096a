"""Small rewrites of a program that change no result: outputs marked, axes merged, dead stores dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.loop.expr import Axis, Expr, FloorDiv, Mod, expr
from litz.loop.ir import Apply, Check, Index, Kernel, Load, Program, Reduce, Step, Store, View, operands


def mark_outputs(program: Program) -> Program:
    """Buffers that leave with the outputs are the caller's, not the arena's."""
    buffers = dict(program.buffers)
    for output in program.outputs:
        if isinstance(output, View) and buffers[output.buffer].kind == "temp":
            buffers[output.buffer] = replace(buffers[output.buffer], kind="output")
    return replace(program, buffers=buffers)


def merge_axes(program: Program) -> Program:
    """Neighbouring axes that every index walks as one become one: longer vectors, fewer divisions."""
    return replace(program, steps=tuple(merge_kernel_axes(s) if isinstance(s, Kernel) else s for s in program.steps))


def merge_kernel_axes(kernel: Kernel) -> Kernel:
    drawn = {name for op in kernel.body if isinstance(op, Apply) and op.op == "philox" for name in op.args}
    indices = [op.index for op in kernel.body if isinstance(op, (Load, Store))]
    indices += [op.expr for op in kernel.body if isinstance(op, Index) and op.name not in drawn]
    counted = [op.expr for op in kernel.body if isinstance(op, Index) and op.name in drawn]
    positional = any(isinstance(op, Reduce) and op.kind.startswith("arg") for op in kernel.body)
    mapping: dict[Axis, Expr] = {}
    axes = _merge(kernel.axes, indices, counted, mapping)
    reduced = kernel.reduced if positional else _merge(kernel.reduced, indices, counted, mapping)
    if not mapping:
        return kernel
    body = []
    for op in kernel.body:
        if isinstance(op, (Load, Store)):
            op = replace(op, index=op.index.substitute(mapping))
        elif isinstance(op, Index):
            op = replace(op, expr=op.expr.substitute(mapping))
        body.append(op)
    return replace(kernel, axes=axes, reduced=reduced, body=tuple(body))


def _merge(
    axes: tuple[Axis, ...], indices: list[Expr], counted: list[Expr], mapping: dict[Axis, Expr]
) -> tuple[Axis, ...]:
    """Merge outer with inner wherever all indices step `inner.size` times as far along outer; fills `mapping`.
    `counted`: by what random numbers are counted, which need not be linear."""
    if len(axes) < 2:
        return axes
    *outer_axes, inner = axes
    # Innermost pair first: what has merged may merge again with the next one out.
    members = [inner]
    groups: list[list[Axis]] = []
    for outer in reversed(outer_axes):
        if all(_walks_as_one(index, outer, members[0]) for index in indices) and all(
            _walks_as_one(index, outer, members[0]) or _is_no_harder(index, outer, members[0]) for index in counted
        ):
            members.insert(0, outer)
        else:
            groups.insert(0, members)
            members = [outer]
    groups.insert(0, members)
    merged = []
    for group in groups:
        if len(group) == 1:
            merged.append(group[0])
            continue
        size = expr(1)
        for axis in group:
            size = size * axis.size
        whole = Axis(group[0].name, size)
        rest: Expr = expr(whole)
        for axis in reversed(group):
            mapping[axis] = rest % axis.size if axis is not group[0] else rest
            rest = rest // axis.size
        merged.append(whole)
    return tuple(merged)


def _walks_as_one(index: Expr, outer: Axis, inner: Axis) -> bool:
    far, near = index.coefficient(outer), index.coefficient(inner)
    return far is not None and near is not None and far == near * inner.size


def _is_no_harder(index: Expr, outer: Axis, inner: Axis) -> bool:
    """Whether it takes no more divisions where the two are one."""
    whole = expr(Axis(outer.name, outer.size * inner.size))
    return _divisions(index.substitute({outer: whole // inner.size, inner: whole % inner.size})) <= _divisions(index)


def _divisions(index: Expr) -> int:
    return sum(isinstance(atom, (FloorDiv, Mod)) for atom in index.atoms())


def live_ops(kernel: Kernel, dead_buffers: set[str]) -> Kernel | None:
    """The kernel without stores to `dead_buffers` and what only they needed; None when nothing is left. What checks its
    data is needed for that: also where no address comes of it, as in a dimension whose elements are all one."""
    wanted: set[str] = set()
    body = []
    for op in reversed(kernel.body):
        if isinstance(op, Store):
            if op.buffer in dead_buffers:
                continue
        elif op.name not in wanted and not isinstance(op, Check):
            continue
        wanted.update(operands(op))
        body.append(op)
    if not any(isinstance(op, Store) for op in body):
        return kernel if any(isinstance(op, Check) for op in kernel.body) else None
    return replace(kernel, body=tuple(reversed(body)))


def without_dead_stores(program: Program, steps: Sequence[Step]) -> list[Step]:
    """Drop what nobody reads, from the end backwards."""
    live = {v.buffer for v in program.outputs if isinstance(v, View)}
    kept: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, Kernel):
            dead = {n for n in step.writes if n not in live and program.buffers[n].kind == "temp"}
            trimmed = live_ops(step, dead) if dead else step
            if trimmed is None:
                continue
            step = trimmed
        live.update(step.reads)
        kept.append(step)
    return kept[::-1]
