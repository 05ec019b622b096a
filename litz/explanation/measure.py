"""What a step of a program touches and computes, by its loops: at likely sizes, where they vary.

In: a kernel or a call, and the program's buffers. Out: bytes, operations on floats, and a spelling of its shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from litz.loop.dtype import DTYPES
from litz.loop.expr import Axis, Expr
from litz.loop.ir import Apply, Buffer, Call, Index, Kernel, Load, Reduce, Scan, Step, Store, View, operands, views

_FREE = ("cast", "where", "bitcast")  # of a value, and no arithmetic

# Operators that torch has no count of, and those that do the same work on the same first arguments.
_COUNTED_AS = {
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "_scaled_dot_product_flash_attention_backward",
}


def bytes_touched(step: Step, buffers: Mapping[str, Buffer]) -> int:
    """Of each buffer, what is read and what is written of it, each place once."""
    if isinstance(step, Call):
        shown = [view for view in views((step.args, step.kwargs, step.results)) if view.buffer in buffers]
        return sum(_width(buffers[v.buffer]) * math.prod(max(s.hint, 0) for s in v.sizes) for v in shown)
    places: dict[tuple[str, bool], dict[Expr, int]] = {}
    touches: tuple[Load | Store, ...] = (*step.loads, *step.stores)
    for op in touches:
        points = _points(op.index.axes()) if not op.index.values() else _points(step.axes + step.reduced)
        places.setdefault((op.buffer, isinstance(op, Store)), {})[op.index] = points
    return sum(
        _width(buffers[name]) * min(sum(found.values()), max(buffers[name].size.hint, 0))
        for (name, _), found in places.items()
    )


def flops_of(step: Step) -> int:
    if isinstance(step, Call):
        return _flops_of_call(step)
    return _flops_of_kernel(step)


def shape_of(step: Step) -> str:
    """The axes of a kernel, or the sizes of what an operator takes."""
    if isinstance(step, Kernel):
        axes = "×".join(str(a.size) for a in step.axes) or "1"
        reduced = "×".join(str(a.size) for a in step.reduced)
        return f"{axes} over {reduced}" if reduced else axes
    given = [a for a in step.args if isinstance(a, View)]
    return ", ".join("×".join(map(str, v.sizes)) or "1" for v in given)


def _flops_of_kernel(kernel: Kernel) -> int:
    """Each operator counts at as many points as its value has: what does not depend on an axis is computed once."""
    reaches: dict[str, set[Axis]] = {}
    total = 0
    for op in kernel.body:
        reach = set().union(*(reaches[name] for name in operands(op))) if operands(op) else set()
        if isinstance(op, Load):
            reach |= op.index.axes()
        elif isinstance(op, Index):
            reach |= op.expr.axes()
        if isinstance(op, Store):
            continue
        counts = isinstance(op, (Reduce, Scan)) or (isinstance(op, Apply) and op.op not in _FREE)
        if counts and DTYPES[op.dtype].kind == "float":
            total += _points(reach)
        reaches[op.name] = reach - set(kernel.reduced) if isinstance(op, Reduce) else reach
    return total


def _flops_of_call(call: Call) -> int:
    from torch.utils.flop_counter import flop_registry

    namespace, _, rest = call.target.partition("::")
    name = _COUNTED_AS.get(rest.partition(".")[0], rest.partition(".")[0])
    packet: Any = getattr(getattr(torch.ops, namespace, None), name, None)
    count = flop_registry.get(packet)
    if count is None:
        return 0
    results = [_shape(result) for result in call.results]
    given = [_shape(a) for a in call.args]
    named = {name: _shape(a) for name, a in call.kwargs}
    try:
        return int(count(*given, **named, out_val=results[0] if len(results) == 1 else results))
    except Exception:  # what it takes is no part of torch's promises
        return 0


def _shape(arg: Any) -> Any:
    if isinstance(arg, View):
        return torch.Size([max(s.hint, 0) for s in arg.sizes])
    return arg.hint if isinstance(arg, Expr) else arg


def _points(axes: Any) -> int:
    return math.prod(max(axis.size.hint, 0) for axis in axes)


def _width(buffer: Buffer) -> int:
    known = DTYPES.get(buffer.dtype)
    return known.bytes if known is not None else getattr(torch, buffer.dtype.removeprefix("torch.")).itemsize


__all__ = ["bytes_touched", "flops_of", "shape_of"]
