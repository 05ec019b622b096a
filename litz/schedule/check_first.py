"""Check first: what can fail is done before anything that the caller could see.

In: a program in order. Out: the same, where indices taken from data are checked, and operators that may raise are
called, before the first step with an effect: one that writes to an input, or draws random numbers. A call that fails
has then changed nothing, and the user's own function can run in its place, on what it would have found.

An index is checked by a small kernel of its own, over the axes of the index alone, as soon as the index is there. An
input that is written to and decides what fails is set aside first (`set_aside.py`); what comes of a random number stays
behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from litz.loop.expr import Axis, Expr, expr
from litz.loop.ir import (
    Buffer,
    Call,
    Check,
    Const,
    Definition,
    Index,
    Kernel,
    Load,
    Program,
    Reduce,
    Scan,
    Step,
    Store,
    contiguous,
    definitions_for,
)
from litz.loop.operator import operator_named, taken_apart
from litz.schedule.set_aside import set_aside

# Operators that do not look at the values they are given.
_CANNOT_FAIL = {
    "mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "cumsum", "sort", "topk",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
}  # fmt: skip


# These look at each element when its turn has come, and others have been drawn for by then.
_LOOKS_WHILE_DRAWING = {"bernoulli", "poisson", "binomial"}
_DRAWS_NOTHING = {"_scaled_dot_product_flash_attention_for_cpu"}  # whatever its tags say: it takes no dropout


def check_first(program: Program) -> Program:
    effects = [step for step in program.steps if has_effect(program, step)]
    if not effects:
        return program
    program = set_aside(program, may_fail, _fails_while_writing)
    buffers = dict(program.buffers)
    steps: list[Step] = []
    seen: set[tuple] = set()
    checked: set[str] = set()  # kernels that cannot fail any more
    for step in program.steps:
        made = _checks_of(step) if isinstance(step, Kernel) else None
        if made is not None:
            checked.add(step.name)
        if made is not None and (made.axes, made.body) not in seen:
            seen.add((made.axes, made.body))
            sizes = tuple(axis.size for axis in made.axes)
            scratch = Buffer(f"checked_{len(seen)}", "b1", _product(sizes))
            buffers[scratch.name] = scratch
            steps.append(replace(made, body=(*made.body, *_marks(scratch.name, made.axes, sizes))))
        steps.append(step)
    program = replace(program, buffers=buffers, steps=tuple(steps))
    return replace(program, steps=tuple(_moved_ahead(program, checked)))


def has_effect(program: Program, step: Step) -> bool:
    """Whether the caller can see that the step was run, besides by its results."""
    return any(program.buffers[name].kind == "input" for name in step.writes) or draws(step)


def first_effect(program: Program) -> int | None:
    return next((at for at, step in enumerate(program.steps) if has_effect(program, step)), None)


def draws(step: Step) -> bool:
    """Whether it is an operator that takes from torch's stream of random numbers."""
    if not isinstance(step, Call):
        return False
    operator = operator_named(step.target)
    if torch.Tag.nondeterministic_seeded not in operator.tags or taken_apart(step.target).name in _DRAWS_NOTHING:
        return False
    names = [argument.name for argument in operator._schema.arguments]
    if "dropout_p" not in names:
        return True
    # Of fused attention: the tag is for its dropout alone.
    at = names.index("dropout_p")
    return (step.args[at] if at < len(step.args) else dict(step.kwargs).get("dropout_p", 0.0)) != 0.0


def looks_before_it_draws(program: Program, call: Call) -> bool:
    """Whether a call that draws has done nothing where it fails: it refuses a share or a spread that is none."""
    if taken_apart(call.target).name in _LOOKS_WHILE_DRAWING or not draws(call):
        return False
    return not any(program.buffers[name].kind == "input" for name in call.writes)


def _checks_of(kernel: Kernel) -> Kernel | None:
    """The kernel's checks and what they rest on, without a store; None where that is nothing, or takes a total."""
    checks = [op for op in kernel.body if isinstance(op, Check)]
    wanted = {op.name for op in (*definitions_for(kernel.body, checks), *checks)}
    body = tuple(op for op in kernel.body if not isinstance(op, Store) and op.name in wanted)
    if not checks or any(isinstance(op, (Reduce, Scan)) for op in body):
        return None
    used = {axis for op in body for axis in _axes_of(op)}
    axes = tuple(axis for axis in (*kernel.axes, *kernel.reduced) if axis in used)
    return Kernel(f"{kernel.name}_checks", axes, (), body, kernel.origins)


def _axes_of(op: Definition) -> Iterable[Axis]:
    if isinstance(op, Load):
        return op.index.axes()
    return op.expr.axes() if isinstance(op, Index) else ()


def _marks(buffer: str, axes: tuple[Axis, ...], sizes: tuple[Expr, ...]) -> tuple[Const, Store]:
    """A kernel stores something."""
    place = sum((axis * stride for axis, stride in zip(map(expr, axes), contiguous(sizes), strict=True)), expr(0))
    return Const("checked", "b1", True), Store(buffer, place, "checked")


def _product(sizes: Iterable[Expr]) -> Expr:
    total = expr(1)
    for size in sizes:
        total = total * size
    return total


def _moved_ahead(program: Program, checked: set[str]) -> list[Step]:
    """What may fail, and what it takes, before all else; but for what comes of an effect."""
    steps = program.steps
    before = dependences(steps)
    behind: set[int] = set()  # effects, and what must come after them
    for at, step in enumerate(steps):
        if has_effect(program, step) or not behind.isdisjoint(before[at]):
            behind.add(at)
    ahead: set[int] = set()
    for at in reversed(range(len(steps))):
        if at in ahead or (at not in behind and steps[at].name not in checked and may_fail(steps[at])):
            ahead.add(at)
            ahead |= before[at]
    return [steps[at] for at in sorted(ahead)] + [step for at, step in enumerate(steps) if at not in ahead]


def may_fail(step: Step) -> bool:
    if isinstance(step, Kernel):
        return any(isinstance(op, Check) for op in step.body)
    return taken_apart(step.target).name not in _CANNOT_FAIL


def _fails_while_writing(step: Step) -> bool:
    """Whether it is a kernel with checks that cannot be made a kernel of their own."""
    return isinstance(step, Kernel) and may_fail(step) and _checks_of(step) is None


def dependences(steps: Sequence[Step]) -> list[set[int]]:
    """For each step, those that it must come after, at least the latest of each kind."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    last_drawn: int | None = None
    found: list[set[int]] = []
    for at, step in enumerate(steps):
        before = {writer[name] for name in (*step.reads, *step.writes) if name in writer}
        for name in step.writes:
            before.update(readers.pop(name, ()))
        if draws(step):
            before |= set() if last_drawn is None else {last_drawn}
            last_drawn = at
        for name in step.reads:
            readers.setdefault(name, []).append(at)
        for name in step.writes:
            writer[name] = at
        found.append(before - {at})
    return found


__all__ = [
    "check_first", "dependences", "draws", "first_effect", "has_effect", "looks_before_it_draws", "may_fail",
]  # fmt: skip
