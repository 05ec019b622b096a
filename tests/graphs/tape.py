"""A stand-in for CUDA graphs where there is no GPU: calls that CPU programs make are written down, and played back.

While a `Tape` records, native functions and operators are not called, as a GPU makes no step while it is captured; what
they would have been given is kept. Played back, they are called with that. All graphs of a stream have their
temporaries in one piece of memory, which is spoilt before each replay: nothing may rest on what another graph, or an
earlier replay, has left there.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from litz.runtime.arena import Block
from litz.runtime.captures import Time
from litz.runtime.cuda_graph import NotNow, Uncapturable
from litz.runtime.device import Cpu
from litz.runtime.executable import Bound, Executable
from litz.runtime.frame import Frame
from litz.runtime.operator import Operator, _dtype

_ARENA = 1 << 22


@dataclass
class Pool:
    memory: torch.Tensor = field(default_factory=lambda: torch.empty(_ARENA, dtype=torch.uint8))
    lent: set[int] = field(default_factory=set)


@dataclass
class Graph:
    calls: list[Callable[[], None]]
    memory: list[torch.Tensor]  # made while it was recorded, and not given to anyone else
    pool: Pool
    tape: Tape

    def replay(self) -> None:
        self.pool.memory.fill_(0xCB)
        self.tape.replays += 1
        for call in self.calls:
            call()


@dataclass
class Watch:
    time: Time | None

    def stop(self) -> None: ...

    def read(self) -> Time | None:
        return self.time


class Tape:
    """Stands for a recorder. What the caller does to streams, and what goes wrong, is set by the test."""

    def __init__(self) -> None:
        self.why_not: str | None = None
        self.now, self.capturing = 0, False
        self.device_bytes, self.gave_back = 1 << 34, 0
        self.pools: dict[int, Pool] = {}
        self.recording: list[Callable[[], None]] | None = None
        self.memory: list[torch.Tensor] = []
        self.recorded = self.replays = 0
        self.fails: Exception | None = None  # raised in the midst of a capture
        self.busy = False  # another thread is capturing
        self.times: Callable[[], Time | None] = lambda: None

    def give_back_spare_memory(self) -> None:
        self.gave_back += 1

    def stream(self) -> int:
        return self.now

    def is_capturing(self) -> bool:
        return self.capturing

    def lent(self, stream: int) -> set[int] | None:
        return self.pools[stream].lent if stream in self.pools else None

    def stopwatch(self) -> Watch:
        return Watch(self.times())

    def record(self, stream: int, run: Callable[[], Any], draws: bool) -> tuple[Graph, Any]:
        if self.busy:
            raise NotNow
        pool = self.pools.setdefault(stream, Pool())
        self.recording, self.memory = calls, memory = [], []
        try:
            made = run()
            if self.fails is not None:
                raise self.fails
        except Exception as error:
            raise Uncapturable(f"{type(error).__name__}: {error}") from error
        finally:
            self.recording = None
        self.recorded += 1
        return Graph(calls, memory, pool, self), made

    def operate(self, operator: Operator, frame: Frame) -> None:
        if self.recording is None:
            operator(frame)
        else:
            self.recording.append(_operation(operator, frame))

    def call(self, executable: Executable, native: Callable[..., None], *given: int) -> None:
        if self.recording is None:
            native(*given)
        else:
            self.recording.append(_frozen(executable, native, *given))


def _frozen(
    executable: Executable, native: Callable[..., None], slots: int, workspace: int, sizes: int, error: int
) -> Callable[[], None]:
    """The call, with the tables as they are now: a GPU is given what is in them, not where they are."""
    plan = executable.plan
    pointers = (ctypes.c_int64 * max(1, len(plan.slots))).from_buffer_copy(
        ctypes.string_at(slots, 8 * max(1, len(plan.slots)))
    )
    numbers = (ctypes.c_int64 * max(1, len(plan.sizes))).from_buffer_copy(
        ctypes.string_at(sizes, 8 * max(1, len(plan.sizes)))
    )
    floats = []
    for name, buffer in plan.buffers.items():
        if buffer.kind == "number":
            floats.append(ctypes.c_double.from_buffer_copy(ctypes.string_at(pointers[plan.slots[name]], 8)))
            pointers[plan.slots[name]] = ctypes.addressof(floats[-1])
    failed = ctypes.c_int32(0)

    def play() -> None:
        native(*map(ctypes.addressof, (pointers,)), workspace, ctypes.addressof(numbers), ctypes.addressof(failed))
        assert not failed.value and floats is not None

    return play


def _operation(operator: Operator, frame: Frame) -> Callable[[], None]:
    """The call of an operator, with results where there is room for them now; a GPU would have made that, too."""
    slots = operator.executable.slots
    results = {} if operator.into_arena else {view.buffer: view for view in operator.call.results if view is not None}
    made = {
        name: torch.empty_strided(frame.ints(view.sizes), frame.ints(view.strides), dtype=_dtype(view))
        for name, view in results.items()
    }
    then = copy.copy(frame)
    then.slots, then.views, given = type(frame.slots)(*frame.slots), {}, dict(frame.tensors)
    frame.tensors.update(made)
    for name, tensor in made.items():
        frame.slots[slots[name]] = tensor.data_ptr()

    def play() -> None:
        then.tensors = dict(given)
        operator(then)
        for name, tensor in made.items():
            tensor.copy_(then.tensors[name])

    return play


def install(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """From here on, CPU programs are captured by the tape that is returned."""
    tape = Tape()
    bind, take, empty = Executable._bind, Cpu.take, Cpu.empty

    def recordable(self: Executable, item: Any) -> Bound:
        bound = bind(self, item)
        if bound.native is None:
            return bound._replace(operator=lambda frame, operator=bound.operator: tape.operate(operator, frame))
        return bound._replace(native=lambda *given, native=bound.native: tape.call(self, native, *given))

    def taken(self: Cpu, size: int) -> Block:
        if tape.recording is None or size == 0:
            return take(self, size)
        memory = tape.pools[tape.now].memory
        start = -memory.data_ptr() % 64
        assert start + size <= _ARENA
        return Block(memory.data_ptr() + start, size, None)

    def emptied(*form: Any) -> torch.Tensor:
        made = empty(*form)
        if tape.recording is not None:
            tape.memory.append(made)
        return made

    monkeypatch.setattr(Executable, "_bind", recordable)
    monkeypatch.setattr(Cpu, "empty", staticmethod(emptied))
    monkeypatch.setattr(Cpu, "take", taken)
    monkeypatch.setattr(Cpu, "recorder", lambda self: tape)
    return tape


__all__ = ["Graph", "Pool", "Tape", "install"]
