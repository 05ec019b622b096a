"""What a profiler sees of a host function: each step as an event of its own, while a profiler is on.

In: a host function being written, and what its next step is called. Out: a branch before the step. Whether a profiler
is on stands in a slot, which the function reads once, when it is entered; where it is zero the branch is all there is
to it. Else a call ends the event of the step before and begins one by torch's functions, whose addresses the slot
points to. So nothing has to be compiled again, and native code that is called from elsewhere than Python needs none of
torch for it.
"""

from __future__ import annotations

from litz.codegen.llvm.writer import Module, Writer

# Of the first and the last function: where their addresses lie, or zero; and the event that has begun and not ended.
PROFILER_SLOT, EVENT_SLOT = "the profiler", "the event"
_FUNCTION = "next_event"


class Events:
    """Those of one function."""

    def __init__(self, writer: Writer, slots: dict[str, int]):
        self._w, self._slots = writer, slots
        self._functions = self._is_on = ""

    def begin(self, label: str) -> None:
        """What follows is called so."""
        self._next(self._w.module.constant_string(label))

    def end(self) -> None:
        """What follows is no step."""
        self._next("null")

    def _next(self, label: str) -> None:
        w = self._w
        if not self._functions:
            _write_function(w.module, self._slots)
            at = w.first(f"getelementptr ptr, ptr %slots, i64 {self._slots[PROFILER_SLOT]}")
            self._functions = w.first(f"load ptr, ptr {at}")
            self._is_on = w.first(f"icmp ne ptr {self._functions}, null")
        with w.when(self._is_on):
            w.emit(f"call void @{_FUNCTION}(ptr %slots, ptr {self._functions}, ptr {label})")


def _write_function(module: Module, slots: dict[str, int]) -> None:
    if _FUNCTION in module.defined:
        return
    module.defined.add(_FUNCTION)
    w = Writer(module)
    event = w.address("ptr", "%slots", slots[EVENT_SLOT])
    begun = w.let(f"load ptr, ptr {event}")
    with w.when(w.let(f"icmp ne ptr {begun}, null")):
        end = w.let(f"load ptr, ptr {w.address('ptr', '%functions', 1)}")
        w.emit(f"call i32 {end}(ptr {begun})")
        w.emit(f"store ptr null, ptr {event}")
    with w.when(w.let("icmp ne ptr %label, null")):
        begin = w.let("load ptr, ptr %functions")
        w.emit(f"call i32 {begin}(ptr %label, ptr null, ptr null, i64 0, ptr {event})")
    w.emit("ret void")
    # Cold: the code that calls it lies behind all that is run without a profiler.
    w.define(_FUNCTION, "ptr %slots, ptr %functions, ptr %label", "internal void", "cold noinline nounwind")


__all__ = ["EVENT_SLOT", "PROFILER_SLOT", "Events"]
