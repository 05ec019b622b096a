"""What called operators take for themselves while they run, measured: each is called once, on arguments like its own.

In: a `Call`. Out: bytes beyond its results. A convolution's backward takes several times its weight, in a library's own
layouts, and how much that is only the library knows. Asked of what PyTorch's allocator counts, on a CPU, for operators
of torch's own that draw no random number and write to no argument, where they touch enough to matter; else it is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from litz.compat import highest_allocation
from litz.loop.dtype import to_torch
from litz.loop.expr import Expr
from litz.loop.ir import Call, Number, View, views
from litz.loop.operator import TORCHS_OWN, operator_named, taken_apart
from litz.schedule.lifetimes import writes_in_place
from litz.target import Machine

_LEAST = 1 << 20  # bytes: what touches fewer takes too little to be asked
_SHARE = 4  # of the memory that there is, an operator may take one part in so many


def taken_within(machine: Machine) -> Callable[[Call], int]:
    def taken(call: Call) -> int:
        touched = sum(map(_bytes, (*views((call.args, call.kwargs)), *(v for v in call.results if v is not None))))
        if machine.device != "cpu" or not _LEAST <= touched <= machine.memory_bytes // _SHARE or not _may_run(call):
            return 0
        question = f"{call.target}{_spelled((call.args, call.kwargs))}"
        if question not in _KNOWN:
            _KNOWN[question] = _measured(call)
        return _KNOWN[question]

    return taken


_KNOWN: dict[str, int] = {}  # process-wide, as the libraries are


def _may_run(call: Call) -> bool:
    if call.mutates or writes_in_place(call) or taken_apart(call.target).namespace not in TORCHS_OWN:
        return False
    operator = operator_named(call.target)
    return torch.Tag.nondeterministic_seeded not in operator.tags and not operator._schema.is_mutable


def _measured(call: Call) -> int:
    try:
        with unset_fake_temporarily(), torch.no_grad(), torch.autocast("cpu", enabled=False):
            args, kwargs = _made(call.args), {name: _made(value) for name, value in call.kwargs}
            found: list[Any] = []
            highest = highest_allocation(lambda: found.append(operator_named(call.target)(*args, **kwargs)))
    except Exception:  # whatever an operator has against arguments that are made up: the program is not run by this
        return 0
    made = sum(t.untyped_storage().nbytes() for t in tree_leaves(found) if isinstance(t, torch.Tensor))
    return max(highest - made, 0)


def _made(arg: Any) -> Any:
    if isinstance(arg, View):
        strides = [stride.hint for stride in arg.strides]
        made = torch.empty_strided([max(size.hint, 0) for size in arg.sizes], strides, dtype=_dtype(arg.dtype))
        # Numbers whose products and powers are as ordinary as they are; places that every tensor has.
        return made.fill_(0.5) if made.is_floating_point() or made.is_complex() else made.zero_()
    if isinstance(arg, Expr):
        return arg.hint
    if isinstance(arg, Number):
        raise TypeError("a number that only a call tells")
    return [_made(a) for a in arg] if isinstance(arg, (tuple, list)) else arg


def _spelled(arg: Any) -> str:
    if isinstance(arg, View):
        return f"{arg.dtype}{[s.hint for s in arg.sizes]}{[s.hint for s in arg.strides]}"
    return f"({', '.join(map(_spelled, arg))})" if isinstance(arg, (tuple, list)) else repr(arg)


def _bytes(view: View) -> int:
    return math.prod(max(size.hint, 0) for size in view.sizes) * _dtype(view.dtype).itemsize


def _dtype(name: str) -> torch.dtype:
    """Also of what only called operators know."""
    return getattr(torch, name.removeprefix("torch.")) if name.startswith("torch.") else to_torch(name)


__all__ = ["taken_within"]
