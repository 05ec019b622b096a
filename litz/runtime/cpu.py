"""The compiled program as a callable: binds memory, runs the host functions, hands back the outputs.

In: a `Rendering`, its program and memory layout. Out: `Executable`, called with the flat inputs.

Each call in flight has a `Frame` of its own (table of pointers) and a block of the process's arena, so that
threads may call one executable at once.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from litz.capture.forward_mode import carries_tangents
from litz.codegen.render import Native, Rendering
from litz.codegen.shim import IN_TIME
from litz.errors import CallError, RunFailed
from litz.loop.dtype import DTYPES, to_torch
from litz.loop.expr import ZERO, Expr, Size
from litz.loop.fault import raised_for
from litz.loop.formula import Measures
from litz.loop.ir import Call, Program, View, measure, views
from litz.runtime.arena import ARENA, Block
from litz.runtime.jit import HOST_FUNCTION, Code
from litz.runtime.operator import Operator
from litz.schedule.memory import Apart, Layout, place, size_of
from litz.target import Target

_CPU = torch.device("cpu")  # said wherever memory is made: the caller may have chosen another device for his own
# The same, of sizes, strides and type, for less than half of what `torch.empty_strided` costs a call.
_empty_cpu = torch._C._dynamo.guards._empty_strided_cpu
_MOST_SIZES = 32  # combinations of sizes whose arenas are kept


class Frame:
    """What one call in flight owns, laid out for the sizes it is called with."""

    def __init__(self, executable: Executable, measured: Measures):
        program = executable.program
        self.sizes = measured  # and floats, of the present call
        self.table = (ctypes.c_int64 * max(1, len(program.sizes)))()  # the sizes, where kernels read them
        self.numbers = (ctypes.c_double * max(1, len(program.numbers)))()  # the floats, in the same way
        placement = place(program, executable.layout, measured) if program.sizes else executable.placement
        self.apart = {block: size_of(program, block.members, self.sizes) for block in executable.layout.apart}  # bytes
        self.fresh = self._fresh_outputs(program, executable.layout.owned)
        self.due = executable.due(self.fresh)
        self.arena_bytes = placement.size
        self.bytes = placement.size + executable.rendering.workspace
        self.offsets = [(executable.slots[name], offset) for name, offset in placement.offsets.items()]
        self.address = 0  # of the block the table of pointers was last made for
        self.slots = (ctypes.c_int64 * max(1, len(executable.slots)))()
        self.error = ctypes.c_int32(0)
        for position, source in enumerate(program.numbers):
            if source.input is None:
                self.slots[executable.slots[source.name]] = ctypes.addressof(self.numbers) + 8 * position
        self.tensors: dict[str, torch.Tensor] = {}  # buffers held as tensors during the call
        self.views: dict[View, torch.Tensor] = {}  # windows on the arena, for called operators
        ARENA.expect(self, self.bytes)
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

    def take(self, measured: Measures, program: Program) -> None:
        """The numbers of a call."""
        self.sizes = measured
        for position, size in enumerate(program.sizes):
            self.table[position] = measured[size.name]  # type: ignore[assignment]
        for position, number in enumerate(program.numbers):
            self.numbers[position] = measured[number.name]

    def ints(self, values: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(v.at(self.sizes) for v in values)

    def _fresh_outputs(self, program: Program, owned: frozenset[str]) -> list[Fresh]:
        """The output buffers to allocate on each call."""
        fresh: dict[str, Fresh] = {}
        shown: dict[str, list[View]] = {}
        for view in program.outputs:
            if isinstance(view, View):
                shown.setdefault(view.buffer, []).append(view)
        for name, buffer in program.buffers.items():
            if buffer.kind != "output" or name in owned:
                continue
            seen = shown.get(name, [])
            size = max(buffer.size.at(self.sizes), 0)  # a dimension may turn out to be empty
            if len(seen) == 1 and seen[0].offset is ZERO and self._covers(seen[0], size):
                fresh[name] = Fresh(name, self.ints(seen[0].sizes), self.ints(seen[0].strides), to_torch(seen[0].dtype))
            else:
                fresh[name] = Fresh(name, (size,), (1,), to_torch(buffer.dtype))
        order = [v.buffer for v in program.outputs if isinstance(v, View) and v.buffer in fresh]
        return [fresh[name] for name in dict.fromkeys((*order, *fresh))]

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


class Executable:
    def __init__(
        self, rendering: Rendering, program: Program, layout: Layout, constants: Sequence[torch.Tensor], target: Target
    ):
        self.rendering, self.program, self.layout = rendering, program, layout
        self.placement = place(program, layout)  # for likely sizes, where they vary
        self.slots = rendering.slots
        self.constants = tuple(constants)
        self.arguments = len(program.inputs) - len(self.constants)
        self.eager: Callable[..., Any] | None = None  # the user's function, where one call of it is one of this
        self._code = Code(rendering.text, target, rendering.libraries)
        self._plan = [self._bind(item) for item in rendering.plan] or [(lambda *_: None,)]
        self._given_up = self._last_items()
        self._taken, self._returned = self._blocks()
        self._apart = frozenset(name for block in layout.apart for name in block.members)
        self._frames: dict[tuple[int | float, ...], list[Frame]] = {}
        self._inputs = [(i, self.slots[name]) for i, name in enumerate(program.inputs) if name is not None]
        in_order = [slot for _, slot in self._inputs] == list(range(len(program.inputs)))
        self._measures = bool(program.sizes or program.numbers)
        self._shaping = _shaping(program)
        first = None if self._measures else Frame(self, {})
        self._simple = (
            first is not None
            and len(self._plan) == 1
            and isinstance(self._plan[0], tuple)
            and not self.constants
            and not layout.apart
            and in_order
            and len(first.fresh) == len(program.outputs)
            and all(_is_whole(view, made) for view, made in zip(program.outputs, first.fresh, strict=True))
        )
        if first is not None:
            self._frames[()] = [first]

    # -- preparation --------------------------------------------------------------------------------
    def _bind(self, item: Native | Call) -> Any:
        if isinstance(item, Native):
            return (self._code.function(item.function, HOST_FUNCTION),)
        return Operator(item, self)

    def due(self, fresh: Sequence[Fresh]) -> list[list[Fresh]]:
        """For each item of the plan, the outputs that it is the first to write."""
        found: list[list[Fresh]] = [[] for _ in self._plan]
        for made in fresh:
            found[self._item_of(self.layout.first_use.get(made.name, 0))].append(made)
        return found

    def _last_items(self) -> list[list[tuple[int | None, str]]]:
        """For each item of the plan, the tensors nobody needs after it: inputs by position, results of operators."""
        found: list[list[tuple[int | None, str]]] = [[] for _ in self._plan]
        leaving = {v.buffer for v in self.program.outputs if isinstance(v, View)}
        inputs = {name: i for i, name in enumerate(self.program.inputs[: self.arguments]) if name is not None}
        for name in (*inputs, *sorted(self.layout.owned)):
            if name not in leaving:
                found[self._item_of(self.layout.last_use.get(name, 0))].append((inputs.get(name), name))
        return found

    def _blocks(self) -> tuple[list[list[Apart]], list[list[Apart]]]:
        """For each item of the plan, the memory it needs from here on, and the memory it is the last to need."""
        taken: list[list[Apart]] = [[] for _ in self._plan]
        returned: list[list[Apart]] = [[] for _ in self._plan]
        for block in self.layout.apart:
            taken[self._item_of(block.first)].append(block)
            returned[self._item_of(block.last)].append(block)
        return taken, returned

    def private_outputs(self) -> frozenset[int]:
        """Outputs that are all of a buffer made for them, which no other output shows."""
        seen = Counter(v.buffer for v in self.program.outputs if isinstance(v, View))
        return frozenset(
            i
            for i, v in enumerate(self.program.outputs)
            if isinstance(v, View)
            and seen[v.buffer] == 1
            and self.program.buffers[v.buffer].kind == "output"
            and v.buffer not in self.layout.owned
        )

    def _item_of(self, step: int) -> int:
        return max(0, bisect_right(self.rendering.starts, step) - 1)

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
        program = self.program
        measured = measure(program.sizes, program.numbers, args if own is None else own) if self._measures else {}
        key = tuple([measured[name] for name in self._shaping])
        frames = self._frames.get(key)
        if frames is None:
            frames = self._frames_for(key)
        try:
            frame = frames.pop()
        except IndexError:
            frame = Frame(self, measured)
        if measured:
            frame.take(measured, program)
        block = ARENA.take(frame.bytes)
        frame.use(block)
        try:
            if self._simple:
                return self._run_simple(frame, args if own is None else own)
            return self._run(frame, args, own, overwrite)
        finally:
            frame.tensors.clear()
            ARENA.give(block)
            frames.append(frame)

    def _frames_for(self, key: tuple[int | float, ...]) -> list[Frame]:
        """The pool for new sizes; the oldest sizes' arenas are let go."""
        while len(self._frames) >= _MOST_SIZES:
            self._frames.pop(next(iter(self._frames)), None)
        return self._frames.setdefault(key, [])

    def _run_simple(self, frame: Frame, args: Sequence[Any]) -> list[Any]:
        """One native stretch, fresh outputs: nothing to look up."""
        slots = frame.slots
        slots[0 : len(args)] = [a.data_ptr() for a in args]
        outputs = []
        for name, sizes, strides, dtype in frame.fresh:
            tensor = _empty_cpu(sizes, strides, dtype)
            slots[self.slots[name]] = tensor.data_ptr()
            outputs.append(tensor)
        self._plan[0][0](*frame.native)
        if frame.error.value:
            raise self._failure(frame, 0)
        return outputs

    def _run(self, frame: Frame, args: tuple, own: list[Any] | None, overwrite: bool) -> list[Any]:
        slots, tensors = frame.slots, frame.tensors
        self._take_inputs(frame, args if own is None else own)
        memory: dict[Apart, torch.Tensor] = {}
        for number, (item, due, taken, returned, given_up) in enumerate(
            zip(self._plan, frame.due, self._taken, self._returned, self._given_up, strict=True)
        ):
            for name, sizes, strides, dtype in due:
                tensors[name] = tensor = _empty_cpu(sizes, strides, dtype)
                slots[self.slots[name]] = tensor.data_ptr()
            for block in taken:
                memory[block] = tensor = self._memory_for(block, frame, overwrite)
                for name in block.members:
                    slots[self.slots[name]] = tensor.data_ptr()
            if isinstance(item, tuple):
                item[0](*frame.native)
                if frame.error.value:
                    raise self._failure(frame, number)
            else:
                try:
                    item(frame)
                except Exception as error:
                    raise RunFailed(error, self._is_ahead_of_effects(number)) from error
            tensor = None
            for block in returned:
                del memory[block]
            for position, name in given_up:
                tensors.pop(name, None)
                if own is not None and position is not None:
                    own[position] = None
        return [self._output(frame, output) for output in self.program.outputs]

    @staticmethod
    def _memory_for(block: Apart, frame: Frame, overwrite: bool) -> torch.Tensor:
        if block.into is not None:
            return frame.tensors[block.into]
        if overwrite and block.over is not None:
            return frame.tensors[block.over]
        return torch.empty(frame.apart[block], dtype=torch.uint8, device=_CPU)

    def _take_inputs(self, frame: Frame, args: Sequence[Any]) -> None:
        given = len(args)
        for position, slot in self._inputs:
            value = args[position] if position < given else self.constants[position - given]
            frame.slots[slot] = value.data_ptr()
            frame.tensors[self.program.inputs[position]] = value  # type: ignore[index]

    def _failure(self, frame: Frame, item: int) -> RunFailed:
        """What native code left in the error cell, which is emptied."""
        code = frame.error.value & ~IN_TIME
        in_time = bool(frame.error.value & IN_TIME) or self._is_ahead_of_effects(item)
        frame.error.value = 0
        failed = CallError("a library operator failed; its own message is on the standard error stream")
        return RunFailed(raised_for(code) or failed, in_time)

    def _is_ahead_of_effects(self, item: int) -> bool:
        """Whether this item of the plan ends before the first step that the caller can see to have been run."""
        ends = (*self.rendering.starts, len(self.program.steps))[item + 1]
        return self.layout.first_effect is None or ends <= self.layout.first_effect

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
                size = self.program.buffers[view.buffer].size.at(frame.sizes) * DTYPES[view.dtype].bytes
                address = frame.slots[self.slots[view.buffer]]
                storage = torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), size)
                found = torch.empty(0, dtype=to_torch(view.dtype), device=_CPU)
                found.set_(storage, offset, sizes, strides)
                if view.buffer not in self._apart:
                    frame.views[view] = found
            return found
        if offset == 0 and base.shape == sizes and base.stride() == strides:
            return base
        return base.as_strided(sizes, strides, base.storage_offset() + offset)


def _shaping(program: Program) -> tuple[str, ...]:
    """The sizes that memory is laid out by; other numbers may change from call to call and leave it as it is."""
    shown = list(views(program.outputs))
    for call in program.calls:
        shown += views((call.args, call.kwargs, call.results))
    exprs = [buffer.size for buffer in program.buffers.values()]
    exprs += [e for view in shown for e in (*view.sizes, *view.strides, view.offset)]
    names = {atom.name for e in exprs for atom in e.atoms() if isinstance(atom, Size)}
    return tuple(source.name for source in program.sizes if source.name in names)


def _is_whole(output: Any, made: Fresh) -> bool:
    """Whether the output is the tensor that was made for its buffer, and not a window on it."""
    return (
        isinstance(output, View)
        and output.buffer == made.name
        and output.offset is ZERO
        and tuple(s.int for s in output.sizes) == made.sizes
        and tuple(s.int for s in output.strides) == made.strides
    )
