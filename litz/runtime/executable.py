"""The compiled program as a callable: binds memory, runs the host functions, hands back the outputs.

In: an `Artifact`. Out: `Executable`, called with the flat inputs.

Each call in flight has a `Frame` of its own (table of pointers) and a block of the process's arena, so that
threads may call one executable at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from litz.capture.forward_mode import carries_tangents
from litz.codegen.llvm.shim import handle_slot
from litz.codegen.plan import IN_TIME, HostPlan, Item, Native
from litz.errors import CallError, RunFailed
from litz.loop.dtype import DTYPES, to_torch
from litz.loop.expr import ZERO, Expr
from litz.loop.fault import raised_for
from litz.loop.formula import Measures
from litz.loop.ir import View, measure
from litz.runtime.arena import Block
from litz.runtime.artifact import Artifact
from litz.runtime.device import ALIGNMENT, device_for
from litz.runtime.link import Code
from litz.runtime.operator import Operator
from litz.schedule.memory import Apart
from litz.schedule.place import place, size_of

# An address, as torch's own functions take it.
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_MOST_SIZES = 32  # combinations of sizes whose arenas are kept


class Frame:
    """What one call in flight owns, laid out for the sizes it is called with."""

    def __init__(self, executable: Executable, measured: Measures):
        plan = executable.plan
        self.sizes = measured  # and floats, of the present call
        self.table = (ctypes.c_int64 * max(1, len(plan.sizes)))()  # the sizes, where kernels read them
        self.numbers = (ctypes.c_double * max(1, len(plan.numbers)))()  # the floats, in the same way
        placement = place(plan.buffers, plan.shared, measured)
        self.apart = {block: size_of(plan.buffers, block.members, self.sizes) for block in plan.apart}  # bytes
        self.fresh = {name: self._fresh(plan, name) for item in plan.items for name in item.makes}
        self.due = [[self.fresh[name] for name in item.makes] for item in plan.items]
        self.arena_bytes = placement.size
        self.bytes = placement.size + plan.workspace
        self.offsets = [(executable.slots[name], offset) for name, offset in placement.offsets.items()]
        self.address = 0  # of the block the table of pointers was last made for
        self.slots = (ctypes.c_int64 * max(1, len(executable.slots)))()
        self.error = ctypes.c_int32(0)
        for position, source in enumerate(plan.numbers):
            if source.input is None:
                self.slots[executable.slots[source.name]] = ctypes.addressof(self.numbers) + 8 * position
        self.tensors: dict[str, torch.Tensor] = {}  # buffers held as tensors during the call
        self.views: dict[View, torch.Tensor] = {}  # windows on the arena, for called operators
        executable.device.expect(self, self.bytes)
        self._place(0)

    def use(self, block: Block) -> None:
        """Temporaries lie in this block from here on."""
        if block.address != self.address:
            self._place(block.address)

    def _place(self, address: int) -> None:
        self.address = address
        for slot, offset in self.offsets:
            self.slots[slot] = address + offset
        self.views.clear()
        # What every host function takes.
        workspace = address + self.arena_bytes
        tables = [ctypes.addressof(table) for table in (self.slots, self.table, self.error)]
        self.native = (tables[0], workspace, tables[1], tables[2])

    def take(self, measured: Measures, plan: HostPlan) -> None:
        """The numbers of a call."""
        self.sizes = measured
        for position, size in enumerate(plan.sizes):
            self.table[position] = measured[size.name]  # type: ignore[assignment]
        for position, number in enumerate(plan.numbers):
            self.numbers[position] = measured[number.name]

    def ints(self, values: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(v.at(self.sizes) for v in values)

    def _fresh(self, plan: HostPlan, name: str) -> Fresh:
        """An output buffer, as the output that shows it where that is one."""
        buffer = plan.buffers[name]
        shown = [v for v in plan.outputs if isinstance(v, View) and v.buffer == name]
        size = max(buffer.size.at(self.sizes), 0)  # a dimension may turn out to be empty
        if len(shown) == 1 and shown[0].offset is ZERO and self._covers(shown[0], size):
            return Fresh(name, self.ints(shown[0].sizes), self.ints(shown[0].strides), to_torch(shown[0].dtype))
        return Fresh(name, (size,), (1,), to_torch(buffer.dtype))

    def _covers(self, view: View, size: int) -> bool:
        sizes, strides = self.ints(view.sizes), self.ints(view.strides)
        if 0 in sizes:  # an empty window may be one on a buffer that is not
            return size == 0
        return size == 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


class Fresh(NamedTuple):
    """An output buffer to allocate: its name, shape, strides and type."""

    name: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Bound(NamedTuple):
    """An item of the plan, ready to run: a native function, or an operator."""

    item: Item
    native: Callable[..., None] | None
    operator: Operator | None


class Executable:
    def __init__(self, artifact: Artifact):
        self.plan = plan = artifact.plan
        self.device = device_for(artifact.target, plan.slots, artifact.constants)
        self.slots = plan.slots
        self.constants = artifact.constants
        self.eager: Callable[..., Any] | None = None  # the user's function, where one call of it is one of this
        self._code = Code(artifact.objects, artifact.target)
        self.items = [self._bind(item) for item in plan.items]
        self._apart = frozenset(name for block in plan.apart for name in block.members)
        self._frames: dict[tuple[int | float, ...], list[Frame]] = {}
        self._inputs = [(i, self.slots[name]) for i, name in enumerate(plan.inputs) if name is not None]
        self._measures = bool(plan.sizes or plan.numbers)
        self._shaping = plan.shaping()
        first = None if self._measures else Frame(self, {})
        self._only = self._is_simple(first)
        if first is not None:
            self._frames[()] = [first]

    # -- preparation --------------------------------------------------------------------------------
    def _bind(self, item: Item) -> Bound:
        if isinstance(item.run, Native):
            return Bound(item, self._code.function(item.run.function), None)
        return Bound(item, None, Operator(item.run, self))

    def _is_simple(self, frame: Frame | None) -> Bound | None:
        """The one native stretch that is all of the program, where every output is a buffer made for it."""
        if frame is None or len(self.items) != 1 or self.items[0].native is None or self.constants or self._apart:
            return None
        outputs, made = self.plan.outputs, frame.due[0]
        in_order = [slot for _, slot in self._inputs] == list(range(len(self.plan.inputs)))
        whole = len(made) == len(outputs) and all(_is_whole(view, one) for view, one in zip(outputs, made, strict=True))
        return self.items[0] if in_order and whole else None

    # -- the call -----------------------------------------------------------------------------------
    def __call__(self, *args: Any) -> list[Any]:
        if carries_tangents(args) and self.eager is not None:
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
        return self._call((), args, overwrite)

    def _call(self, args: tuple, own: list[Any] | None, overwrite: bool = False) -> list[Any]:
        plan = self.plan
        measured = measure(plan.sizes, plan.numbers, args if own is None else own) if self._measures else {}
        key = tuple([measured[name] for name in self._shaping])
        frames = self._frames.get(key)
        if frames is None:
            frames = self._frames_for(key)
        try:
            frame = frames.pop()
        except IndexError:
            frame = Frame(self, measured)
        if measured:
            frame.take(measured, plan)
        block = self.device.take(frame.bytes)
        frame.use(block)
        if self.device.aligns:
            self.device.tell(frame.slots)
        try:
            if self._only is not None:
                return self._run_simple(self._only, frame, args if own is None else own)
            return self._run(frame, args, own, overwrite)
        finally:
            frame.tensors.clear()
            self.device.give(block)
            frames.append(frame)

    def _frames_for(self, key: tuple[int | float, ...]) -> list[Frame]:
        """The pool for new sizes; the oldest sizes' arenas are let go."""
        while len(self._frames) >= _MOST_SIZES:
            self._frames.pop(next(iter(self._frames)), None)
        return self._frames.setdefault(key, [])

    def _run_simple(self, only: Bound, frame: Frame, args: Sequence[Any]) -> list[Any]:
        """One native stretch, fresh outputs: nothing to look up."""
        slots, empty = frame.slots, self.device.empty
        if self.device.aligns:
            args = [self._ready(a, name) for a, name in zip(args, self.plan.inputs, strict=True)]
        slots[0 : len(args)] = [a.data_ptr() for a in args]
        outputs = []
        for name, sizes, strides, dtype in frame.due[0]:
            tensor = empty(sizes, strides, dtype)
            slots[self.slots[name]] = tensor.data_ptr()
            outputs.append(tensor)
        only.native(*frame.native)  # type: ignore[misc]
        if frame.error.value:
            raise self._failure(frame, only.item)
        return outputs

    def _run(self, frame: Frame, args: tuple, own: list[Any] | None, overwrite: bool) -> list[Any]:
        slots, tensors = frame.slots, frame.tensors
        self._take_inputs(frame, args if own is None else own)
        memory: dict[Apart, torch.Tensor] = {}
        for (item, native, operator), due in zip(self.items, frame.due, strict=True):
            for name, sizes, strides, dtype in due:
                tensors[name] = tensor = self.device.empty(sizes, strides, dtype)
                slots[self.slots[name]] = tensor.data_ptr()
            for block in item.takes:
                memory[block] = tensor = self._memory_for(block, frame, overwrite)
                for name in block.members:
                    slots[self.slots[name]] = tensor.data_ptr()
            if native is not None:
                native(*frame.native)
                if frame.error.value:
                    raise self._failure(frame, item)
                if item.hands:
                    tensors.update(zip(item.hands, self._handed(frame, item), strict=True))
            else:
                try:
                    operator(frame)  # type: ignore[misc]
                except Exception as error:
                    raise RunFailed(error, item.in_time) from error
            tensor = None
            for block in item.returns:
                del memory[block]
            for name, position in item.drops:
                tensors.pop(name, None)
                if own is not None and position is not None:
                    own[position] = None
        return [self._output(frame, output) for output in self.plan.outputs]

    def _handed(self, frame: Frame, item: Item) -> list[torch.Tensor]:
        """What operators called from native code have made, which is Python's from here on."""
        handles = (frame.slots[self.slots[handle_slot(name)]] for name in item.hands)
        return torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([_capsule(h, None, None) for h in handles])

    def _memory_for(self, block: Apart, frame: Frame, overwrite: bool) -> torch.Tensor:
        if block.into is not None:
            return frame.tensors[block.into]
        if overwrite and block.over is not None:
            return frame.tensors[block.over]
        return torch.empty(frame.apart[block], dtype=torch.uint8, device=self.device.device)

    def _take_inputs(self, frame: Frame, args: Sequence[Any]) -> None:
        given = len(args)
        for position, slot in self._inputs:
            value = args[position] if position < given else self.constants[position - given]
            if self.device.aligns:
                value = self._ready(value, self.plan.inputs[position])
            frame.slots[slot] = value.data_ptr()
            frame.tensors[self.plan.inputs[position]] = value  # type: ignore[index]

    def _ready(self, value: torch.Tensor, name: str | None) -> torch.Tensor:
        """The argument where native code can take it: accesses of many bytes want addresses that are multiples."""
        if value.data_ptr() % ALIGNMENT == 0:
            return value
        if name in self.plan.written:
            raise RunFailed(CallError("an argument that is written to does not lie at a multiple of 16 bytes"), True)
        return value.clone()

    @staticmethod
    def _failure(frame: Frame, item: Item) -> RunFailed:
        """What native code left in the error cell, which is emptied."""
        code = frame.error.value & ~IN_TIME
        in_time = bool(frame.error.value & IN_TIME) or item.in_time
        frame.error.value = 0
        failed = CallError("a library operator failed; its own message is on the standard error stream")
        return RunFailed(raised_for(code) or failed, in_time)

    def _output(self, frame: Frame, output: Any) -> Any:
        if isinstance(output, View):
            return self.tensor(frame, output)
        if isinstance(output, Expr):
            return output.at(frame.sizes)
        return output

    def tensor(self, frame: Frame, view: View) -> torch.Tensor:
        """The window as a torch tensor."""
        sizes, strides = frame.ints(view.sizes), frame.ints(view.strides)
        offset = view.offset.at(frame.sizes)
        base = frame.tensors.get(view.buffer)
        if base is None:
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
        if offset == 0 and base.shape == sizes and base.stride() == strides:
            return base
        return base.as_strided(sizes, strides, base.storage_offset() + offset)


def _is_whole(output: Any, made: Fresh) -> bool:
    """Whether the output is the tensor that was made for its buffer, and not a window on it."""
    return (
        isinstance(output, View)
        and output.buffer == made.name
        and output.offset is ZERO
        and tuple(s.int for s in output.sizes) == made.sizes
        and tuple(s.int for s in output.strides) == made.strides
    )
