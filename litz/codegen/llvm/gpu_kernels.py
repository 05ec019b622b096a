"""The kernels of a program for a GPU, each different one built once, and the calls that start them.

In: the program's kernels. Out: the text of their modules, and, in a host function, their launches, through the driver's
own interface on the caller's stream. The driver's handles of the kernels are in a table that whoever loads the program
fills, in the order of the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

from litz.codegen.llvm import gpu, shim
from litz.codegen.llvm.host import HostWriter
from litz.codegen.llvm.naming import UNNAMED, Named, anonymous, named
from litz.codegen.llvm.writer import Module
from litz.loop.ir import Kernel, Program, Step
from litz.schedule.memory import Layout
from litz.target import GpuTarget

FUNCTIONS = "functions"  # the table
_MOST_SHARED = 8  # what the driver calls the bytes that a block may be given to share


@dataclass(frozen=True)
class _Built:
    grid: gpu.Grid
    number: int  # in the table


class GpuKernels:
    workspace = 0
    in_workspace: Set[str] = frozenset()

    def __init__(
        self, program: Program, target: GpuTarget, sizes: tuple[str, ...], written: Callable[[str], None],
        words: Mapping[str, str] = MappingProxyType({}),
    ):  # fmt: skip
        """`words`: what steps are called, for people."""
        self.program, self.sizes, self._written, self._words = program, sizes, written, words
        self.dialect = gpu.dialect_for(target)
        self.built: dict[tuple, _Built] = {}
        self.named: dict[str, Named] = {}  # by the names of their functions
        self.functions: dict[str, str] = {}  # step -> its function
        self._modules: dict[str, int] = {}
        self.launches = 0

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(self._modules)

    def batches(self, layout: Layout) -> list[list[int]]:
        """Each step by itself: the device runs what was started before while more is being started."""
        return [[at] for at in range(len(self.program.steps))]

    def start(self, writer: HostWriter, steps: Sequence[Step]) -> None:
        for step in steps:
            assert isinstance(step, Kernel)
            self._start(writer, step)

    def _start(self, writer: HostWriter, step: Kernel) -> None:
        order = tuple(dict.fromkeys((*step.reads, *step.writes)))
        found = self._kernel(step, order)
        self.functions[step.name] = found.grid.name
        names = dict(zip((f"b{i}" for i in range(len(order))), order, strict=True))
        w = writer.w
        # The driver is told where each argument lies: a buffer's address in its slot, a size in the table of sizes.
        given = [self._argument(writer, names[b]) for b in found.grid.buffers]
        given += [w.address("i64", "%sizes", i) for i in range(len(self.sizes))]
        arguments = w.slot(f"[{max(1, len(given))} x ptr]", 8)
        for position, pointer in enumerate(given):
            w.emit(f"store ptr {pointer}, ptr {w.address('ptr', arguments, position)}")
        w.module.declare(f"@{FUNCTIONS} = external global ptr")
        function = w.let(f"load ptr, ptr {w.address('ptr', f'@{FUNCTIONS}', found.number)}")
        blocks = writer.size(found.grid.blocks)
        narrow = blocks if blocks.isdigit() else w.let(f"trunc i64 {blocks} to i32")
        w.module.declare("declare i32 @cuLaunchKernel(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)")
        stream = writer.pointer(shim.STREAM_SLOT)
        with w.when("true" if blocks.isdigit() else w.let(f"icmp sgt i64 {blocks}, 0")):
            shape = f"i32 {narrow}, i32 1, i32 1, i32 {found.grid.threads}, i32 1, i32 1"
            if found.grid.shared:  # more than a block may have unless it is said so
                w.module.declare("declare i32 @cuFuncSetAttribute(ptr, i32, i32)")
                given_more = f"i32 {_MOST_SHARED}, i32 {found.grid.shared}"
                status = w.let(f"call i32 @cuFuncSetAttribute(ptr {function}, {given_more})")
                shim.stop_if(w, w.let(f"icmp ne i32 {status}, 0"), shim.OPERATOR_FAILED)
            rest = f"i32 {found.grid.shared}, ptr {stream}, ptr {arguments}, ptr null"
            status = w.let(f"call i32 @cuLaunchKernel(ptr {function}, {shape}, {rest})")
            shim.stop_if(w, w.let(f"icmp ne i32 {status}, 0"), shim.OPERATOR_FAILED)
        self.launches += 1

    def _kernel(self, step: Kernel, order: tuple[str, ...]) -> _Built:
        shared = anonymous(step, order)
        key = (shared.axes, shared.reduced, shared.body, tuple(map(self._form, order)))
        found = self.built.get(key)
        if found is None:
            found = self.built[key] = self._build(shared, order, self._words.get(step.name, ""))
        return found

    def _argument(self, writer: HostWriter, name: str) -> str:
        if self.program.buffers[name].kind == "number":
            return writer.pointer(name)  # a number is passed itself, and its slot has where it lies
        return writer.w.address("ptr", "%slots", writer.slots[name])

    def _form(self, name: str) -> tuple:
        buffer = self.program.buffers[name]
        return buffer.dtype, buffer.size, buffer.kind == "number"

    def _build(self, kernel: Kernel, order: tuple[str, ...], word: str) -> _Built:
        buffers = {f"b{i}": replace(self.program.buffers[b], name=f"b{i}") for i, b in enumerate(order)}
        module = Module(self.dialect)
        grid = gpu.render(kernel, buffers, module, UNNAMED, self.sizes)
        name, text = named(f"{gpu.TRIPLE}\n{module.text()}", word)
        self.named[name] = Named(kernel, buffers)
        if text not in self._modules:
            self._modules[text] = len(self._modules)
            self._written(text)
        return _Built(replace(grid, name=name), self._modules[text])


__all__ = ["FUNCTIONS", "GpuKernels"]
