"""The host program: native functions that call kernels in order, with no Python in between.

In: the steps, their rendered kernels and the slot of each buffer (a table of pointers that the caller
fills). Out: functions `runN(slots, workspace, error)` in the module, one for each stretch of steps
between operators that only Python can call.
"""

from __future__ import annotations

from litz.codegen.llvm import shim
from litz.codegen.llvm.body import Scope
from litz.codegen.llvm.record import Events
from litz.codegen.llvm.writer import Module, Writer
from litz.codegen.plan import IN_TIME
from litz.loop.expr import Expr
from litz.loop.fault import LAST_FAULT
from litz.loop.ir import Call

# Lines of one function: what LLVM needs for a function grows faster than the function.
_LONGEST_PART = 512
_PARAMETERS = "ptr %slots, ptr %workspace, ptr %sizes, ptr %error"


def size_text(w: Writer, e: Expr, sizes: tuple[str, ...]) -> str:
    """An expression in sizes, computed from the table `%sizes`."""
    if e.is_int:
        return str(e.int)
    frame = Scope(w, {}, {}, 1, None, {}, sizes=w.load_sizes(sizes))
    return frame.size(e)


class HostWriter:
    """One host function; a long one is several, called one after the other."""

    def __init__(self, module: Module, name: str, slots: dict[str, int], sizes: tuple[str, ...], device: shim.Device):
        self.name, self.slots, self.sizes, self.device = name, slots, sizes, device
        self.parts: list[str] = []
        self._begin_part(module)

    def _begin_part(self, module: Module) -> None:
        self.w = Writer(module)
        self.events = Events(self.w, self.slots)

    def pointer(self, buffer: str) -> str:
        address = self.w.let(f"getelementptr ptr, ptr %slots, i64 {self.slots[buffer]}", "p")
        return self.w.let(f"load ptr, ptr {address}")

    def size(self, e: Expr) -> str:
        return size_text(self.w, e, self.sizes)

    def stop_if_failed(self, held: list[str]) -> None:
        """From here on the caller can see what is done; a call that has failed ends, and says that it was in time."""
        w = self.w
        code = w.let("load i32, ptr %error")
        with w.when(w.let(f"icmp ne i32 {code}, 0")):
            w.emit(f"store i32 {w.let(f'or i32 {code}, {IN_TIME}')}, ptr %error")
            self.release(held)
            w.emit("ret void")
            w.place(w.label("unreached"))

    def call(self, call: Call) -> list[str]:
        """A library operator through the C shim; the buffers it allocated."""
        return shim.write_call(self.w, call, self.slots, self.w.module, self.sizes, self.device)

    def release(self, buffers: list[str]) -> None:
        for name in buffers:
            shim.release(self.w, self.w.module, self.pointer(shim.handle_slot(name)))

    def make_room(self) -> None:
        """A function that has grown long is closed, and the next part of it begun."""
        if len(self.w.lines) >= _LONGEST_PART:
            self._close_part()

    def _close_part(self) -> None:
        self.parts.append(f"{self.name}.{len(self.parts)}")
        self.w.emit("ret void")
        self.w.define(self.parts[-1], _PARAMETERS)
        self._begin_part(self.w.module)

    def finish(self) -> None:
        if self.parts:
            self._close_part()
            for part in self.parts:
                self.w.emit(f"call void @{part}({_PARAMETERS})")
                if part != self.parts[-1]:
                    self._stop_after_failure()
        self.events.end()
        self.w.emit("ret void")
        self.w.define(self.name, _PARAMETERS)

    def _stop_after_failure(self) -> None:
        """Return if the part just called ended early: at an operator that failed, since what follows would read what
        it has not made, or ahead of the first effect. After an index out of range alone, steps go on: those that come
        release what others hold."""
        code = self.w.let("load i32, ptr %error")
        shim.stop_if(self.w, self.w.let(f"icmp sgt i32 {code}, {LAST_FAULT}"))
