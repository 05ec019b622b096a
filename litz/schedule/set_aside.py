"""Set aside: an input that is written to, and then decides whether the call fails, is written to last.

In: a program in order. Out: the same, where such writes go to a copy, and what they have made reaches the input at the
end. A call that fails has then changed nothing, and the user's own function runs in its place (`check_first.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from litz.loop.expr import Axis, Expr, expr
from litz.loop.ir import Buffer, Call, Kernel, Load, Op, Program, Step, Store, View

_MOST = 1 << 16  # elements that are copied


def set_aside(
    program: Program, may_fail: Callable[[Step], bool], fails_while_writing: Callable[[Step], bool]
) -> Program:
    for name, buffer in list(program.buffers.items()):
        if buffer.kind == "input" and _is_small(buffer):
            writers = [at for at, step in enumerate(program.steps) if name in step.writes]
            if writers and _decides(program.steps, writers, name, may_fail, fails_while_writing):
                program = _aside(program, buffer, [program.steps[at] for at in writers])
    return program


def _is_small(buffer: Buffer) -> bool:
    """Positions and names of tokens are; a cache is not, and is not copied for an error's sake."""
    return buffer.size.int <= _MOST if buffer.size.is_int else buffer.dtype in ("i32", "i64")


def _decides(
    steps: Sequence[Step], writers: Sequence[int], name: str, may_fail: Callable[[Step], bool],
    fails_while_writing: Callable[[Step], bool],
) -> bool:  # fmt: skip
    """Whether a step that writes there may fail itself, or one that reads what such a step made, or what was made of
    that."""
    if any(fails_while_writing(steps[at]) for at in writers):
        return True
    made: set[str] = set()
    for step in steps[writers[0] :]:
        reads = not made.isdisjoint(step.reads)
        if reads and may_fail(step):
            return True
        if reads or name in step.writes:
            made.update(step.writes)
    return False


def _aside(program: Program, buffer: Buffer, writers: Sequence[Step]) -> Program:
    stores = [op for step in writers if isinstance(step, Kernel) for op in step.stores if op.buffer == buffer.name]
    if any(isinstance(step, Call) for step in writers) or any(op.update or op.index.values() for op in stores):
        return program  # where it writes is not known ahead
    copy = replace(buffer, name=f"{buffer.name}_aside", kind="temp")
    everywhere = expr(Axis("i0", buffer.size))
    kept = _moved(f"keep_{buffer.name}", buffer.dtype, buffer.name, copy.name, everywhere)
    back = [
        _moved(f"return_{buffer.name}_{number}", buffer.dtype, copy.name, buffer.name, store.index)
        for number, store in enumerate(stores)
    ]
    first = program.steps.index(writers[0])
    steps = [_renamed(step, buffer.name, copy.name) for step in program.steps[first:]]
    return replace(
        program,
        buffers={**program.buffers, copy.name: copy},
        steps=(*program.steps[:first], kept, *steps, *back),
    )


def _moved(name: str, dtype: str, source: str, to: str, index: Expr) -> Kernel:
    axes = tuple(sorted(index.axes(), key=lambda axis: axis.name))
    return Kernel(name, axes, (), (Load("moved", dtype, source, index), Store(to, index, "moved")))


def _renamed(step: Step, old: str, new: str) -> Step:
    if isinstance(step, Kernel):
        return replace(step, body=tuple(_op_renamed(op, old, new) for op in step.body))
    given = _views_renamed((step.args, step.kwargs, step.results), old, new)
    return replace(step, args=given[0], kwargs=given[1], results=given[2])


def _op_renamed(op: Op, old: str, new: str) -> Op:
    return replace(op, buffer=new) if isinstance(op, (Load, Store)) and op.buffer == old else op


def _views_renamed(arg: Any, old: str, new: str) -> Any:
    if isinstance(arg, View):
        return replace(arg, buffer=new) if arg.buffer == old else arg
    return tuple(_views_renamed(item, old, new) for item in arg) if isinstance(arg, tuple) else arg


__all__ = ["set_aside"]
