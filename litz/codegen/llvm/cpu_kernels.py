"""The kernels of a program for a CPU, each different one built once, and the calls that run them.

In: the program's kernels. Out: the text of their modules, and, in a host function, what starts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from litz.codegen.far import far_inputs, far_of
from litz.codegen.llvm import batch, contract, looked_up, loops, microkernel, tiles
from litz.codegen.llvm.host import HostWriter
from litz.codegen.llvm.naming import UNNAMED, Named, anonymous, named
from litz.codegen.llvm.rendered import Rendered
from litz.codegen.llvm.team import PARALLEL_WORK, call_text, declare_kernel, start_team, threads_for, write_team_body
from litz.codegen.llvm.tiling import tiling
from litz.codegen.llvm.writer import Dialect, Module
from litz.codegen.product import Tile, cycles, packed_panels, plan_product
from litz.codegen.rows import work_of
from litz.loop.contraction import contraction
from litz.loop.flat import elements, flat_form
from litz.loop.ir import Kernel, Program, Step
from litz.schedule.memory import Layout
from litz.target import Target


@dataclass(frozen=True)
class Launch:
    """A kernel's function, and the buffers that stand for its own, in the same order."""

    kernel: Rendered
    buffers: tuple[str, ...]


class CpuKernels:
    """The kernels of a program, each different one built once."""

    def __init__(
        self, program: Program, target: Target, module: Module, sizes: tuple[str, ...], written: Callable[[str], None]
    ):
        self.program, self.target, self.module, self.sizes = program, target, module, sizes
        self.buffers = program.buffers
        self._written = written
        self.built: dict[tuple, Rendered] = {}
        self.named: dict[str, Named] = {}  # by the names of their functions
        self.functions: dict[str, str] = {}  # step -> its function
        self._modules: dict[str, None] = {}
        self.tiles: dict[Tile, None] = {}
        self.launches = 0
        self._workspace = 0  # bytes a thread
        self.in_workspace: set[str] = set()  # steps that use it
        self._parts: set[str] = set()  # those that stand in batches
        self._flat = self._shared_flat_forms(program)
        self._far = far_inputs(program, target.last_cache_bytes)

    @property
    def modules(self) -> tuple[str, ...]:
        return (*self._modules, *map(microkernel.text, self.tiles))

    @property
    def workspace(self) -> int:
        """Bytes, for all threads together."""
        return self._workspace * self.target.threads

    def batches(self, layout: Layout) -> list[list[int]]:
        """The positions of all steps, in order; those together run side by side."""
        return batch.batches(self.program, layout)

    def start(self, writer: HostWriter, steps: Sequence[Step]) -> None:
        """Kernels that wait for nothing of each other."""
        launches = [self._launch(step, len(steps) > 1) for step in steps]
        threads = self.target.threads
        if len(launches) > 1:
            team = threads if sum(launch.kernel.work for launch in launches) >= PARALLEL_WORK else 1
            slots = [(launch.kernel, [writer.slots[b] for b in launch.buffers]) for launch in launches]
            batch.launch(writer.w, slots, team)
            return
        kernel, pointers = launches[0].kernel, [writer.pointer(b) for b in launches[0].buffers]
        team = threads_for(kernel, threads)
        units = writer.size(kernel.units)
        w = writer.w
        if team == 1:
            declare_kernel(w.module, kernel)
            w.emit(call_text(kernel, pointers, "%workspace", "%error", "0", units))
            return
        data = w.slot(f"[{len(pointers) + 4} x ptr]", 8)
        for position, pointer in enumerate([*pointers, "%workspace", "%sizes", "%error"]):
            w.emit(f"store ptr {pointer}, ptr {w.address('ptr', data, position)}")
        w.emit(f"store i64 {units}, ptr {w.address('ptr', data, len(pointers) + 3)}")
        w.module.declare(f"declare void @{kernel.name}.team(ptr)")
        start_team(w, f"{kernel.name}.team", data, team)

    def _launch(self, step: Step, batched: bool) -> Launch:
        """The step, a kernel, as a function that is there, its units of work, and the buffers it takes."""
        assert isinstance(step, Kernel)
        flat = self._flat.get(step.name)
        order = tuple(dict.fromkeys((*step.reads, *step.writes)))
        shared = anonymous(flat or step, order)
        far = far_of(step, self.buffers, self._far, self.target.last_cache_bytes)
        types = tuple((self.buffers[b].dtype, None if flat else self.buffers[b].size, b in far) for b in order)
        key = (shared.axes, shared.reduced, shared.body, types, flat is None)
        kernel = self.built.get(key)
        if kernel is None:
            kernel = self.built[key] = self._build(shared, order, flat is not None, far)
        self.functions[step.name] = kernel.name
        if flat is not None:
            kernel = replace(kernel, units=elements(step), work=work_of(step))
        if batched and kernel.name not in self._parts:
            if not self._parts:
                batch.write_walk(self.module)
            self._parts.add(kernel.name)
            batch.write_part(self.module, kernel)
        self.launches += 1
        self._workspace = max(self._workspace, kernel.workspace)
        if kernel.workspace:
            self.in_workspace.add(step.name)
        names = dict(zip((f"b{i}" for i in range(len(order))), order, strict=True))
        return Launch(kernel, tuple(names[b] for b in kernel.buffers))

    def _build(self, kernel: Kernel, order: tuple[str, ...], flat: bool, far: frozenset[str]) -> Rendered:
        buffers = {f"b{i}": replace(self.buffers[b], name=f"b{i}") for i, b in enumerate(order)}
        own = looked_up.OWN if self.target.looks_up else {}
        module = Module(Dialect(self.target.function_bytes, own=own))
        around = (buffers, self.target, module, UNNAMED, self.sizes)
        product = contraction(kernel)
        tile = None if flat else tiling(kernel, self.target)
        if product is not None and packed_panels(product, kernel, self.target) is not None:
            tile = None  # it lies as only the micro-kernel reads it
        packed = math.inf if product is None else cycles(product, kernel, self.target)
        if tile is not None and tile.cycles < packed:
            rendered = tiles.render(kernel, tile, *around)
        elif product is not None:
            plan = plan_product(product, kernel, self.target)
            rendered, called = contract.render(kernel, product, plan, buffers, module, UNNAMED, self.sizes)
            for used in called:
                if used not in self.tiles:
                    self.tiles[used] = None
                    self._written(microkernel.text(used))
        else:
            asked = frozenset(f"b{i}" for i, b in enumerate(order) if b in far)
            rendered = (loops.render_flat if flat else loops.render)(kernel, *around, asked)
        write_team_body(module, rendered)
        name, text = named(module.text())
        self._modules[text] = None
        self._written(text)
        self.named[name] = Named(kernel, buffers)
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
                found.setdefault((anonymous(flat, order).body, types), []).append((step, flat))
        return {
            step.name: flat
            for group in found.values()
            if len({elements(step) for step, _ in group}) > 1
            for step, flat in group
        }


__all__ = ["CpuKernels"]
