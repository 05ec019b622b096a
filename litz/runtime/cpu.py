"""The compiled program as a callable: binds memory, runs the host functions, hands back the outputs.

In: a `Rendering`, its program and memory layout. Out: `Executable`, called with the flat inputs.

Each call in flight has a `Frame` of its own (arena, table of pointers), taken from a pool, so that
threads may call one executable at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz.codegen.render import Native, Rendering
from litz.codegen.shim import INDEX_OUT_OF_RANGE, LAYOUT_DIFFERS, operator_of
from litz.errors import CallError
from litz.loop.dtype import DTYPES, to_torch
from litz.loop.expr import Expr
from litz.loop.ir import Call, Program, View
from litz.runtime.jit import HOST_FUNCTION, Code
from litz.schedule.memory import Layout, writes_in_place
from litz.target import Target


class Frame:
    """What one call in flight owns."""

    __slots__ = (
        "arena",
        "error",
        "error_address",
        "slots",
        "slots_address",
        "tensors",
        "views",
        "workspace",
        "workspace_address",
    )

    def __init__(self, executable: Executable):
        self.arena = torch.empty(executable.layout.size + 64, dtype=torch.uint8)
        self.workspace = torch.empty(executable.rendering.workspace + 64, dtype=torch.uint8)
        self.workspace_address = _aligned(self.workspace)
        self.slots = (ctypes.c_int64 * max(1, len(executable.slots)))()
        self.slots_address = ctypes.addressof(self.slots)
        self.error = ctypes.c_int32(0)
        self.error_address = ctypes.addressof(self.error)
        base = _aligned(self.arena)
        for name, offset in executable.layout.offsets.items():
            self.slots[executable.slots[name]] = base + offset
        self.tensors: dict[str, torch.Tensor] = {}  # buffers held as tensors during the call
        self.views: dict[View, torch.Tensor] = {}  # windows on the arena, for called operators


def _aligned(tensor: torch.Tensor) -> int:
    return -(-tensor.data_ptr() // 64) * 64


class Executable:
    def __init__(
        self, rendering: Rendering, program: Program, layout: Layout, constants: Sequence[torch.Tensor], target: Target
    ):
        self.rendering, self.program, self.layout = rendering, program, layout
        self.slots = rendering.slots
        self.constants = tuple(constants)
        self.arguments = len(program.inputs) - len(self.constants)
        self.eager: Callable[..., Any] | None = None  # the user's function, where one call of it is one of this
        self._code = Code(rendering.text, target, rendering.libraries)
        self._plan = [self._bind(item) for item in rendering.plan]
        self._frames: list[Frame] = []
        self._inputs = [(i, self.slots[name]) for i, name in enumerate(program.inputs) if name is not None]
        self._inputs_in_order = [slot for _, slot in self._inputs] == list(range(len(program.inputs)))
        self._fresh = self._fresh_outputs()
        self._simple = (
            len(self._plan) == 1
            and isinstance(self._plan[0], tuple)
            and not self.constants
            and self._inputs_in_order
            and len(self._fresh) == len(program.outputs)
            and all(_is_whole(view, made) for view, made in zip(program.outputs, self._fresh, strict=True))
        )

    # -- preparation --------------------------------------------------------------------------------
    def _bind(self, item: Native | Call) -> Any:
        if isinstance(item, Native):
            return (self._code.function(item.function, HOST_FUNCTION),)
        return _Operator(item, self)

    def _fresh_outputs(self) -> list[tuple[str, tuple[int, ...], tuple[int, ...], torch.dtype]]:
        """The output buffers to allocate on each call: name, shape and strides, type."""
        fresh: dict[str, tuple] = {}
        for name, buffer in self.program.buffers.items():
            if buffer.kind != "output" or name in self.layout.owned:
                continue
            whole = [v for v in self.program.outputs if isinstance(v, View) and v.buffer == name]
            view = whole[0]
            if len(whole) == 1 and view.offset.is_int and view.offset.int == 0 and _covers(view, buffer.size.int):
                fresh[name] = (name, _ints(view.sizes), _ints(view.strides), to_torch(view.dtype))
            else:
                fresh[name] = (name, (buffer.size.int,), (1,), to_torch(buffer.dtype))
        order = [v.buffer for v in self.program.outputs if isinstance(v, View) and v.buffer in fresh]
        return [fresh[name] for name in dict.fromkeys((*order, *fresh))]

    # -- the call -----------------------------------------------------------------------------------
    def __call__(self, *args: Any) -> list[Any]:
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = Frame(self)
        try:
            if self._simple:
                return self._run_simple(frame, args)
            return self._run(frame, args)
        finally:
            frame.tensors.clear()
            self._frames.append(frame)

    def _run_simple(self, frame: Frame, args: tuple) -> list[Any]:
        """One native stretch, fresh outputs: nothing to look up."""
        slots = frame.slots
        slots[0 : len(args)] = [a.data_ptr() for a in args]
        outputs = []
        for name, sizes, strides, dtype in self._fresh:
            tensor = torch.empty_strided(sizes, strides, dtype=dtype)
            slots[self.slots[name]] = tensor.data_ptr()
            outputs.append(tensor)
        self._plan[0][0](frame.slots_address, frame.workspace_address, frame.error_address)
        if frame.error.value:
            self._raise(frame, args)
        return outputs

    def _run(self, frame: Frame, args: tuple) -> list[Any]:
        slots, tensors = frame.slots, frame.tensors
        args = (*args, *self.constants)
        for position, slot in self._inputs:
            slots[slot] = args[position].data_ptr()
        for position, name in enumerate(self.program.inputs):
            if name is not None:
                tensors[name] = args[position]
        for name, sizes, strides, dtype in self._fresh:
            tensor = torch.empty_strided(sizes, strides, dtype=dtype)
            tensors[name] = tensor
            slots[self.slots[name]] = tensor.data_ptr()
        for item in self._plan:
            if isinstance(item, tuple):
                item[0](frame.slots_address, frame.workspace_address, frame.error_address)
                if frame.error.value:
                    self._raise(frame, args)
            else:
                item(frame)
        return [self._output(frame, output) for output in self.program.outputs]

    def _raise(self, frame: Frame, args: tuple) -> None:
        code = frame.error.value
        frame.error.value = 0
        if self.eager is not None:
            self.eager(*args[: self.arguments])  # raises eager's own error, of its type and in its words
        if code == INDEX_OUT_OF_RANGE:
            raise IndexError("index out of range in self")
        if code == LAYOUT_DIFFERS:
            raise CallError("a library operator laid its result out otherwise than it was traced")
        raise CallError("a library operator failed; its own message is on the standard error stream")

    def _output(self, frame: Frame, output: Any) -> Any:
        if isinstance(output, View):
            return self.tensor(frame, output)
        if isinstance(output, Expr):
            return output.int
        return output

    def tensor(self, frame: Frame, view: View) -> torch.Tensor:
        """The window as a torch tensor."""
        base = frame.tensors.get(view.buffer)
        if base is None:
            found = frame.views.get(view)
            if found is None:
                # A storage of its own: some operators count offsets from the start of the storage.
                size = self.program.buffers[view.buffer].size.int * DTYPES[view.dtype].bytes
                address = frame.slots[self.slots[view.buffer]]
                storage = torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), size)
                found = torch.empty(0, dtype=to_torch(view.dtype))
                found.set_(storage, view.offset.int, _ints(view.sizes), _ints(view.strides))
                frame.views[view] = found
            return found
        sizes, strides, offset = _ints(view.sizes), _ints(view.strides), view.offset.int
        if offset == 0 and base.shape == sizes and base.stride() == strides:
            return base
        return base.as_strided(sizes, strides, base.storage_offset() + offset)


def _normal(x: torch.Tensor, mean: float = 0, std: float = 1, *, generator: Any = None) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).normal_(mean, std, generator=generator)


# Functional forms that draw in another order than the in-place operator they stand for, which fills a tensor with gaps
# one number at a time and a contiguous one in blocks.
_AS_EAGER: dict[str, Callable] = {"aten::normal_functional": _normal}


class _Operator:
    """An operator called as it is, from Python."""

    def __init__(self, call: Call, executable: Executable):
        self.call, self.executable = call, executable
        namespace, rest = call.target.split("::")
        name, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, namespace), name)
        self.into_arena = writes_in_place(call)
        self.function: Callable = getattr(packet, "out" if self.into_arena else (overload or "default"))
        self.function = _AS_EAGER.get(call.target, self.function)
        own = operator_of(call)._schema.arguments
        aliases = any(a.alias_info is not None for a in own)
        # A result that may be a window on arena memory is copied: the arena does not know of it.
        buffers = executable.program.buffers
        self.copies = aliases and any(buffers[name].kind != "input" for name in call.reads)

    def __call__(self, frame: Frame) -> None:
        executable, call = self.executable, self.call
        args = [self._argument(frame, a) for a in call.args]
        kwargs = {k: self._argument(frame, v) for k, v in call.kwargs}
        if self.into_arena:
            (result,) = call.results
            assert result is not None
            self.function(*args, **kwargs, out=executable.tensor(frame, result))
            return
        found = self.function(*args, **kwargs)
        found = found if isinstance(found, (tuple, list)) else (found,)
        for expected, tensor in zip(call.results, found, strict=True):
            if expected is not None:
                self._hold(frame, expected, tensor)

    def _hold(self, frame: Frame, expected: View, tensor: torch.Tensor) -> None:
        if tuple(tensor.shape) != _ints(expected.sizes):
            traced = _ints(expected.sizes)
            raise CallError(f"{self.call.target} returned shape {tuple(tensor.shape)} where {traced} was traced")
        dtype = _dtype(expected)
        if (
            self.copies
            or tensor.dtype != dtype
            or tensor.stride() != _ints(expected.strides)
            or tensor.storage_offset() != 0
        ):
            laid_out = torch.empty_strided(_ints(expected.sizes), _ints(expected.strides), dtype=dtype)
            tensor = laid_out.copy_(tensor)
        frame.tensors[expected.buffer] = tensor
        frame.slots[self.executable.slots[expected.buffer]] = tensor.data_ptr()

    def _argument(self, frame: Frame, arg: Any) -> Any:
        if isinstance(arg, View):
            return self.executable.tensor(frame, arg)
        if isinstance(arg, tuple):
            return [self._argument(frame, a) for a in arg]
        if isinstance(arg, Expr):
            return arg.int
        return arg


def _dtype(view: View) -> torch.dtype:
    """Of the window as it was traced, which may be one that only called operators know."""
    return (
        getattr(torch, view.dtype.removeprefix("torch.")) if view.dtype.startswith("torch.") else to_torch(view.dtype)
    )


def _ints(values: Sequence[Expr]) -> tuple[int, ...]:
    return tuple(v.int for v in values)


def _is_whole(output: Any, made: tuple[str, tuple[int, ...], tuple[int, ...], torch.dtype]) -> bool:
    """Whether the output is the tensor that was made for its buffer, and not a window on it."""
    name, sizes, strides, _ = made
    return (
        isinstance(output, View)
        and output.buffer == name
        and output.offset.int == 0
        and (_ints(output.sizes), _ints(output.strides)) == (sizes, strides)
    )


def _covers(view: View, size: int) -> bool:
    extent = 1 + sum((n.int - 1) * s.int for n, s in zip(view.sizes, view.strides, strict=True))
    return extent == size or any(n.int == 0 for n in view.sizes)
