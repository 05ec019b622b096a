"""An operator called as it is, from Python, between stretches of native code.

In: a `Call`. Out: a callable that takes its arguments from a call's frame and puts its results there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from litz.errors import CallError
from litz.loop.dtype import to_torch
from litz.loop.expr import Expr
from litz.loop.ir import Call, Number, View
from litz.loop.operator import TORCHS_OWN, operator_named, taken_apart
from litz.runtime.profiled import profiler
from litz.schedule.lifetimes import writes_in_place

if TYPE_CHECKING:
    from litz.runtime.executable import Executable, Frame


def _normal(x: torch.Tensor, mean: float = 0, std: float = 1, *, generator: Any = None) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).normal_(
        mean, std, generator=generator
    )


# Functional forms that draw in another order than the in-place operator they stand for, which fills a tensor with gaps
# one number at a time and a contiguous one in blocks.
_AS_EAGER: dict[str, Callable] = {"aten::normal_functional": _normal}


class Operator:
    def __init__(self, call: Call, executable: Executable, label: str = ""):
        """`label`: what profilers show."""
        self.call, self.executable, self.label = call, executable, label
        self.into_arena = writes_in_place(call)
        self.function: Callable = operator_named(call.target, "out" if self.into_arena else None)
        self.function = _AS_EAGER.get(call.target, self.function)
        own = operator_named(call.target)._schema.arguments
        aliases = any(a.alias_info is not None for a in own)
        # A result that may be a window on arena memory is copied: the arena does not know of it.
        buffers = executable.plan.buffers
        self.copies = aliases and any(buffers[name].kind != "input" for name in call.reads)
        # Whatever else it does, it may keep what it is given beyond the call, and memory of the arena is only lent.
        self.gives = taken_apart(call.target).namespace not in (*TORCHS_OWN, "litz")
        self.writes = {a.name for a in own if a.alias_info is not None and a.alias_info.is_write}
        self.names = [a.name for a in own]

    def __call__(self, frame: Frame) -> None:
        if not profiler._is_profiler_enabled:
            return self._run(frame)
        with profiler.record_function(self.label or self.call.target):
            self._run(frame)

    def _run(self, frame: Frame) -> None:
        executable, call = self.executable, self.call
        args = [self._argument(frame, a, self.names[i]) for i, a in enumerate(call.args)]
        kwargs = {k: self._argument(frame, v, k) for k, v in call.kwargs}
        if self.into_arena:
            (result,) = call.results
            assert result is not None
            self.function(*args, **kwargs, out=executable.tensor(frame, result))
            return
        found = self.function(*args, **kwargs)
        for expected, tensor in zip(call.results, tree_leaves(found), strict=True):
            if expected is not None:
                self._hold(frame, expected, tensor)

    def _hold(self, frame: Frame, expected: View, tensor: torch.Tensor) -> None:
        sizes, strides, dtype = frame.ints(expected.sizes), frame.ints(expected.strides), _dtype(expected)
        if tuple(tensor.shape) != sizes:
            raise CallError(f"{self.call.target} returned shape {tuple(tensor.shape)} where {sizes} was traced")
        plain = tensor.dtype == dtype and tensor.stride() == strides and tensor.storage_offset() == 0
        if self.copies or not plain or tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor():
            tensor = torch.empty_strided(sizes, strides, dtype=dtype, device=tensor.device).copy_(tensor)
        frame.tensors[expected.buffer] = tensor
        frame.slots[self.executable.slots[expected.buffer]] = tensor.data_ptr()

    def _argument(self, frame: Frame, arg: Any, name: str) -> Any:
        if isinstance(arg, View):
            tensor = self.executable.tensor(frame, arg)
            lent = arg.buffer not in frame.tensors
            return _own(tensor) if self.gives and lent and name not in self.writes else tensor
        if isinstance(arg, tuple):
            return [self._argument(frame, a, name) for a in arg]
        if isinstance(arg, Expr):
            return arg.at(frame.sizes)
        return frame.sizes[arg.name] if isinstance(arg, Number) else arg


def _own(lent: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of its own, all of what it is a window on: some operators look past their window."""
    whole = lent.untyped_storage().clone()
    return torch.empty(0, dtype=lent.dtype, device=lent.device).set_(
        whole, lent.storage_offset(), lent.shape, lent.stride()
    )


def _dtype(view: View) -> torch.dtype:
    """Of the window as it was traced, which may be one that only called operators know."""
    return (
        getattr(torch, view.dtype.removeprefix("torch.")) if view.dtype.startswith("torch.") else to_torch(view.dtype)
    )


__all__ = ["Operator"]
