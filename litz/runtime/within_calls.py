"""What called operators take for themselves while they run, measured: each is called once, on arguments like its own.

In: a `Call`. Out: bytes beyond its results. A convolution's backward takes several times its weight, in a library's own
layouts, and how much that is only the library knows. Asked of what PyTorch's allocator counts, on a CPU, for operators
of torch's own, where they touch enough to matter. Of others it is taken to be nothing, and that is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

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


class Taken(NamedTuple):
    """What a call takes for itself; `unknown` says why that could not be measured, if so, and 0 is counted."""

    bytes: int
    unknown: str | None = None


def taken_within(machine: Machine, say: Callable[[str], None] = lambda text: None) -> Callable[[Call], int]:
    """`say` is told, once for each operator, of those that take what nobody knows."""
    told: set[str] = set()

    def taken(call: Call) -> int:
        if _takes_nothing(call) or _touched(call) < _LEAST:
            return 0
        found = _asked(call, machine)
        if found.unknown is not None and call.target not in told:
            told.add(call.target)
            say(f"what {call.target} takes for itself is counted nowhere in the peak: {found.unknown}")
        return found.bytes

    return taken


def _takes_nothing(call: Call) -> bool:
    """Products are written where they are wanted, and Litz's own operators need nothing besides their results."""
    return not call.writes or writes_in_place(call) or taken_apart(call.target).namespace == "litz"


_KNOWN: dict[str, Taken] = {}  # process-wide, as the libraries are


def _touched(call: Call) -> int:
    return sum(map(_bytes, (*views((call.args, call.kwargs)), *(v for v in call.results if v is not None))))


def _asked(call: Call, machine: Machine) -> Taken:
    why_not = _why_not_run(call, machine)
    if why_not is not None:
        return Taken(0, why_not)
    question = f"{call.target}{_spelled((call.args, call.kwargs))}"
    if question not in _KNOWN:
        _KNOWN[question] = _measured(call)
    return _KNOWN[question]


def _why_not_run(call: Call, machine: Machine) -> str | None:
    if machine.device != "cpu":
        return "on a GPU it is not measured so far"
    if _touched(call) > machine.memory_bytes // _SHARE:
        return f"it touches more than one part in {_SHARE} of the machine's memory, too much for a trial"
    if taken_apart(call.target).namespace not in TORCHS_OWN:
        return "it is no operator of torch's own, and a trial might do more than compute"
    return None


def _measured(call: Call) -> Taken:
    try:
        with unset_fake_temporarily(), torch.no_grad(), torch.autocast("cpu", enabled=False), _numbers_to_come_stay():
            args, kwargs = _made(call.args), {name: _made(value) for name, value in call.kwargs}
            found: list[Any] = []
            highest = highest_allocation(lambda: found.append(operator_named(call.target)(*args, **kwargs)))
    except Exception as error:  # whatever it has against arguments that are made up: the program is not run by this
        return Taken(0, f"a trial raised {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
    given = _memory((args, kwargs)).keys()
    made = sum(size for address, size in _memory(found).items() if address not in given)
    return Taken(max(highest - made, 0))


def _memory(tensors: Any) -> dict[int, int]:
    """By the address of each tensor's memory, its bytes."""
    storages = (t.untyped_storage() for t in tree_leaves(tensors) if isinstance(t, torch.Tensor))
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _numbers_to_come_stay() -> AbstractContextManager[None]:
    """What a trial draws is taken from nobody."""
    return torch.random.fork_rng(devices=[])


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


__all__ = ["Taken", "taken_within"]
