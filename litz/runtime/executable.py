"""The compiled program as a callable: binds memory, runs the host functions, hands back the outputs.

In: an `Artifact`. Out: `Executable`, called with the flat inputs.

Each call in flight has a `Frame` of its own (table of pointers) and a block of the process's arena, so that
threads may call one executable at once. On a GPU a call may be answered by what an earlier one has recorded
(`graphs.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import torch

from litz.capture.forward_mode import runs_as_written
from litz.codegen.llvm.shim import handle_slot
from litz.codegen.plan import IN_TIME, Item, Native
from litz.errors import CallError, RunFailed
from litz.loop.dtype import DTYPES, to_torch
from litz.loop.expr import Expr
from litz.loop.fault import raised_for
from litz.loop.formula import Measures
from litz.loop.ir import Call, View, measure, views
from litz.runtime.arena import EMPTY, Block
from litz.runtime.artifact import Artifact
from litz.runtime.copies import copied
from litz.runtime.device import ALIGNMENT, device_for
from litz.runtime.frame import Frame, Fresh, Shown
from litz.runtime.graphs import Graphs, Replays
from litz.runtime.handle import taken_over
from litz.runtime.layout import on_device
from litz.runtime.link import Code
from litz.runtime.operator import Operator
from litz.runtime.profiled import end_event, follow_profiler, profiler
from litz.schedule.memory import Apart

_MOST_SIZES = 32  # combinations of sizes whose arenas are kept
_NO_NUMBERS: Measures = {}
_address = torch.Tensor.data_ptr


class Bound(NamedTuple):
    """An item of the plan, ready to run: a native function, or an operator. `forgets`: tensors that the frame holds and
    nobody needs afterwards; `drops`: the same of arguments, by position."""

    item: Item
    native: Callable[..., None] | None
    operator: Callable[[Frame], None] | None
    forgets: tuple[str, ...]
    drops: tuple[int, ...]
    hands: tuple[tuple[str, int], ...] = ()  # buffers that native code hands over, and where their handles are


class Executable:
    def __init__(self, artifact: Artifact, replays: Replays | None = None, gpu: int | None = None):
        """`gpu`: which one it is for; where it is not said, the constants say it, or it is the current one."""
        self.plan = plan = artifact.plan
        self.built = artifact.built
        self.device = device_for(artifact.target, plan.slots, artifact.constants, gpu)
        self.slots = plan.slots
        self.constants = [on_device(constant, self.device.device) for constant in artifact.constants]
        self.eager: Callable[..., Any] | None = None  # the user's function, where one call of it is one of this
        with self.device.current():
            self.code = Code(artifact.objects, artifact.target, artifact.kernels)
        self._apart = frozenset(name for block in plan.apart for name in block.members)
        self._inputs = [(i, name) for i, name in enumerate(plan.inputs) if name is not None]
        assert [self.slots[name] for _, name in self._inputs] == list(range(len(self._inputs))), "inputs come first"
        self._held = self._held_inputs()
        self.items = [self._bind(item) for item in plan.items]
        self._frames: dict[tuple[int | float, ...], list[Frame]] = {}
        self._measures = bool(plan.sizes or plan.numbers)
        self._shaping = plan.shaping()
        first = None if self._measures else Frame(self, {})
        self._only = self._is_simple(first)
        if first is not None:
            self._frames[()] = [first]
        recorder = self.device.recorder()
        self.graphs = None if replays is None or recorder is None else Graphs(self, replays, recorder)

    # -- preparation --------------------------------------------------------------------------------
    def _bind(self, item: Item) -> Bound:
        held = self.plan.owned | {name for _, name in self._held}
        forgets = tuple(dropped.buffer for dropped in item.drops if dropped.buffer in held)
        drops = tuple(dropped.input for dropped in item.drops if dropped.input is not None)
        if isinstance(item.run, Native):
            hands = tuple((name, self.slots[handle_slot(name)]) for name in item.run.hands_over)
            return Bound(item, self.code.function(item.run.function), None, forgets, drops, hands)
        return Bound(item, None, Operator(item.run, self, item.label), forgets, drops)

    def _held_inputs(self) -> tuple[tuple[int, str], ...]:
        """Inputs that are needed as tensors, not only where they lie: by operators, as results, for their memory."""
        needed = {block.over for block in self.plan.apart} | {view.buffer for view in views(self.plan.outputs)}
        for item in self.plan.items:
            if isinstance(item.run, Call):
                needed.update(item.run.reads, item.run.writes)
        return tuple((place, name) for place, (_, name) in enumerate(self._inputs) if name in needed)

    def _is_simple(self, frame: Frame | None) -> Bound | None:
        """The one native stretch that is all of the program, where every output is a buffer made for it."""
        if frame is None or len(self.items) != 1 or self.items[0].native is None or self._apart:
            return None
        made = [one.name for one in frame.due[0]]
        whole = [shown.buffer if shown is not None and shown.whole else None for shown in frame.shown]
        return self.items[0] if made == whole else None

    # -- the call -----------------------------------------------------------------------------------
    def __call__(self, *args: Any) -> list[Any]:
        if self.eager is not None and runs_as_written(args):
            return self.eager(*args)  # compiled code would lose the tangents
        try:
            return self._call(args, None)
        except RunFailed as failure:
            if self.eager is None:
                raise
            return failure.instead(self.eager, args)

    def consume(self, args: list[Any], overwrite: bool = False) -> list[Any]:
        """The call for a caller who has no other use for the arguments: each is dropped after its last use.

        `overwrite`: nor has anyone else for those that were planned as donated.
        """
        return self._call(args, args, overwrite)

    def _call(self, args: Sequence[Any], own: list[Any] | None, overwrite: bool = False) -> list[Any]:
        if self.device.aligns and self.device.is_elsewhere():
            with self.device.current():
                return self._call(args, own, overwrite)
        measured = measure(self.plan.sizes, self.plan.numbers, args) if self._measures else _NO_NUMBERS
        if self.graphs is not None:
            return self.graphs.call(self, args, own, overwrite, measured)
        return self.run(args, own, overwrite, measured)

    def run(self, args: Sequence[Any], own: list[Any] | None, overwrite: bool, measured: Measures) -> list[Any]:
        """Step by step. `own`: the arguments, where they are this call's to drop."""
        frame, frames = self._frame_for(measured)
        block = self._begin(frame)
        try:
            self._take_inputs(frame, args)
            if self._only is not None:
                return self._run_simple(self._only, frame)
            memory: dict[Apart, torch.Tensor] = {}
            first = self.plan.arena_until or 0
            if first:
                self._run(frame, self.items[:first], frame.due[:first], memory, own, overwrite)
                block = EMPTY  # to the system: large memory is due, and nothing needs this one any more
            self._run(frame, self.items[first:], frame.due[first:], memory, own, overwrite)
            return self.results(frame.shown, frame.tensors, measured)
        finally:
            frame.tensors.clear()
            self.device.give(block)
            frames.append(frame)

    # -- for `graphs.py` ----------------------------------------------------------------------------
    def run_for(
        self, names: Sequence[str], items: Sequence[Bound], args: Sequence[Any], overwrite: bool, measured: Measures
    ) -> list[torch.Tensor]:
        """The same by these items, which are its own or stand for them; the tensors of these buffers."""
        frame, frames = self._frame_for(measured)
        block = self._begin(frame)
        try:
            self._take_inputs(frame, args)
            self._run(frame, items, frame.due, {}, None, overwrite)
            return [frame.tensors[name] for name in names]
        except RunFailed as failure:
            raise failure.error from None
        finally:
            frame.tensors.clear()
            self.device.give(block)
            frames.append(frame)

    def made_by(self, at: int, measured: Measures) -> torch.Tensor:
        """What the item, an operator that takes no tensors, gives now."""
        frame, frames = self._frame_for(measured)
        bound = self.items[at]
        assert bound.operator is not None
        try:
            bound.operator(frame)
            (made,) = frame.tensors.values()
            return made
        finally:
            frame.tensors.clear()
            frames.append(frame)

    def shown_for(self, measured: Measures) -> list[Shown | None]:
        frame, frames = self._frame_for(measured)
        frames.append(frame)
        return frame.shown

    def bytes_for(self, measured: Measures) -> int:
        """Of memory that a call takes, and does not give back, if nothing of it is used twice."""
        frame, frames = self._frame_for(measured)
        frames.append(frame)
        made = sum(math.prod(one.sizes) * one.dtype.itemsize for due in frame.due for one in due)
        owned = (self.plan.buffers[name] for name in self.plan.owned)  # which operators allocate
        made += sum(b.size.at(measured) * DTYPES[b.dtype].bytes for b in owned if b.dtype in DTYPES)
        return frame.bytes + sum(frame.apart.values()) + made

    # -- its steps ----------------------------------------------------------------------------------
    def _begin(self, frame: Frame) -> Block:
        block = self.device.take(frame.bytes)
        frame.use(block)
        if self.device.aligns:
            self.device.tell(frame.slots, self.constants)
        if profiler._is_profiler_enabled is not frame.profiled:
            follow_profiler(frame, self.slots)
        return block

    def _frame_for(self, measured: Measures) -> tuple[Frame, list[Frame]]:
        """One that is free, and where it goes back to; of new sizes, the oldest sizes' frames are let go."""
        key = tuple([measured[name] for name in self._shaping])
        frames = self._frames.get(key)
        if frames is None:
            while len(self._frames) >= _MOST_SIZES:
                self._frames.pop(next(iter(self._frames)), None)
            frames = self._frames.setdefault(key, [])
        try:
            frame = frames.pop()
        except IndexError:
            frame = Frame(self, measured)
        if measured:
            frame.take(measured, self.plan)
        return frame, frames

    def _take_inputs(self, frame: Frame, args: Sequence[Any]) -> None:
        given = (*args, *self.constants) if self.constants else args
        if len(self._inputs) != len(given):
            given = [given[position] for position, _ in self._inputs]
        for place, name in self._held:
            frame.tensors[name] = given[place]
        addresses = list(map(_address, given))
        if addresses == frame.inputs:
            return
        frame.inputs = addresses
        if self.device.aligns and reduce(or_, addresses, 0) % ALIGNMENT:
            frame.inputs = []  # copies lie elsewhere each time
            addresses = [self._aligned(frame, *one) for one in zip(self._inputs, given, addresses, strict=True)]
        frame.slots[0 : len(addresses)] = addresses

    def _aligned(self, frame: Frame, source: tuple[int, str], value: torch.Tensor, address: int) -> int:
        """Where native code can take the argument: accesses of many bytes want addresses that are multiples."""
        if address % ALIGNMENT == 0:
            return address
        if source[1] in self.plan.written:
            raise RunFailed(CallError("an argument that is written to does not lie at a multiple of 16 bytes"), True)
        frame.tensors[source[1]] = copy = copied(value)
        return copy.data_ptr()

    def _run_simple(self, only: Bound, frame: Frame) -> list[Any]:
        """One native stretch, fresh outputs: nothing to look up."""
        slots, empty = frame.slots, self.device.empty
        outputs = []
        for _, slot, sizes, strides, dtype in frame.due[0]:
            tensor = empty(sizes, strides, dtype)
            slots[slot] = tensor.data_ptr()
            outputs.append(tensor)
        only.native(*frame.native)  # type: ignore[misc]
        if frame.error.value:
            raise self._failure(frame, only.item)
        return outputs

    def _run(
        self, frame: Frame, items: Sequence[Bound], due: Sequence[Sequence[Fresh]], memory: dict[Apart, torch.Tensor],
        own: list[Any] | None, overwrite: bool,
    ) -> None:  # fmt: skip
        """Leaves the tensors that results are windows on with the frame. `due`: those to make before each item;
        `memory`: that of blocks which were taken and not returned."""
        slots, tensors, empty = frame.slots, frame.tensors, self.device.empty
        for (item, native, operator, forgets, drops, hands), fresh in zip(items, due, strict=True):
            for name, slot, sizes, strides, dtype in fresh:
                tensors[name] = tensor = empty(sizes, strides, dtype)
                slots[slot] = tensor.data_ptr()
            for block in item.takes:
                memory[block] = tensor = self._memory_for(block, frame, overwrite)
                for name in block.members:
                    slots[self.slots[name]] = tensor.data_ptr()
            if native is not None:
                for _, slot in hands:
                    slots[slot] = 0
                native(*frame.native)
                if hands:
                    made = [(name, slots[slot]) for name, slot in hands if slots[slot]]
                    tensors.update(zip([n for n, _ in made], taken_over([handle for _, handle in made]), strict=True))
                if frame.error.value:
                    raise self._failure(frame, item)
            else:
                try:
                    operator(frame)  # type: ignore[misc]
                except Exception as error:
                    raise RunFailed(error, item.in_time) from error
            tensor = None
            for block in item.returns:
                del memory[block]
            for name in forgets:
                tensors.pop(name, None)
            if own is not None:
                for position in drops:
                    own[position] = None

    def _memory_for(self, block: Apart, frame: Frame, overwrite: bool) -> torch.Tensor:
        if block.into is not None:
            return frame.tensors[block.into]
        if overwrite and block.over is not None:
            return frame.tensors[block.over]
        return self.device.empty((frame.apart[block],), (1,), torch.uint8)

    def results(
        self, shown: Sequence[Shown | None], tensors: Mapping[str, torch.Tensor], measured: Measures
    ) -> list[Any]:
        """What the caller gets: windows on the tensors of buffers, and numbers."""
        return [
            window.of(tensors[window.buffer])
            if window is not None
            else output.at(measured)
            if isinstance(output, Expr)
            else output
            for output, window in zip(self.plan.outputs, shown, strict=True)
        ]

    def _failure(self, frame: Frame, item: Item) -> RunFailed:
        """What native code left in the error cell, which is emptied."""
        end_event(frame, self.slots)
        code = frame.error.value & ~IN_TIME
        in_time = bool(frame.error.value & IN_TIME) or item.in_time
        frame.error.value = 0
        failed = CallError("a library operator failed; its own message is on the standard error stream")
        return RunFailed(raised_for(code) or failed, in_time)

    def tensor(self, frame: Frame, view: View) -> torch.Tensor:
        """The window as a torch tensor, for an operator."""
        sizes, strides = frame.ints(view.sizes), frame.ints(view.strides)
        offset = view.offset.at(frame.sizes)
        base = frame.tensors.get(view.buffer)
        if base is not None:
            return Shown(view.buffer, sizes, strides, offset, False).of(base)
        found = frame.views.get(view)
        if found is None:
            # A storage of its own: some operators count offsets from the start of the storage.
            size = self.plan.buffers[view.buffer].size.at(frame.sizes) * DTYPES[view.dtype].bytes
            address = frame.slots[self.slots[view.buffer]]
            storage = torch._C._construct_storage_from_data_pointer(address, self.device.device, size)
            found = torch.empty(0, dtype=to_torch(view.dtype), device=self.device.device)
            found.set_(storage, offset, sizes, strides)
            if view.buffer not in self._apart:
                frame.views[view] = found
        return found


__all__ = ["Bound", "Executable", "Frame"]
