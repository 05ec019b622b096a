"""Where programs run: their memory, and what native code is told of the device.

In: an artefact's target, and the tensors of a call. Out: outputs and blocks for temporaries on that device. On the CPU
temporaries lie in the process's arena; on a GPU torch's allocator has them ready, and knows about streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from litz.codegen.llvm.shim import DEVICE_SLOT, STREAM_SLOT
from litz.runtime.arena import ARENA, EMPTY, Block
from litz.runtime.captures import ALIGNMENT
from litz.runtime.cuda_graph import Recorder
from litz.runtime.driver import make_current
from litz.target import GpuTarget, Machine

# The same as `torch.empty_strided`, of sizes, strides and type, for less than half of what that costs a call.
_empty_cpu = torch._C._dynamo.guards._empty_strided_cpu


class Cpu:
    """Said wherever memory is made: the caller may have chosen another device for his own."""

    device = torch.device("cpu")
    aligns = False
    empty = staticmethod(_empty_cpu)

    def expect(self, caller: object, size: int) -> None:
        ARENA.expect(caller, size)

    def take(self, size: int) -> Block:
        return ARENA.take(size)

    def give(self, block: Block) -> None:
        ARENA.give(block)

    def tell(self, slots: Any, constants: Sequence[torch.Tensor]) -> None:
        """Native code needs to know nothing of it."""

    def is_elsewhere(self) -> bool:
        return False

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def recorder(self) -> Recorder | None:
        """What is started is done at once, so there is nothing to record."""
        return None


class Gpu:
    """The GPU that the program was compiled for. What is started is run on the caller's stream, later than the call."""

    aligns = True  # arguments must lie at multiples of ALIGNMENT

    def __init__(self, slots: Mapping[str, int], index: int):
        self.device = torch.device("cuda", index)
        self._index, self._slots = index, (slots[DEVICE_SLOT], slots[STREAM_SLOT])
        self._streams: set[int] = set()  # that know the constants
        self.empty: Callable[..., torch.Tensor] = torch._C._dynamo.guards._empty_strided_cuda  # on the current GPU

    def expect(self, caller: object, size: int) -> None:
        pass

    def take(self, size: int) -> Block:
        if size == 0:
            return EMPTY
        memory = self.empty((size,), (1,), torch.uint8)
        return Block(memory.data_ptr(), size, memory)

    def give(self, block: Block) -> None:
        """The allocator has it back when the block is dropped, and hands it out to what is behind it on the stream."""

    def tell(self, slots: Any, constants: Sequence[torch.Tensor]) -> None:
        make_current()
        device, stream = self._slots
        slots[device] = self._index
        slots[stream] = mine = torch._C._cuda_getCurrentRawStream(self._index)
        if mine not in self._streams:
            self._meet(constants)
            self._streams.add(mine)

    def _meet(self, constants: Sequence[torch.Tensor]) -> None:
        """Constants were made on the stream of another call, and their memory must not go to what is behind that while
        this stream reads them. Memory of all else comes and goes with the stream of its own call."""
        if torch.cuda.is_current_stream_capturing():
            return
        if not self._streams and constants:
            torch.cuda.synchronize()
        for constant in constants:
            constant.record_stream(torch.cuda.current_stream())

    def is_elsewhere(self) -> bool:
        """Whether another GPU is the current one."""
        return torch._C._cuda_getDevice() != self._index

    def current(self) -> AbstractContextManager[Any]:
        """Has this GPU be the current one, as the driver and torch's allocator want it."""
        return torch.cuda.device(self._index)

    def recorder(self) -> Recorder | None:
        return Recorder(self._index)


def device_for(target: Machine, slots: Mapping[str, int], tensors: Sequence[Any], gpu: int | None = None) -> Cpu | Gpu:
    """`tensors`: of the first call, or the constants; they say which GPU where the number is not given."""
    if not isinstance(target, GpuTarget):
        return Cpu()
    on_gpu = (t.device.index for t in tensors if isinstance(t, torch.Tensor) and t.device.type == "cuda")
    return Gpu(slots, next(on_gpu, torch.cuda.current_device()) if gpu is None else gpu)


__all__ = ["ALIGNMENT", "Cpu", "Gpu", "device_for"]
