"""The loop IR as text: `parse_program(print_program(p)) == p`, where `parse.py` reads it back.

In: a `Program` or a `Kernel`. Out: the loop nest a person would write.

    sizes s0 ~ 512 from input 0 dim 0
    program(x: f32[768*s0]) -> (y: f32[s0, 768])
    buffer y: f32[768*s0] output
    kernel centre  # origins: sub
      for i0 < s0 parallel, r0 < 768 reduce:
        v0: f32 = load x[768*i0 + r0]
        v1: f32 = reduce sum v0
        ...
        store y[768*i0 + r0] = v4
    call c0 = aten::relu_(y: f32[s0, 768]) -> () mutates y why "in place"

The one idea: an index is written as Python would read it and is parsed by doing the arithmetic, so it
comes back as the same interned `Expr`. A size is declared with a likely value, by which choices are made,
and with where it comes from: an input that is a number, or a dimension of a tensor. What a line leaves out
follows from the lines above it: a value used in an index is limited by the `check` that made it; a window
without `stride` is contiguous.
`origins` are comments, and are not read back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from litz.loop.exact import spelled
from litz.loop.expr import ZERO, Expr, Size
from litz.loop.formula import Formula
from litz.loop.ir import (
    Arg,
    Buffer,
    Call,
    Check,
    Const,
    Index,
    Kernel,
    Load,
    Number,
    NumberSource,
    Op,
    Program,
    Reduce,
    Scan,
    SizeSource,
    Store,
    View,
    contiguous,
    views,
)  # fmt: skip

LINE_LENGTH = 110
BUFFER_KINDS = ("input", "output", "temp", "number")


def print_program(program: Program) -> str:
    declared: set[str] = set()
    arguments = []
    for name in program.inputs:
        buffer = program.buffers.get(name) if name is not None else None
        if buffer is not None and buffer.kind == "input" and name not in declared:
            declared.add(buffer.name)
            arguments.append(_print_buffer(buffer))
        else:
            arguments.append(name or "None")
    lines = _print_sizes(program_exprs(program), program.sizes) + _print_numbers(program.numbers)
    head = _wrap("program(", arguments, ")")
    lines.append(_wrap(f"{head} -> (", [print_arg(a) for a in program.outputs], ")"))
    lines += [f"buffer {_print_buffer(b)} {b.kind}" for b in program.buffers.values() if b.name not in declared]
    for step in program.steps:
        lines += _print_kernel(step) if isinstance(step, Kernel) else [print_call(step)]
    return "\n".join(lines) + "\n"


def print_kernel(kernel: Kernel, buffers: Mapping[str, Buffer]) -> str:
    """One kernel with the buffers it touches, so that the text stands on its own."""
    touched = [buffers[name] for name in dict.fromkeys((*kernel.reads, *kernel.writes))]
    lines = _print_sizes([*(b.size for b in touched), *_kernel_exprs(kernel)])
    lines += [f"buffer {_print_buffer(b)} {b.kind}" for b in touched]
    return "\n".join(lines + _print_kernel(kernel)) + "\n"


def print_op(op: Op) -> str:
    if isinstance(op, Store):
        how = "store" if op.update is None else f"update {op.update}"
        return f"{how} {op.buffer}[{op.index}] = {op.value}"
    if isinstance(op, Load):
        masked = "" if op.mask is None else f" if {op.mask}"
        meaning = f"load {op.buffer}[{op.index}]{masked}"
    elif isinstance(op, Const):
        meaning = f"const {spelled(op.value)}"
    elif isinstance(op, Index):
        meaning = f"index {op.expr}"
    elif isinstance(op, Check):
        # `0 <= v` where a negative index is wrong; without it, one counts from the end.
        meaning = f"check {'' if op.wrap else '0 <= '}{op.value} < {op.limit}"
        meaning += "" if op.fault == "index" else f" else {op.fault}"
    elif isinstance(op, Reduce):
        meaning = f"reduce {op.kind} {op.value}"
    elif isinstance(op, Scan):
        meaning = f"scan {op.kind} {op.value}"
    else:
        meaning = f"{op.op} {', '.join(op.args)}"
    return f"{op.name}: {op.dtype} = {meaning}"


def print_call(call: Call) -> str:
    items = [print_arg(a) for a in call.args] + [f"{name}={print_arg(a)}" for name, a in call.kwargs]
    text = _wrap(f"call {call.name} = {call.target}(", items, ")")
    text = _wrap(f"{text} -> (", [print_arg(v) for v in call.results], ")")
    if call.mutates:
        text += f" mutates {', '.join(call.mutates)}"
    if call.why:
        text += f" why {json.dumps(call.why)}"
    return text + _print_origins(call.origins)


def print_arg(arg: Arg) -> str:
    if isinstance(arg, View):
        shape = f"{arg.buffer}: {arg.dtype}{_list(arg.sizes)}"
        stride = "" if arg.strides == contiguous(arg.sizes) else f" stride {_list(arg.strides)}"
        offset = "" if arg.offset is ZERO else f" offset {arg.offset}"
        return shape + stride + offset
    if isinstance(arg, Expr):
        return f"{{{arg}}}"
    if isinstance(arg, Number):
        return f"number {arg.name}"
    if arg is None or isinstance(arg, (bool, int, float)):
        return spelled(arg)
    if isinstance(arg, complex):
        return f"complex({spelled(arg.real)}, {spelled(arg.imag)})"
    if isinstance(arg, str):
        return json.dumps(arg)
    if isinstance(arg, tuple):
        return f"({', '.join(map(print_arg, arg))}{',' * (len(arg) == 1)})"
    if isinstance(arg, list):
        return f"[{', '.join(map(print_arg, arg))}]"
    import torch

    if isinstance(arg, torch.device):
        return f'torch.device("{arg}")'
    if isinstance(arg, (torch.dtype, torch.layout, torch.memory_format)):
        return str(arg)
    raise TypeError(f"{arg!r} has no spelling in the loop IR's text (a {type(arg).__name__} is not serialisable)")


def _print_buffer(buffer: Buffer) -> str:
    return f"{buffer.name}: {buffer.dtype}[{buffer.size}]"


def _print_kernel(kernel: Kernel) -> list[str]:
    axes = [f"{a.name} < {a.size} parallel" for a in kernel.axes]
    axes += [f"{a.name} < {a.size} reduce" for a in kernel.reduced]
    nest = f"  for {', '.join(axes)}:" if axes else "  once:"
    body = [f"    {print_op(op)}" for op in kernel.body]
    return [f"kernel {kernel.name}{_print_origins(kernel.origins)}", nest, *body]


def _print_origins(origins: tuple[str, ...]) -> str:
    return f"  # origins: {', '.join(origins)}".replace("\n", " ") if origins else ""


def _print_sizes(exprs: Iterable[Expr], sources: Iterable[SizeSource] = ()) -> list[str]:
    """Those with a source in the order in which the program takes them, then the others by name."""
    known = {a.name: a for e in exprs for a in e.atoms() if isinstance(a, Size)}
    places = {s.name: _print_source(s.input, s.formula) + ("" if s.dim is None else f" dim {s.dim}") for s in sources}
    declared = []
    for name in dict.fromkeys((*places, *sorted(known))):
        size = known.get(name)
        about = "" if size is None else f" ~ {size.hint}"
        if size is not None and size.least != 1:
            about += " least any" if size.least is None else f" least {size.least}"
        own = "" if size is None or size.formula is None else _print_source(None, size.formula)
        declared.append(name + about + places.get(name, own))
    return [f"sizes {', '.join(declared)}"] if declared else []


def _print_numbers(sources: Iterable[NumberSource]) -> list[str]:
    declared = [s.name + _print_source(s.input, s.formula) for s in sources]
    return [f"numbers {', '.join(declared)}"] if declared else []


def _print_source(position: int | None, formula: Formula | None) -> str:
    if position is not None:
        return f" from input {position}"
    return "" if formula is None else f" is {json.dumps(formula.text)}"


def program_exprs(program: Program) -> Iterator[Expr]:
    """Every index expression of the program."""
    yield from (b.size for b in program.buffers.values())
    yield from _arg_exprs(program.outputs)
    for step in program.steps:
        if isinstance(step, Kernel):
            yield from _kernel_exprs(step)
        else:
            yield from _arg_exprs((step.args, step.kwargs, step.results))


def _kernel_exprs(kernel: Kernel) -> Iterator[Expr]:
    yield from (a.size for a in (*kernel.axes, *kernel.reduced))
    for op in kernel.body:
        if isinstance(op, (Load, Store)):
            yield op.index
        elif isinstance(op, Index):
            yield op.expr
        elif isinstance(op, Check):
            yield op.limit


def _arg_exprs(arg: Arg) -> Iterator[Expr]:
    for view in views(arg):
        yield from (*view.sizes, *view.strides, view.offset)
    if isinstance(arg, Expr):
        yield arg
    elif isinstance(arg, (tuple, list)):
        for item in arg:
            if not isinstance(item, View):
                yield from _arg_exprs(item)


def _wrap(head: str, items: list[str], tail: str) -> str:
    """On one line where it fits, else an item a line."""
    line = head + ", ".join(items) + tail
    if len(line) - line.rfind("\n") <= LINE_LENGTH or not items:
        return line
    return head + "\n" + ",\n".join(f"    {item}" for item in items) + tail


def _list(items: Iterable[Expr]) -> str:
    return f"[{', '.join(map(repr, items))}]"
