"""Render a program: LLVM text for its kernels, each different one once, and for its host functions.

In: a scheduled `Program` and its `Layout`. Out: a `Rendering`: the module's text and the plan the
runtime follows, native stretches and the operators called between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Union

from litz.codegen import host, shim
from litz.codegen.llvm import contract, loops, microkernel
from litz.codegen.llvm.loops import Rendered
from litz.codegen.llvm.writer import Module
from litz.context import Context
from litz.loop.contraction import contraction
from litz.loop.ir import Buffer, Call, Kernel, Load, Program, Store
from litz.schedule.memory import Layout


@dataclass(frozen=True)
class Native:
    """A stretch of steps that one host function runs."""

    function: str


Item = Union[Native, Call]


@dataclass(frozen=True)
class Rendering:
    text: str
    plan: tuple[Item, ...]
    starts: tuple[int, ...]  # the step each item of the plan begins with
    slots: dict[str, int]
    launches: int
    kernels: int  # different ones
    workspace: int  # bytes, for all threads together
    libraries: tuple[tuple[str, str], ...]  # functions that depend on the machine alone: name and module text


def render(program: Program, layout: Layout, ctx: Context) -> Rendering:
    module = Module(ctx.target.function_bytes)
    host.declare_runtime(module)
    native = shim.native_calls(program)
    slots = _slots(program, native)
    held: dict[str, int] = {}  # buffers whose handles native code holds -> step of their last use
    threads = ctx.target.threads
    sizes = tuple(s.name for s in program.sizes)
    built: dict[tuple, Rendered] = {}
    plan: list[Item] = []
    starts: list[int] = []
    writer: host.HostWriter | None = None
    tiles: dict[microkernel.Tile, None] = {}
    launches = 0
    workspace = 0

    def close() -> None:
        nonlocal writer
        if writer is not None:
            writer.finish()
            plan.append(Native(writer.name))
            writer = None

    for at, step in enumerate(program.steps):
        if at in layout.pauses:
            close()
        if isinstance(step, Call) and step.name not in native:
            close()
            plan.append(step)
            starts.append(at)
            continue
        if writer is None:
            starts.append(at)
            writer = host.HostWriter(module, f"run{len(plan)}", slots, threads, sizes)
        if isinstance(step, Call):
            held.update((name, layout.last_use[name]) for name in writer.call(step))
            writer.release(_dead(held, at))
            continue
        shape, order, shared = _anonymous(step, program.buffers)
        kernel = built.get(shape)
        if kernel is None:
            name = f"k{len(built)}_{step.name}"
            product = contraction(shared)
            if product is not None:
                named = _renamed(order, program.buffers)
                kernel, called = contract.render(shared, product, named, ctx.target, module, name, sizes)
                tiles.update(dict.fromkeys(called))
            else:
                kernel = loops.render(shared, _renamed(order, program.buffers), ctx.target, module, name, sizes)
            host.write_team_body(module, kernel, sizes)
            built[shape] = kernel
        names = dict(zip((f"b{i}" for i in range(len(order))), order, strict=True))
        writer.launch(kernel, tuple(names[b] for b in kernel.buffers))
        launches += 1
        workspace = max(workspace, kernel.workspace * threads)
        writer.release(_dead(held, at))
    close()
    return Rendering(
        module.text(),
        tuple(plan),
        tuple(starts),
        slots,
        launches,
        len(built),
        workspace,
        tuple((t.name, microkernel.text(t)) for t in tiles),
    )


def _slots(program: Program, native: frozenset[str]) -> dict[str, int]:
    """A place in the table of pointers for each buffer, the inputs first, and for each handle native code holds."""
    inputs = [name for name in program.inputs if name is not None]
    names = list(dict.fromkeys((*inputs, *program.buffers)))
    for call in program.calls:
        if call.name in native:
            names += [shim.handle_slot(v.buffer) for v in call.results if v is not None]
    return {name: i for i, name in enumerate(names)}


def _dead(held: dict[str, int], at: int) -> list[str]:
    """Take out of `held` the buffers that no step after `at` uses."""
    names = [name for name, last in held.items() if last <= at]
    for name in names:
        del held[name]
    return names


def _anonymous(kernel: Kernel, buffers: dict[str, Buffer]) -> tuple[tuple, tuple[str, ...], Kernel]:
    """The kernel with its buffers numbered, so that equal work on other buffers is the same value."""
    order = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
    number = {b: f"b{i}" for i, b in enumerate(order)}
    body = tuple(replace(op, buffer=number[op.buffer]) if isinstance(op, (Load, Store)) else op for op in kernel.body)
    types = tuple((buffers[b].dtype, buffers[b].size) for b in order)
    return (kernel.axes, kernel.reduced, body, types), order, replace(kernel, body=body)


def _renamed(order: tuple[str, ...], buffers: dict[str, Buffer]) -> dict[str, Buffer]:
    return {f"b{i}": replace(buffers[b], name=f"b{i}") for i, b in enumerate(order)}
