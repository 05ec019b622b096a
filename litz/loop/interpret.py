"""The meaning of a loop program, slow and obvious: what every renderer must agree with.

In: a `Program` and its arguments. Out: its results, as torch tensors over the buffers' memory.

The one idea: a kernel is evaluated a line at a time over its whole iteration space. Axis `k` of `n` is an
`arange` lying along dimension `k`, every value is an array that broadcasts against all others, and a
reduction collapses the trailing dimensions, which are the reduced axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from litz.errors import CallError
from litz.loop.dtype import DTYPES, to_torch
from litz.loop.expr import Atom, Axis, Expr, Size, Value
from litz.loop.fault import FAULTS
from litz.loop.formula import Measures
from litz.loop.ir import (
    Apply,
    Arg,
    Buffer,
    Call,
    Check,
    Const,
    Index,
    Kernel,
    Load,
    Number,
    Op,
    Program,
    Reduce,
    Scan,
    Store,
    View,
    measure,
)
from litz.loop.operator import operator_named
from litz.loop.scalar import SCALARS

Sizes = Measures
Memory = Mapping[str, torch.Tensor]  # buffer -> its elements, flat
RunKernel = Callable[[Kernel, Mapping[str, Buffer], Memory, Sizes], None]


def run_kernel(kernel: Kernel, buffers: Mapping[str, Buffer], memory: Memory, sizes: Sizes) -> None:
    _KernelRun(kernel, buffers, memory, sizes).run()


def interpret(
    program: Program,
    inputs: Sequence[torch.Tensor | int],
    sizes: Sizes | None = None,
    run_kernel: RunKernel = run_kernel,
) -> list[object]:
    """Runs it. Stores to input buffers change the caller's tensors.

    `sizes`: the values of the program's sizes and floats; a size that is alone in an input buffer's size may be left
    out, and so may all that the program says where to find. `run_kernel`: another way to run kernels.
    """
    if len(inputs) != len(program.inputs):
        raise CallError(f"the program takes {len(program.inputs)} arguments, and {len(inputs)} were given")
    known = _bind_sizes(program, inputs, measure(program.sizes, program.numbers, inputs) | dict(sizes or {}))
    memory: dict[str, torch.Tensor] = {}
    for name, given in zip(program.inputs, inputs, strict=True):
        if name is not None:
            memory[name] = _flat_input(program.buffers[name], given, known)
    for name, buffer in program.buffers.items():
        if name in memory:
            continue
        if buffer.kind == "number":
            memory[name] = torch.tensor([known[name]], dtype=torch.float64)
        else:
            memory[name] = _unwritten(buffer, known)
    for step in program.steps:
        if isinstance(step, Kernel):
            run_kernel(step, program.buffers, memory, known)
        else:
            _call(step, memory, known)
    return [_argument(output, memory, known) for output in program.outputs]


def _bind_sizes(program: Program, inputs: Sequence[torch.Tensor | int], known: dict[str, Any]) -> dict[str, Any]:
    for name, given in zip(program.inputs, inputs, strict=True):
        if name is None or not isinstance(given, torch.Tensor):
            continue
        size = program.buffers[name].size
        unknown = {a for a in size.atoms() if isinstance(a, Size) and a.name not in known}
        if len(unknown) != 1 or len(size.terms) != 1 or len(size.terms[0][0]) != 1:
            continue
        extent = 1 + sum((n - 1) * step for n, step in zip(given.shape, given.stride(), strict=True))
        known[unknown.pop().name] = extent // size.terms[0][1]
    return known


def _flat_input(buffer: Buffer, given: torch.Tensor | int, sizes: Sizes) -> torch.Tensor:
    if not isinstance(given, torch.Tensor) or given.dtype != to_torch(buffer.dtype):
        raise CallError(f"input {buffer.name} must be a {buffer.dtype} tensor, not {type(given).__name__}")
    flat = given.detach()
    return torch.as_strided(flat, (number_of(buffer.size, sizes),), (1,), flat.storage_offset())


def _unwritten(buffer: Buffer, sizes: Sizes) -> torch.Tensor:
    # Filled with what stands out, so that an element read before it is written shows in the result.
    dtype = to_torch(buffer.dtype)
    fill = float("nan") if dtype.is_floating_point else True if dtype == torch.bool else torch.iinfo(dtype).max
    return torch.full((number_of(buffer.size, sizes),), fill, dtype=dtype)


def number_of(size: Expr, sizes: Sizes) -> int:
    def value_of(atom: Atom) -> int:
        assert isinstance(atom, Size), f"{atom} in {size} is not a size"
        if atom.name not in sizes and atom.formula is None:
            raise CallError(f"size {atom.name} follows from no input: give it in `sizes`")
        return atom.at(sizes)

    return size.evaluate(value_of)  # type: ignore[return-value]


# -- kernels --------------------------------------------------------------------------------------
class Body:
    """A kernel's operators at some points of its loops. Each axis is an array of as many dimensions (`rank`), and all
    that is computed broadcasts against all else. Where points lie outside the loops, `live` says which do not."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, Buffer], memory: Memory, sizes: Sizes, rank: int) -> None:
        self.kernel, self.buffers, self.memory, self.sizes = kernel, buffers, memory, sizes
        self.ones = (1,) * rank
        self.axes: dict[Axis, np.ndarray] = {}
        self.values: dict[str, np.ndarray] = {}

    def value(self, op: Op, live: np.ndarray | None = None) -> np.ndarray:
        if isinstance(op, Load):
            return self.load(op, live)
        if isinstance(op, Const):
            return np.full(self.ones, op.value, dtype=DTYPES[op.dtype].numpy)
        if isinstance(op, Index):
            return self.offsets(op.expr)
        if isinstance(op, Apply):
            return SCALARS[op.op].reference(*(self.values[name] for name in op.args))
        assert isinstance(op, Check)
        return self.check(op, live)

    def offsets(self, index: Expr) -> np.ndarray:
        def value_of(atom: Atom) -> object:
            if isinstance(atom, Axis):
                return self.axes[atom]
            if isinstance(atom, Value):
                return self.values[atom.name].astype(np.int64)
            return np.int64(number_of(Expr((((atom,), 1),)), self.sizes))

        found = np.asarray(index.evaluate(value_of), dtype=np.int64)
        return found.reshape(self.ones) if found.ndim == 0 else found

    def load(self, op: Load, live: np.ndarray | None = None) -> np.ndarray:
        at = self.offsets(op.index)
        cells = _cells(self.memory[op.buffer])
        mask = live if op.mask is None else self.values[op.mask] if live is None else live & self.values[op.mask]
        if mask is None:
            self.inside(op, at)
            return _from_cells(cells[at], op.dtype)
        mask, at = np.broadcast_arrays(mask, at)
        self.inside(op, at[mask])
        read = np.zeros(at.shape, dtype=DTYPES[op.dtype].numpy)
        read[mask] = _from_cells(cells[at[mask]], op.dtype)
        return read

    def store(self, op: Store, live: np.ndarray | None = None) -> None:
        at, value = np.broadcast_arrays(self.offsets(op.index), self.values[op.value])
        if live is not None:
            at, value, live = np.broadcast_arrays(at, value, live)
            at, value = at[live], value[live]
        self.inside(op, at)
        cells = _cells(self.memory[op.buffer])
        if op.update == "total":
            sums: np.ndarray = np.zeros(cells.shape, np.float64)  # a reference does not depend on an order
            np.add.at(sums, at, value)
            cells[:] = _to_cells(sums, self.buffers[op.buffer].dtype)
        elif op.update in (None, "put"):
            cells[at] = _to_cells(value, self.buffers[op.buffer].dtype)
        elif self.buffers[op.buffer].dtype == "bf16":
            whole = _from_cells(cells, "bf16")
            ACCUMULATE[op.update].at(whole, at, value)  # rounded once: a reference does not depend on an order
            cells[at] = _to_cells(whole[at], "bf16")
        else:
            ACCUMULATE[op.update].at(cells, at, value)

    def inside(self, op: Load | Store, at: np.ndarray) -> None:
        """NumPy would count a negative offset from the end, and hide the mistake."""
        count = self.memory[op.buffer].numel()
        if at.size and (at.min() < 0 or at.max() >= count):
            wrong = at.min() if at.min() < 0 else at.max()
            raise IndexError(f"kernel {self.kernel.name}: {op.buffer}[{op.index}] reaches {wrong} of {count} elements")

    def check(self, op: Check, live: np.ndarray | None = None) -> np.ndarray:
        value, limit = self.values[op.value], number_of(op.limit, self.sizes)
        good = (value >= (-limit if op.wrap else 0)) & (value < limit)
        if not np.all(good if live is None else good | ~live):
            raise FAULTS[op.fault].error(FAULTS[op.fault].message)
        return np.where(value < 0, value + limit, value)


class _KernelRun(Body):
    """All points of the loops at once."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, Buffer], memory: Memory, sizes: Sizes):
        axes = (*kernel.axes, *kernel.reduced)
        super().__init__(kernel, buffers, memory, sizes, len(axes))
        self.shape = tuple(number_of(axis.size, sizes) for axis in axes)
        for at, axis in enumerate(axes):
            self.axes[axis] = np.arange(self.shape[at]).reshape([-1 if i == at else 1 for i in range(len(axes))])

    def run(self) -> None:
        with np.errstate(all="ignore"):
            for op in self.kernel.body:
                if isinstance(op, Store):
                    self.store(op)
                else:
                    self.values[op.name] = as_type(self.evaluate(op), op.dtype)

    def evaluate(self, op: Op) -> np.ndarray:
        if isinstance(op, Scan):
            return ACCUMULATE[op.kind].accumulate(self.rows(op.value), axis=-1)
        return self.reduce(op) if isinstance(op, Reduce) else self.value(op)

    def rows(self, name: str) -> np.ndarray:
        """The value with its reduced axes written out: one that does not depend on them still counts at each step."""
        value, kept = self.values[name], len(self.kernel.axes)
        return np.broadcast_to(value, value.shape[:kept] + self.shape[kept:])

    def reduce(self, op: Reduce) -> np.ndarray:
        value, kept = self.rows(op.value), len(self.kernel.axes)
        rows = value.reshape(*value.shape[:kept], int(np.prod(self.shape[kept:])))
        return _reduce_rows(op.kind, rows).reshape(value.shape[:kept] + (1,) * len(self.kernel.reduced))


ACCUMULATE: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "logaddexp": np.logaddexp,
}  # fmt: skip


def _reduce_rows(kind: str, rows: np.ndarray) -> np.ndarray:
    if kind in ("sum", "prod"):
        # Added up in double, so that the reference does not depend on an order of summation.
        wide = np.float64 if rows.dtype.kind == "f" else rows.dtype
        return np.sum(rows, axis=-1, dtype=wide) if kind == "sum" else np.prod(rows, axis=-1, dtype=wide)
    if kind == "argpool":
        lost = np.isnan(rows) if rows.dtype.kind == "f" else np.zeros(rows.shape, bool)
        last = rows.shape[-1] - 1 - np.argmax(lost[..., ::-1], axis=-1)
        return np.where(lost.any(axis=-1), last, np.argmax(rows, axis=-1))
    one = {"max": np.max, "min": np.min, "any": np.any, "all": np.all, "argmax": np.argmax, "argmin": np.argmin}
    return np.asarray(one[kind](rows, axis=-1))  # type: ignore[operator]


def as_type(value: np.ndarray, dtype: str) -> np.ndarray:
    """The value rounded to its type; bfloat16, which NumPy lacks, as the float32 nearest to it."""
    value = np.asarray(value)
    if dtype == "bf16":
        return torch.from_numpy(np.array(value, dtype=np.float32)).bfloat16().float().numpy()
    if dtype == "f16":
        value = value.astype(np.float32)  # as eager: rounded twice
    if dtype == "u8" and value.dtype.kind == "f":
        value = value.astype(np.int64)  # as eager: a negative number wraps
    return value.astype(DTYPES[dtype].numpy, copy=False)


def _cells(flat: torch.Tensor) -> np.ndarray:
    """The buffer's memory, shared; bfloat16 as its bits."""
    return flat.view(torch.int16).numpy() if flat.dtype == torch.bfloat16 else flat.numpy()


def _from_cells(cells: np.ndarray, dtype: str) -> np.ndarray:
    if dtype != "bf16":
        return cells
    return torch.from_numpy(np.array(cells)).view(torch.bfloat16).float().numpy()


def _to_cells(value: np.ndarray, dtype: str) -> np.ndarray:
    if dtype != "bf16":
        return value
    return torch.from_numpy(np.array(value)).bfloat16().view(torch.int16).numpy()


# -- calls ----------------------------------------------------------------------------------------
def _call(call: Call, memory: Memory, sizes: Sizes) -> None:
    args = [_argument(arg, memory, sizes) for arg in call.args]
    kwargs = {name: _argument(arg, memory, sizes) for name, arg in call.kwargs}
    with torch.no_grad():
        made = list(_tensors(operator_named(call.target)(*args, **kwargs)))
        if call.results and len(made) != len(call.results):
            raise CallError(f"{call.target} gave {len(made)} results where {len(call.results)} were expected")
        for view, tensor in zip(call.results, made, strict=False):
            if view is not None and tensor is not None:
                _window(view, memory, sizes).copy_(tensor)


def _argument(arg: Arg, memory: Memory, sizes: Sizes) -> object:
    if isinstance(arg, View):
        return _window(arg, memory, sizes)
    if isinstance(arg, Expr):
        return number_of(arg, sizes)
    if isinstance(arg, Number):
        return memory[arg.name].item()
    if isinstance(arg, (tuple, list)):
        return [_argument(item, memory, sizes) for item in arg]
    return arg


def _window(view: View, memory: Memory, sizes: Sizes) -> torch.Tensor:
    flat = memory[view.buffer].view(to_torch(view.dtype))
    shape = [number_of(size, sizes) for size in view.sizes]
    strides = [number_of(stride, sizes) for stride in view.strides]
    return torch.as_strided(flat, shape, strides, flat.storage_offset() + number_of(view.offset, sizes))


def _tensors(result: object) -> Iterator[torch.Tensor | None]:
    if isinstance(result, (tuple, list)):
        for item in result:
            yield from _tensors(item)
    elif result is None or isinstance(result, torch.Tensor):
        yield result
    else:
        yield torch.as_tensor(result)


__all__ = ["ACCUMULATE", "Body", "Memory", "RunKernel", "Sizes", "as_type", "interpret", "number_of", "run_kernel"]
