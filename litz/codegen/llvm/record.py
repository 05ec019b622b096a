"""What a profiler sees of a host function: each step as an event of its own, while a profiler is on.

In: a host function being written, and what its next step is called. Out: one call before the step. It looks at a slot,
which is zero unless a profiler is on, and goes back; else it ends the event of the step before and begins one by
torch's functions, whose addresses the slot points to. So nothing has to be compiled again, and native code that is
called from elsewhere than Python needs none of torch for it.
"""

from __future__ import annotations

from litz.codegen.llvm.writer import Module, Writer

# Of the first and the last function: where their addresses lie, or zero; and the event that has begun and not ended.
PROFILER_SLOT, EVENT_SLOT = "the profiler", "the event"
_FUNCTION = "next_event"


def begin_event(w: Writer, slots: dict[str, int], label: str) -> None:
    """What follows is called so."""
    _write_function(w.module, slots)
    w.emit(f"call void @{_FUNCTION}(ptr %slots, ptr {w.module.constant_string(label)})")


def end_event(w: Writer, slots: dict[str, int]) -> None:
    """What follows is no step."""
    _write_function(w.module, slots)
    w.emit(f"call void @{_FUNCTION}(ptr %slots, ptr null)")


def _write_function(module: Module, slots: dict[str, int]) -> None:
    if _FUNCTION in module.defined:
        return
    module.defined.add(_FUNCTION)
    w = Writer(module)
    functions = w.let(f"load ptr, ptr {w.address('ptr', '%slots', slots[PROFILER_SLOT])}")
    with w.when(w.let(f"icmp ne ptr {functions}, null")):
        event = w.address("ptr", "%slots", slots[EVENT_SLOT])
        begun = w.let(f"load ptr, ptr {event}")
        with w.when(w.let(f"icmp ne ptr {begun}, null")):
            end = w.let(f"load ptr, ptr {w.address('ptr', functions, 1)}")
            w.emit(f"call i32 {end}(ptr {begun})")
            w.emit(f"store ptr null, ptr {event}")
        with w.when(w.let("icmp ne ptr %label, null")):
            begin = w.let(f"load ptr, ptr {functions}")
            w.emit(f"call i32 {begin}(ptr %label, ptr null, ptr null, i64 0, ptr {event})")
    w.emit("ret void")
    w.define(_FUNCTION, "ptr %slots, ptr %label", "internal void")


__all__ = ["EVENT_SLOT", "PROFILER_SLOT", "begin_event", "end_event"]
