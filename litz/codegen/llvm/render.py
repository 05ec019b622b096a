"""Render a program: LLVM text for its kernels, each different one once, and for its host functions.

In: a scheduled `Program` and its `Layout`. Out: a `Rendering`: the text of several modules, and what is to be run in
which order, native stretches and the operators called between them.

A kernel is a module of its own, and named by its text. Whoever needs the same kernel, in this program or another one,
needs the same text, so object code can be kept by it; and modules are built side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

from litz.codegen.label import label, label_of_batch
from litz.codegen.llvm import host, shim
from litz.codegen.llvm.cpu_kernels import CpuKernels
from litz.codegen.llvm.gpu_kernels import GpuKernels
from litz.codegen.llvm.naming import Named
from litz.codegen.llvm.record import EVENT_SLOT, PROFILER_SLOT
from litz.codegen.llvm.writer import Dialect, Module
from litz.codegen.plan import Native, Run
from litz.context import Context
from litz.loop.ir import Call, Program
from litz.ops.lower import Origin
from litz.options import bytes_of_budget
from litz.schedule.memory import Layout
from litz.schedule.place import Workspace
from litz.target import GpuTarget


@dataclass(frozen=True)
class Rendering:
    modules: tuple[str, ...]  # the kernels, the functions they share, and last the host functions
    runs: tuple[tuple[int, Run], ...]  # what is run, in order, and the step each begins with
    slots: dict[str, int]
    launches: int
    kernels: int  # different ones
    workspace: Workspace  # for all threads together
    labels: Mapping[int, str]  # steps in words, for profilers
    named: Mapping[str, Named]  # the kernels by the names of their functions, which profilers show
    functions: Mapping[str, str]  # step -> its function, where it is a kernel

    def text(self) -> str:
        return "\n".join(self.modules)


def render(
    program: Program, layout: Layout, ctx: Context, written: Callable[[str], None] = lambda module: None,
    origins: Mapping[str, Origin] = MappingProxyType({}),
) -> Rendering:  # fmt: skip
    """`written` is told each module as soon as it is there; `origins` are what steps come from."""
    target = ctx.target
    module = Module(Dialect(target.host.function_bytes))
    device = shim.DEVICES[target.device]
    native = shim.native_calls(program, device)
    handed = shim.handed_over(program, native, device)
    slots = _slots(program, native, device)
    held: dict[int, list[str]] = {}  # step -> buffers whose handles native code holds until then
    overdue: list[str] = []  # of these, the ones that an operator called from Python was the last to use
    sizes = tuple(s.name for s in program.sizes)
    labels = [label(step, origins) for step in program.steps]
    words = {step.name: one.word for step, one in zip(program.steps, labels, strict=True)}
    kernels: CpuKernels | GpuKernels
    if isinstance(target, GpuTarget):
        kernels = GpuKernels(program, target, sizes, written, words)
    else:
        bounded = bytes_of_budget(ctx.options.memory_budget, target.memory_bytes) is not None
        kernels = CpuKernels(program, target.packing_less if bounded else target, module, sizes, written)
    runs: list[tuple[int, Run]] = []
    begun = 0
    hands: list[str] = []  # what the function being written allocates for its caller
    writer: host.HostWriter | None = None

    def close() -> None:
        nonlocal writer
        if writer is not None:
            writer.finish()
            runs.append((begun, Native(writer.name, tuple(hands))))
            hands.clear()
            writer = None

    for positions in kernels.batches(layout):
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
            writer = host.HostWriter(module, f"run{len(runs)}", slots, sizes, device)
        elif at == layout.first_effect:
            writer.stop_if_failed([*overdue, *chain.from_iterable(held.values())])
        writer.make_room()
        writer.events.begin(str(label_of_batch([labels[position] for position in positions])))
        if isinstance(step, Call):
            for name in writer.call(step):
                if name in handed:
                    hands.append(name)
                else:
                    held.setdefault(layout.last_use[name], []).append(name)
        else:
            kernels.start(writer, [program.steps[position] for position in positions])
        writer.release([*overdue, *(name for position in positions for name in held.pop(position, ()))])
        overdue = []
    if not program.steps:  # outputs may still have to be made
        writer = host.HostWriter(module, "run0", slots, sizes, device)
    close()
    modules = (*kernels.modules, module.text())
    return Rendering(
        modules,
        tuple(runs),
        slots,
        kernels.launches,
        len(kernels.built),
        Workspace(kernels.workspace, tuple(at for at, s in enumerate(program.steps) if s.name in kernels.in_workspace)),
        dict(enumerate(map(str, labels))),
        kernels.named,
        kernels.functions,
    )


def _slots(program: Program, native: frozenset[str], device: shim.Device) -> dict[str, int]:
    """A place in the table of pointers for each buffer, the inputs first, for each handle native code holds, and for
    what the device is told by."""
    inputs = [name for name in program.inputs if name is not None]
    names = list(dict.fromkeys((*inputs, *program.buffers)))
    for call in program.calls:
        if call.name in native:
            names += [shim.handle_slot(v.buffer) for v in call.results if v is not None]
    names += (*device.slots, PROFILER_SLOT, EVENT_SLOT)
    return {name: i for i, name in enumerate(names)}
