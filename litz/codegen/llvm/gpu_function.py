"""What every function of a GPU's begins and ends with: its buffers and sizes, and where its threads stand.

In: a kernel's buffers. Out: a `Scope` to emit its body in, and the finished function with a `Grid` that says how it is
started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litz.codegen.coarse import coarse_values
from litz.codegen.llvm.body import Scope
from litz.codegen.llvm.writer import Module, Writer
from litz.loop.dtype import DTYPES
from litz.loop.expr import Axis, Expr
from litz.loop.ir import Buffer, Kernel


@dataclass(frozen=True)
class Grid:
    """A kernel's function, the buffers it takes in order, and how many blocks of how many threads run it."""

    name: str
    buffers: tuple[str, ...]
    blocks: Expr
    threads: int
    shared: int = 0  # bytes that a block must be given to share, besides what the function itself names


class GpuFunction:
    def __init__(
        self, kernel: Kernel, buffers: dict[str, Buffer], module: Module, name: str, sizes: tuple[str, ...],
        varies: Mapping[str, frozenset[Axis]],
    ):  # fmt: skip
        self.kernel, self.buffers, self.module, self.name, self.sizes = kernel, buffers, module, name, sizes
        self.varies = dict(varies)
        self.used = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
        self.w = Writer(module)
        self.numbers = frozenset(b for b in self.used if buffers[b].kind == "number")
        self.pointers = {b: self._held(i) if b in self.numbers else f"%b{i}" for i, b in enumerate(self.used)}
        self.coarse = coarse_values(kernel)

    def scope(self, lanes: int, vector: Axis | None) -> Scope:
        made = Scope(self.w, self.buffers, self.pointers, lanes, vector, self.varies, coarse=self.coarse)
        made.sizes = {size: f"%s{i}" for i, size in enumerate(self.sizes)}
        return made

    def finish(self, blocks: Expr, threads: int, abreast: int | None = None, shared: int = 0) -> Grid:
        """`abreast`: blocks that must have room on a multiprocessor, which bounds the registers of a thread."""
        self.w.emit("ret void")
        # Nothing is said of aliases: memory may be planned so that what is written lies where something was read.
        parameters = [f"{self._passed(b) if b in self.numbers else 'ptr'} %b{i}" for i, b in enumerate(self.used)]
        parameters += [f"i64 %s{i}" for i in range(len(self.sizes))]
        bounds = f'"nvvm.maxntid"="{threads}"' + ("" if abreast is None else f' "nvvm.minctasm"="{abreast}"')
        self.w.define(self.name, ", ".join(parameters), "ptx_kernel void", f"nounwind {bounds}")
        return Grid(self.name, self.used, blocks, threads, shared)

    def _held(self, position: int) -> str:
        """A number of the host's is an argument by value: its memory is the host's."""
        kind = self._passed(self.used[position])
        cell = self.w.slot(kind, 8)
        self.w.emit(f"store {kind} %b{position}, ptr {cell}")
        return cell

    def _passed(self, number: str) -> str:
        """As which an argument is passed: short numbers as the bits that they lie in memory as."""
        dtype = DTYPES[self.buffers[number].dtype]
        return dtype.llvm if dtype.bytes >= 4 else f"i{dtype.bits}"

    def register(self, name: str, along: str = "x") -> str:
        function = f"@llvm.nvvm.read.ptx.sreg.{name}.{along}"
        self.module.declare(f"declare i32 {function}()")
        return self.w.let(f"call i32 {function}()")

    def wide(self, number: str) -> str:
        return self.w.let(f"zext nneg i32 {number} to i64", "i")

    def barrier(self) -> None:
        self.module.declare("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)")
        self.w.emit("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")


__all__ = ["GpuFunction", "Grid"]
