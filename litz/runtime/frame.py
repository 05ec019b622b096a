"""What one call in flight owns: the table of pointers that native code reads, laid out for the sizes of the call.

In: an executable, and the sizes it is called with. Out: a `Frame`, used again by later calls with the same sizes: what
does not change from call to call is worked out once, here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from litz.codegen.plan import HostPlan
from litz.loop.dtype import to_torch
from litz.loop.expr import ZERO, Expr
from litz.loop.formula import Measures
from litz.loop.ir import View
from litz.runtime.arena import Block
from litz.schedule.place import place, size_of

if TYPE_CHECKING:
    from litz.runtime.executable import Executable


class Fresh(NamedTuple):
    """An output buffer to allocate: its name and slot, shape, strides and type."""

    name: str
    slot: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Shown(NamedTuple):
    """An output that is a window on a buffer. `whole`: it is the tensor that was made for it."""

    buffer: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    whole: bool

    def of(self, base: torch.Tensor) -> torch.Tensor:
        if self.whole:
            return base
        sizes, strides, offset = self.sizes, self.strides, self.offset
        if offset == 0 and base.shape == sizes and base.stride() == strides:
            return base
        return base.as_strided(sizes, strides, base.storage_offset() + offset)


class Frame:
    def __init__(self, executable: Executable, measured: Measures):
        plan = executable.plan
        self.sizes = measured  # and floats, of the present call
        self.table = (ctypes.c_int64 * max(1, len(plan.sizes)))()  # the sizes, where kernels read them
        self.numbers = (ctypes.c_double * max(1, len(plan.numbers)))()  # the floats, in the same way
        placement = place(plan.buffers, plan.shared, measured, plan.workspace)
        self.apart = {block: size_of(plan.buffers, block.members, self.sizes) for block in plan.apart}  # bytes
        windows: dict[str, list[View]] = {}
        for output in plan.outputs:
            if isinstance(output, View):
                windows.setdefault(output.buffer, []).append(output)
        self.due = [
            [self._fresh(executable, name, windows.get(name, ())) for name in item.makes] for item in plan.items
        ]
        made = {one.name: one for due in self.due for one in due}
        self.shown = [self._shown(output, made) for output in plan.outputs]
        self.bytes, self.workspace = placement.size, placement.workspace
        self.offsets = [(executable.slots[name], offset) for name, offset in placement.offsets.items()]
        self.address = 0  # of the block the table of pointers was last made for
        self.inputs: list[int] = []  # addresses that are in the table already
        self.slots = (ctypes.c_int64 * max(1, len(executable.slots)))()
        self.error = ctypes.c_int32(0)
        for position, source in enumerate(plan.numbers):
            if source.input is None:
                self.slots[executable.slots[source.name]] = ctypes.addressof(self.numbers) + 8 * position
        self.profiled = False  # native code is told that a profiler is on
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
        tables = [ctypes.addressof(table) for table in (self.slots, self.table, self.error)]
        self.native = (tables[0], address + self.workspace, tables[1], tables[2])

    def take(self, measured: Measures, plan: HostPlan) -> None:
        """The numbers of a call."""
        self.sizes = measured
        for position, size in enumerate(plan.sizes):
            self.table[position] = measured[size.name]  # type: ignore[assignment]
        for position, number in enumerate(plan.numbers):
            self.numbers[position] = measured[number.name]

    def ints(self, values: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(v.at(self.sizes) for v in values)

    def _fresh(self, executable: Executable, name: str, shown: Sequence[View]) -> Fresh:
        """An output buffer, as the output that shows it where that is one."""
        buffer, slot = executable.plan.buffers[name], executable.slots[name]
        size = max(buffer.size.at(self.sizes), 0)  # a dimension may turn out to be empty
        if len(shown) == 1 and shown[0].offset is ZERO and self._covers(shown[0], size):
            view = shown[0]
            return Fresh(name, slot, self.ints(view.sizes), self.ints(view.strides), to_torch(view.dtype))
        return Fresh(name, slot, (size,), (1,), to_torch(buffer.dtype))

    def _covers(self, view: View, size: int) -> bool:
        sizes, strides = self.ints(view.sizes), self.ints(view.strides)
        if 0 in sizes:  # an empty window may be one on a buffer that is not
            return size == 0
        return size == 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))

    def _shown(self, output: Any, made: Mapping[str, Fresh]) -> Shown | None:
        if not isinstance(output, View):
            return None
        sizes, strides, offset = self.ints(output.sizes), self.ints(output.strides), output.offset.at(self.sizes)
        one = made.get(output.buffer)
        whole = one is not None and offset == 0 and (one.sizes, one.strides) == (sizes, strides)
        return Shown(output.buffer, sizes, strides, offset, whole)


__all__ = ["Frame", "Fresh", "Shown"]
