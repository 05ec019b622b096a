"""Where programs run: their memory, and what native code is told of the device.

In: an artefact's target, and the tensors of a call. Out: outputs and blocks for temporaries on that device. On the CPU
temporaries lie in the process's arena; on a GPU torch's allocator has them ready, and knows about streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from litz.codegen.llvm.shim import DEVICE_SLOT, STREAM_SLOT
from litz.errors import CallError, RunFailed
from litz.runtime.arena import ARENA, EMPTY, Block
from litz.runtime.driver import make_current
from litz.target import GpuTarget, Machine

# The same as `torch.empty_strided`, of sizes, strides and type, for less than half of what that costs a call.
_empty_cpu = torch._C._dynamo.guards._empty_strided_cpu


ALIGNMENT = 16  # bytes, that a kernel of a GPU reads at a time


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

    def tell(self, slots: Any) -> None:
        """Native code needs to know nothing of it."""


class Gpu:
    """The GPU that the program was compiled for. What is started is run on the caller's stream, later than the call."""

    aligns = True  # arguments must lie at multiples of ALIGNMENT

    def __init__(self, slots: Mapping[str, int], index: int):
        self.device = torch.device("cuda", index)
        self._index, self._slots = index, (slots[DEVICE_SLOT], slots[STREAM_SLOT])
        self.empty: Callable[..., torch.Tensor] = torch._C._dynamo.guards._empty_strided_cuda

    def expect(self, caller: object, size: int) -> None:
        pass

    def take(self, size: int) -> Block:
        if size == 0:
            return EMPTY
        memory = torch.empty(size, dtype=torch.uint8, device=self.device)
        return Block(memory.data_ptr(), size, memory)

    def give(self, block: Block) -> None:
        """The allocator has it back when the block is dropped, and hands it out to what is behind it on the stream."""

    def tell(self, slots: Any) -> None:
        if torch._C._cuda_getDevice() != self._index:
            other = CallError(f"what is called was compiled for {self.device}, and the current device is another")
            raise RunFailed(other, in_time=True)
        make_current()
        device, stream = self._slots
        slots[device] = self._index
        slots[stream] = torch._C._cuda_getCurrentRawStream(self._index)


def device_for(target: Machine, slots: Mapping[str, int], tensors: Sequence[Any]) -> Cpu | Gpu:
    """`tensors`: of the first call, or the constants; they say which GPU."""
    if not isinstance(target, GpuTarget):
        return Cpu()
    on_gpu = (t.device.index for t in tensors if isinstance(t, torch.Tensor) and t.device.type == "cuda")
    return Gpu(slots, next(on_gpu, torch.cuda.current_device()))


__all__ = ["ALIGNMENT", "Cpu", "Gpu", "device_for"]
