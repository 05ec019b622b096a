"""Run programs with the code that is generated for a GPU, on the CPU: every block, every thread of it.

In: a loop program and its arguments. Out: its results, after each kernel was compared with the interpreter.

The threads of a block are coroutines (`gpu_on_cpu.py`). All that can go on do so, in a random order, until each waits
or has ended; then what they wait for is looked at. A shuffle takes place when all its members are at it, a barrier when
all threads of the block are; where neither is, a GPU would hang, or do anything. Buffers lie at multiples of 16 bytes,
which is what kernels may count on, and never of 32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from litz.codegen.llvm import gpu
from litz.codegen.llvm.build import llvm
from litz.codegen.llvm.writer import Module
from litz.codegen.plan_gpu import ACCESS_BYTES, WARP
from litz.context import Context
from litz.loop.dtype import to_torch
from litz.loop.formula import Measures
from litz.loop.interpret import interpret
from litz.loop.ir import Buffer, Kernel, Program, Step, measure
from litz.loop.verify import verify
from litz.ops.here import why_not_here
from litz.ops.lower import lower
from litz.options import Options
from litz.pipeline import trace
from litz.schedule.accumulate import accumulate
from litz.schedule.check_first import check_first
from litz.schedule.fuse import fuse
from litz.schedule.join_small import join_small
from litz.schedule.memory import plan_memory
from litz.schedule.simplify import mark_outputs, merge_axes
from litz.schedule.split_reductions import split_reductions
from litz.target import GpuTarget, detect
from tests.codegen.gpu_on_cpu import FROM_LANE, MISALIGNED, OVER, TRAPPED, CpuText, for_cpu

Memory = dict[str, torch.Tensor]  # each buffer, flat


class WrongOnGpu(AssertionError):
    """A kernel did what a GPU would not survive, or would not do alike each time."""


def gpu_target() -> GpuTarget:
    return GpuTarget(detect(threads=1), "sm_90", "+ptx80", 132)


# -- one kernel -----------------------------------------------------------------------------------
class Emulated:
    """The code of a kernel, ready to be run."""

    def __init__(self, text: str):
        self.code: CpuText = for_cpu(text)
        binding, host = llvm(), detect(threads=1)
        machine = binding.Target.from_default_triple().create_target_machine(host.cpu, host.features, opt=1)
        module = binding.parse_assembly(self.code.text)
        module.verify()
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=0))
        builder.getModulePassManager().run(module, builder)
        self._engine = binding.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        pointer = ctypes.c_void_p
        takes = (*[pointer] * 4, ctypes.c_int32, ctypes.c_bool, pointer, ctypes.c_int64)
        self._run = ctypes.CFUNCTYPE(None, *takes)(self._engine.get_function_address("run"))
        self._begin = ctypes.CFUNCTYPE(None)(self._engine.get_function_address("begin"))
        self._failure = (ctypes.c_int64 * 5).from_address(self._engine.get_global_value_address("failure"))

    def run(self, blocks: int, threads: int, buffers: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        assert threads == self.code.threads and threads % WARP == 0
        assert (len(buffers), len(sizes)) == (self.code.buffers, self.code.sizes)
        arguments = np.array([*(b.data_ptr() for b in buffers), *sizes, 0], np.int64)
        lengths = np.array([*(b.numel() * b.element_size() for b in buffers), 0], np.int64)
        desk = np.zeros((threads, 4), np.int32)  # of each thread: the line it waits at, mask, step, value
        handles = np.zeros(threads, np.int64)
        tables = [array.ctypes.data for array in (arguments, lengths, desk, handles)]
        order = np.random.default_rng(0)
        for block in order.permutation(blocks):
            self._begin()
            going, starts = np.arange(threads, dtype=np.int32), True
            while going.size:
                order.shuffle(going)
                self._run(*tables, int(block), starts, going.ctypes.data, going.size)
                self._raise_failure()
                going, starts = self._exchange(desk), False

    def _raise_failure(self) -> None:
        what, offset, line, thread, block = self._failure
        if not what:
            return
        self._failure[:] = [0] * 5
        did = {TRAPPED: "is at fault", MISALIGNED: f"is not aligned at byte {offset}"}
        raise WrongOnGpu(
            f"thread {thread} of block {block} {did.get(what, f'is outside, at byte {offset}')}: "
            f"{self.code.lines[line - 1].strip()}"
        )

    def _exchange(self, desk: np.ndarray) -> np.ndarray:
        """The threads that go on, with what was exchanged on the desk."""
        line, mask, step, value = desk.T
        if (line == OVER).all():
            return np.empty(0, np.int32)
        if (line == line[0]).all() and (step == 0).all():
            return np.arange(len(desk), dtype=np.int32)  # a barrier that all of the block have reached
        warps, lanes = (-1, WARP), np.arange(WARP)
        members = (mask.view(np.uint32).reshape(-1, WARP, 1) >> lanes.astype(np.uint32)) & 1 == 1
        one, other = desk[:, :3].reshape(-1, WARP, 1, 3), desk[:, :3].reshape(-1, 1, WARP, 3)
        together = (one == other).all(-1)  # at the same instruction, with the same mask
        here = (step > 0).reshape(warps) & (together | ~members).all(-1)
        if not here.any():
            raise self._stuck(desk)
        step = step.reshape(warps)
        partner = np.where(step < FROM_LANE, lanes ^ step, step - FROM_LANE)
        if not (members[:, lanes, lanes] & np.take_along_axis(members, partner[..., None], 2)[..., 0])[here].all():
            raise WrongOnGpu("a thread shuffles with one that does not take part, or takes no part itself")
        found = np.take_along_axis(value.reshape(warps), partner, 1)
        going = np.flatnonzero(here).astype(np.int32)
        desk[going, 3] = found.reshape(-1)[going]
        return going

    def _stuck(self, desk: np.ndarray) -> WrongOnGpu:
        places = []
        for line in np.unique(desk[:, 0]):
            threads = np.flatnonzero(desk[:, 0] == line)
            what = "ended" if line == OVER else self.code.lines[line - 1].strip()
            places.append(f"{len(threads)} threads from {threads[0]}: {what}")
        return WrongOnGpu("; ".join(["no thread of the block can go on", *places]))


@lru_cache(maxsize=64)
def emulated(text: str) -> Emulated:
    return Emulated(text)


def run_kernel(kernel: Kernel, buffers: Mapping[str, Buffer], memory: Memory, sizes: Measures) -> None:
    module = Module(gpu.DIALECT)
    names = tuple(name for name, value in sizes.items() if isinstance(value, int))
    grid = gpu.render(kernel, dict(buffers), module, "kernel", names)
    text = module.text()
    if grid.shared:  # what the host gives each block lies where the kernel says, and is as long as the host says
        given = f"internal addrspace(3) global [{grid.shared // 4} x float] poison"
        text = text.replace("external addrspace(3) global [0 x float]", given)
    code = emulated(text)
    code.run(
        int(grid.blocks.at(sizes)), grid.threads, [memory[b] for b in grid.buffers], [int(sizes[n]) for n in names]
    )


# -- whole programs -------------------------------------------------------------------------------
@dataclass
class Ran:
    results: list[Any]
    kernels: int = 0  # that ran as on a GPU
    others: int = 0  # that no GPU would run, and operators that were called


def run(
    program: Program, inputs: Sequence[torch.Tensor], sizes: Measures | None = None, rtol: float = 1e-5,
    atol: float = 1e-5,
) -> Ran:  # fmt: skip
    """Each kernel is run on what those before it left, and compared with the interpreter on the same: on the kernel in
    the operators that it is rendered in."""
    verify(program)
    known = {**measure(program.sizes, program.numbers, inputs), **(sizes or {})}
    memory = memory_of(program, inputs, known)
    target = gpu_target()
    ran = Ran([])
    for step in program.steps:
        if not isinstance(step, Kernel) or why_not_here(step, target) is not None:
            _interpret(program, step, memory, known)
            ran.others += 1
            continue
        wanted = memory | {name: memory[name].clone() for name in (*step.reads, *step.writes)}
        _interpret(program, gpu.as_rendered(step), wanted, known)
        run_kernel(step, program.buffers, memory, known)
        for name in step.writes:
            agree(memory[name], wanted[name], rtol, atol, f"{name} of {step.name}")
        ran.kernels += 1
    ran.results = _interpret(program, None, memory, known)
    return ran


def agree(found: torch.Tensor, wanted: torch.Tensor, rtol: float, atol: float, what: str) -> None:
    unit = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}.get(wanted.dtype, 0.0)  # what is near may round apart
    rtol, atol = (rtol, atol) if wanted.dtype.is_floating_point else (0.0, 0.0)
    torch.testing.assert_close(
        found, wanted, rtol=max(rtol, unit), atol=atol, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


def _interpret(program: Program, step: Step | None, memory: Memory, sizes: Measures) -> list[Any]:
    """One step on memory as it is; of no step, the program's results."""
    buffers = {name: replace(buffer, kind="input") for name, buffer in program.buffers.items()}
    alone = replace(
        program, buffers=buffers, inputs=tuple(buffers), outputs=() if step else program.outputs,
        steps=(step,) if step else (), sizes=(), numbers=(),
    )  # fmt: skip
    return interpret(alone, [memory[name] for name in buffers], sizes)


def memory_of(program: Program, inputs: Sequence[torch.Tensor], sizes: Measures) -> Memory:
    memory: Memory = {}
    for name, buffer in program.buffers.items():
        memory[name] = _unwritten(buffer, int(buffer.size.at(sizes)))
        if buffer.kind == "number":
            memory[name].fill_(sizes[name])
    for name, given in zip(program.inputs, inputs, strict=True):
        if name is not None:
            given = given.detach()
            memory[name].copy_(torch.as_strided(given, memory[name].shape, (1,), given.storage_offset()))
    for span in plan_memory(program).shared:  # what lies where something else was read
        memory |= dict.fromkeys(span.members, memory[span.members[0]])
    return memory


def _unwritten(buffer: Buffer, count: int) -> torch.Tensor:
    """Memory of its own, aligned as little as may be. It holds what stands out where nothing is written."""
    dtype = to_torch(buffer.dtype)
    room = torch.empty(count * dtype.itemsize + 4 * ACCESS_BYTES, dtype=torch.uint8)
    first = (ACCESS_BYTES - room.data_ptr()) % (2 * ACCESS_BYTES)
    flat = room[first : first + count * dtype.itemsize].view(dtype)
    assert flat.data_ptr() % (2 * ACCESS_BYTES) == ACCESS_BYTES or not count
    return flat.fill_(torch.nan if dtype.is_floating_point else True if dtype == torch.bool else torch.iinfo(dtype).max)


def program_of(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], target: GpuTarget | None = None
) -> tuple[Program, list[torch.Tensor]]:
    """A function's kernels as they are scheduled for a GPU, and what they are called with."""
    ctx = Context(Options(), target or gpu_target())
    with torch.no_grad():
        graph = trace(lambda *args: function(*args), inputs, None, ctx, False).graph
    lowered = lower(graph, ctx)
    program = merge_axes(check_first(fuse(mark_outputs(lowered.program), ctx)))
    program = join_small(split_reductions(accumulate(program, ctx), ctx), ctx)
    return program, [*inputs, *lowered.constants]


def run_function(function: Callable[..., Any], *inputs: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-5) -> Ran:
    """The function's kernels, each compared with the interpreter, and its results with eager's."""
    with torch.no_grad():
        wanted = function(*(x.clone() for x in inputs))
    program, given = program_of(function, inputs)
    ran = run(program, given, rtol=rtol, atol=atol)
    for found, want in zip(ran.results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        agree(found, want, rtol, atol, "result")
    return ran


__all__ = [
    "Emulated",
    "Ran",
    "WrongOnGpu",
    "agree",
    "emulated",
    "gpu_target",
    "program_of",
    "run",
    "run_function",
    "run_kernel",
]
