"""Render a program: LLVM text for its kernels, each different one once, and for its host functions.

In: a scheduled `Program` and its `Layout`. Out: a `Rendering`: the text of several modules, and what is to be run in
which order, native stretches and the operators called between them.

A kernel is a module of its own, and named by its text. Whoever needs the same kernel, in this program or another one,
needs the same text, so object code can be kept by it; and modules are built side by side.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain

from litz.codegen.llvm import batch, contract, host, loops, microkernel, shim, team, tiles
from litz.codegen.llvm.rendered import Rendered
from litz.codegen.llvm.tiling import tiling
from litz.codegen.llvm.writer import Module
from litz.codegen.plan import Native, Run
from litz.codegen.rows import work_of
from litz.context import Context
from litz.loop.contraction import contraction
from litz.loop.flat import elements, flat_form
from litz.loop.ir import Call, Kernel, Load, Program, Step, Store
from litz.schedule.memory import Layout
from litz.target import Target


@dataclass(frozen=True)
class Rendering:
    modules: tuple[str, ...]  # the kernels, the functions they share, and last the host functions
    runs: tuple[tuple[int, Run], ...]  # what is run, in order, and the step each begins with
    slots: dict[str, int]
    launches: int
    kernels: int  # different ones
    workspace: int  # bytes, for all threads together

    def text(self) -> str:
        return "\n".join(self.modules)


def render(
    program: Program, layout: Layout, ctx: Context, written: Callable[[str], None] = lambda module: None
) -> Rendering:
    """`written` is told each module as soon as it is there."""
    module = Module(ctx.target.function_bytes)
    native = shim.native_calls(program)
    slots = _slots(program, native)
    held: dict[int, list[str]] = {}  # step -> buffers whose handles native code holds until then
    overdue: list[str] = []  # of these, the ones that an operator called from Python was the last to use
    sizes = tuple(s.name for s in program.sizes)
    kernels = _Kernels(program, ctx.target, module, sizes, written)
    runs: list[tuple[int, Run]] = []
    begun = 0
    writer: host.HostWriter | None = None

    def close() -> None:
        nonlocal writer
        if writer is not None:
            writer.finish()
            runs.append((begun, Native(writer.name)))
            writer = None

    for positions in batch.batches(program, layout):
        at = positions[0]
        step = program.steps[at]
        if at in layout.pauses:
            close()
        if isinstance(step, Call) and step.name not in native:
            close()
            runs.append((at, step))
            overdue += held.pop(at, [])
            continue
        if writer is None:
            begun = at
            writer = host.HostWriter(module, f"run{len(runs)}", slots, ctx.target.threads, sizes)
        elif at == layout.first_effect:
            writer.stop_if_failed([*overdue, *chain.from_iterable(held.values())])
        if isinstance(step, Call):
            for name in writer.call(step):
                held.setdefault(layout.last_use[name], []).append(name)
        else:
            writer.launch([kernels.launch(program.steps[position], len(positions) > 1) for position in positions])
        writer.release([*overdue, *(name for position in positions for name in held.pop(position, ()))])
        overdue = []
    if not program.steps:  # outputs may still have to be made
        writer = host.HostWriter(module, "run0", slots, ctx.target.threads, sizes)
    close()
    modules = (*kernels.modules, *map(microkernel.text, kernels.tiles), module.text())
    workspace = kernels.workspace * ctx.target.threads
    return Rendering(modules, tuple(runs), slots, kernels.launches, len(kernels.built), workspace)


_UNNAMED = "kernel"  # what a kernel is called until its text is known


def _named(text: str) -> tuple[str, str]:
    """A name for the kernel of a module, made of the module's text, and the text with that name in it."""
    name = f"k_{blake2b(text.encode(), digest_size=8).hexdigest()}"
    return name, re.sub(rf"@{_UNNAMED}\b", f"@{name}", text)


class _Kernels:
    """The kernels of a program, each different one built once."""

    def __init__(
        self, program: Program, target: Target, module: Module, sizes: tuple[str, ...], written: Callable[[str], None]
    ):
        self.buffers, self.target, self.module, self.sizes = program.buffers, target, module, sizes
        self._written = written
        self.built: dict[tuple, Rendered] = {}
        self.modules: dict[str, None] = {}
        self.tiles: dict[microkernel.Tile, None] = {}
        self.launches = 0
        self.workspace = 0  # bytes a thread
        self._parts: set[str] = set()  # those that stand in batches
        self._flat = self._shared_flat_forms(program)

    def launch(self, step: Step, batched: bool) -> host.Launch:
        """The step, a kernel, as a function that is there, its units of work, and the buffers it takes."""
        assert isinstance(step, Kernel)
        flat = self._flat.get(step.name)
        order = tuple(dict.fromkeys((*step.reads, *step.writes)))
        shared = _anonymous(flat or step, order)
        types = tuple((self.buffers[b].dtype, None if flat else self.buffers[b].size) for b in order)
        key = (shared.axes, shared.reduced, shared.body, types, flat is None)
        kernel = self.built.get(key)
        if kernel is None:
            kernel = self.built[key] = self._build(shared, order, flat is not None)
        if flat is not None:
            kernel = replace(kernel, units=elements(step), work=work_of(step))
        if batched and kernel.name not in self._parts:
            if not self._parts:
                batch.write_walk(self.module)
            self._parts.add(kernel.name)
            batch.write_part(self.module, kernel)
        self.launches += 1
        self.workspace = max(self.workspace, kernel.workspace)
        names = dict(zip((f"b{i}" for i in range(len(order))), order, strict=True))
        return host.Launch(kernel, tuple(names[b] for b in kernel.buffers))

    def _build(self, kernel: Kernel, order: tuple[str, ...], flat: bool) -> Rendered:
        buffers = {f"b{i}": replace(self.buffers[b], name=f"b{i}") for i, b in enumerate(order)}
        module = Module(self.target.function_bytes)
        around = (buffers, self.target, module, _UNNAMED, self.sizes)
        product = contraction(kernel)
        tile = None if flat else tiling(kernel, self.target)
        packed = math.inf if product is None else contract.cycles(product, kernel, self.target)
        if tile is not None and tile.cycles < packed:
            rendered = tiles.render(kernel, tile, *around)
        elif product is not None:
            rendered, called = contract.render(kernel, product, *around)
            for used in called:
                if used not in self.tiles:
                    self.tiles[used] = None
                    self._written(microkernel.text(used))
        else:
            rendered = (loops.render_flat if flat else loops.render)(kernel, *around)
        team.write_team_body(module, rendered)
        name, text = _named(module.text())
        self.modules[text] = None
        self._written(text)
        return replace(rendered, name=name)

    def _shared_flat_forms(self, program: Program) -> dict[str, Kernel]:
        """Step -> its flat form, where steps of other lengths share it: one that stands alone is better off with a
        length that is known."""
        found: dict[tuple, list[tuple[Kernel, Kernel]]] = {}
        for step in program.kernels:
            flat = flat_form(step)
            if flat is not None:
                order = tuple(dict.fromkeys((*step.reads, *step.writes)))
                types = tuple(program.buffers[b].dtype for b in order)
                found.setdefault((_anonymous(flat, order).body, types), []).append((step, flat))
        return {
            step.name: flat
            for group in found.values()
            if len({elements(step) for step, _ in group}) > 1
            for step, flat in group
        }


def _slots(program: Program, native: frozenset[str]) -> dict[str, int]:
    """A place in the table of pointers for each buffer, the inputs first, and for each handle native code holds."""
    inputs = [name for name in program.inputs if name is not None]
    names = list(dict.fromkeys((*inputs, *program.buffers)))
    for call in program.calls:
        if call.name in native:
            names += [shim.handle_slot(v.buffer) for v in call.results if v is not None]
    return {name: i for i, name in enumerate(names)}


def _anonymous(kernel: Kernel, order: tuple[str, ...]) -> Kernel:
    """The kernel with its buffers numbered, so that equal work on other buffers is the same value."""
    number = {b: f"b{i}" for i, b in enumerate(order)}
    body = tuple(replace(op, buffer=number[op.buffer]) if isinstance(op, (Load, Store)) else op for op in kernel.body)
    return replace(kernel, body=body)
