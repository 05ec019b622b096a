"""How long a run of a program takes, at the machine's ceilings.

In: a program in order, and how fast its machine computes and moves bytes at best. Out: seconds, the sum over its steps
of whichever takes longer: the operations of a step, or the bytes that it touches.

It is a lower bound, and good for comparing programs that do the same: what one computes twice, it counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from litz.graph.partition.cost import Ceilings, flops_of
from litz.loop.contraction import contraction
from litz.loop.dtype import DTYPES
from litz.loop.ir import Call, Expr, Kernel, Program, View, views


def duration(program: Program, machine: Ceilings) -> float:
    return sum(
        machine.seconds(*(_of_kernel(step, program) if isinstance(step, Kernel) else _of_call(step)))
        for step in program.steps
    )


def _of_kernel(kernel: Kernel, program: Program) -> tuple[float, float]:
    """Operations and bytes. Of a buffer, no more is touched than there are steps that touch it."""
    steps = math.prod(axis.size.hint for axis in (*kernel.axes, *kernel.reduced))
    touched = 0
    for name in (*kernel.reads, *kernel.writes):
        buffer = program.buffers[name]
        touched += min(max(buffer.size.hint, 0), steps) * _width(buffer.dtype)
    return (2.0 * steps if contraction(kernel) is not None else 0.0), touched


def _of_call(call: Call) -> tuple[float, float]:
    read = views((call.args, tuple(value for _, value in call.kwargs)))
    made = [view for view in call.results if view is not None]
    moved = sum(math.prod(_shape(view)) * _width(view.dtype) for view in (*read, *made))
    return _flops(call, made), moved


def _flops(call: Call, made: Iterable[View]) -> float:
    namespace, _, rest = call.target.partition("::")
    packet = getattr(getattr(torch.ops, namespace), rest.partition(".")[0], None)
    shapes = tuple(torch.Size(_shape(view)) for view in made)
    args = [_with_sizes(arg) for arg in call.args]
    return flops_of(packet, args, {}, shapes[0] if len(shapes) == 1 else shapes)


def _with_sizes(arg: Any) -> Any:
    if isinstance(arg, View):
        return torch.Size(_shape(arg))
    if isinstance(arg, Expr):
        return arg.hint
    return [_with_sizes(a) for a in arg] if isinstance(arg, (tuple, list)) else arg


def _shape(view: View) -> list[int]:
    return [max(size.hint, 0) for size in view.sizes]


def _width(dtype: str) -> int:
    known = DTYPES.get(dtype)
    return known.bytes if known is not None else int(getattr(torch, dtype.removeprefix("torch.")).itemsize)


__all__ = ["duration"]
