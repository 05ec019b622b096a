"""Derive: what follows from a value that is stored anyway is computed of it where it is read, and not stored as well.

In: a fused program of a training step. Out: the same with fewer buffers. A kernel that stores a value and a function of
it, as a gate and its `silu`, gives both to kernels that read both: one is enough, and takes half of the memory that is
held between them. Nothing lives longer for it: what a buffer is derived of is there until its last reader in any case.
The elements are the same ones: both are stored at one place, and read as they were stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from litz.context import Context
from litz.loop.contraction import contraction
from litz.loop.dtype import DTYPES
from litz.loop.expr import Expr
from litz.loop.ir import (
    Apply,
    Check,
    Const,
    Index,
    Kernel,
    Load,
    Op,
    Program,
    Reduce,
    Scan,
    Step,
    Store,
    View,
    definitions_for,
    operands,
)
from litz.loop.radix import mixed_radix
from litz.loop.scalar import SCALARS
from litz.schedule.merge import LARGEST_BODY
from litz.schedule.peak import bytes_of
from litz.schedule.simplify import without_dead_stores

_LEAST = 1 << 18  # bytes of a buffer that is worth it
_DEAREST = 48  # operations for an element, in all that read it


def derive(program: Program, ctx: Context) -> Program:
    steps = list(program.steps)
    uses = _uses(program)
    for at in range(len(steps)):
        step = steps[at]
        if not isinstance(step, Kernel):
            continue
        for store in step.stores:
            name = store.buffer
            formula = _formula(program, uses, steps[at], store)  # type: ignore[arg-type]
            if formula is None:
                continue
            readers = [place for place in uses[name].at if place != at]
            derived = {place: _with(steps[place], name, formula) for place in readers}
            if any(found is None for found in derived.values()) or not ctx.spend(f"derive {name} where it is read"):
                continue
            for place, found in derived.items():
                steps[place] = found  # type: ignore[assignment]
            for _, _, other in formula.read:
                uses[other].at = sorted({*uses[other].at, *readers})
            steps[at] = _without(steps[at], store)  # type: ignore[arg-type]
    if all(new is old for new, old in zip(steps, program.steps, strict=True)):
        return program
    return replace(program, steps=tuple(without_dead_stores(program, steps)))


def _without(kernel: Kernel, store: Store) -> Kernel:
    ends = [op for op in kernel.body if isinstance(op, (Check, Store)) and op is not store]
    wanted = {op.name for op in definitions_for(kernel.body, ends)}
    return replace(kernel, body=tuple(op for op in kernel.body if op in ends or getattr(op, "name", None) in wanted))


@dataclass
class _Uses:
    """Of a buffer: the steps that touch it, in order; how many of them write to it."""

    at: list[int]
    writers: int = 0


def _uses(program: Program) -> dict[str, _Uses]:
    found: dict[str, _Uses] = {}
    for at, step in enumerate(program.steps):
        for name in dict.fromkeys((*step.reads, *step.writes)):
            found.setdefault(name, _Uses([])).at.append(at)
        for name in step.writes:
            found[name].writers += 1
    for view in program.outputs:
        if isinstance(view, View) and view.buffer in found:
            found[view.buffer].at.append(len(program.steps))  # the caller
    return found


class _Formula(NamedTuple):
    """Operators in order, the last one the value; and of what they begin with: name, type, the buffer it is in."""

    ops: tuple[Op, ...]
    value: str
    read: tuple[tuple[str, str, str], ...]


def _formula(program: Program, uses: dict[str, _Uses], kernel: Kernel, store: Store) -> _Formula | None:
    """How the stored value follows from what lies in memory until its last reader, at the same place."""
    name, buffer = store.buffer, program.buffers[store.buffer]
    own = uses[name]
    if buffer.kind != "temp" or own.writers != 1 or len(own.at) < 2 or own.at[-1] == len(program.steps):
        return None
    if store.update is not None or kernel.ordered or bytes_of(buffer) < _LEAST or buffer.dtype not in DTYPES:
        return None
    if sum(one.buffer == name for one in kernel.stores) != 1 or mixed_radix(store.index, kernel.axes) is None:
        return None
    known: dict[str, str] = {}
    for value, other in _in_memory(kernel, store.index):
        held = uses[other]
        by_kernel = held.writers == 1 and other in kernel.writes
        if other != name and (by_kernel or held.writers == 0) and held.at[-1] >= own.at[-1]:
            known.setdefault(value, other)
    types = {op.name: op.dtype for op in kernel.body if not isinstance(op, Store)}
    if types[store.value] != buffer.dtype or not known:
        return None
    ops = definitions_for(kernel.body, [store], known.keys())
    if store.value in known or not all(isinstance(op, (Apply, Const)) for op in ops):
        return None
    cost = sum(SCALARS[op.op].cost for op in ops if isinstance(op, Apply))
    if not ops or cost * (len(own.at) - 1) > _DEAREST:
        return None
    used = {arg for op in ops if isinstance(op, Apply) for arg in op.args}
    read = tuple((value, types[value], other) for value, other in known.items() if value in used)
    if any(dtype != program.buffers[other].dtype for _, dtype, other in read):
        return None
    return _Formula(tuple(ops), store.value, read)


def _in_memory(kernel: Kernel, index: Expr) -> Iterator[tuple[str, str]]:
    """Values that lie in a buffer at this place, and the buffer."""
    for op in kernel.body:
        if isinstance(op, Store) and op.index is index and op.update is None:
            yield op.value, op.buffer
        elif isinstance(op, Load) and op.index is index and op.mask is None:
            yield op.name, op.buffer


def _with(step: Step, buffer: str, formula: _Formula) -> Kernel | None:
    """The step with the formula in the place of what it loads from the buffer; None where it is called, or would
    compute it more than once for an element."""
    if not isinstance(step, Kernel) or step.ordered or buffer in step.writes:
        return None
    found = contraction(step)
    if step.reduced and found is None:
        return None
    if found is not None and any(
        isinstance(op, Load) and op.buffer == buffer for op in definitions_for(step.body, [found.total])
    ):
        return None  # packed once, and then again for each block
    if any(op.buffer == buffer and (op.mask is not None or op.index.values()) for op in step.loads):
        return None
    body: list[Op] = []
    for op in step.body:
        body += _computed(op, formula) if isinstance(op, Load) and op.buffer == buffer else [op]
    names = [op.name for op in body if not isinstance(op, Store)]
    made = replace(step, body=tuple(_each_load_once(body)))
    if len(body) > LARGEST_BODY or len(set(names)) < len(names) or (contraction(made) is None) != (found is None):
        return None
    return made


def _computed(load: Load, formula: _Formula) -> list[Op]:
    names = {value: f"{load.name}_{value}" for value, _, _ in formula.read}
    ops: list[Op] = [Load(names[value], dtype, other, load.index) for value, dtype, other in formula.read]
    for op in formula.ops:
        assert isinstance(op, (Apply, Const))
        names[op.name] = load.name if op.name == formula.value else f"{load.name}_{op.name}"
        if isinstance(op, Apply):
            op = replace(op, args=tuple(names[arg] for arg in op.args))
        ops.append(replace(op, name=names[op.name]))
    return ops


def _is_plain(load: Load) -> bool:
    return load.mask is None and not load.index.values()


def _each_load_once(body: Sequence[Op]) -> Iterator[Op]:
    """A place that is loaded twice is loaded the first time alone, but for what masks and places are made of, and for
    what is written here too: in between, perhaps."""
    written = {op.buffer for op in body if isinstance(op, Store)}
    placed = {name for op in body if isinstance(op, (Load, Index)) for name in operands(op)}
    placed |= {value.name for op in body if isinstance(op, Store) for value in op.index.values()}
    first: dict[tuple[str, Expr], str] = {}
    same: dict[str, str] = {}
    for op in body:
        if isinstance(op, Load) and _is_plain(op) and op.name not in placed and op.buffer not in written:
            known = first.setdefault((op.buffer, op.index), op.name)
            if known != op.name:
                same[op.name] = known
                continue
        if isinstance(op, Apply):
            op = replace(op, args=tuple(same.get(arg, arg) for arg in op.args))
        elif isinstance(op, (Check, Reduce, Scan, Store)):
            op = replace(op, value=same.get(op.value, op.value))
        yield op


__all__ = ["derive"]
