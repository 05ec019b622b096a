"""What computing a forward value again takes, measured: each operator is run by itself, on arguments like its own.

In: a node of a joint graph. Out: seconds. Where it cannot be run (it raises, needs more than a part of the memory, is
on another device), what the ceilings say.

A time is asked for once: what was found is kept in the process and in the cache, by operator, arguments and machine, so
that the next compile makes the same choice, in this process or another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from litz.context import Lasting
from litz.graph.partition.cost import Ceilings, Cost, bytes_moved, seconds
from litz.graph.sizes import SYMBOLIC, likely
from litz.graph.trials import timed
from litz.target import GpuTarget, Machine

_ROUNDS = 5
_ENOUGH = 0.1  # seconds, for the rounds of one operator
_SHARE = 4  # of the memory that is free, an operator may take one part in so many


def measured(
    machine: Machine, ceilings: Ceilings, cache: Lasting | None, say: Callable[[str], None] = lambda text: None
) -> Cost:
    """`say` is told, once for each operator, of those that could not be run."""
    told: set[str] = set()
    about = (
        ", ".join(f"{k}={v}" for k, v in sorted(machine.cache_key_entries().items())) + f", torch {torch.__version__}"
    )

    def cost(node: fx.Node) -> float:
        otherwise = seconds(node, ceilings)
        if otherwise == 0.0:  # a view, a part of a tuple
            return 0.0
        found = _kept(node, about, machine, cache)
        if isinstance(found, float):
            return found
        if str(node.target) not in told:
            told.add(str(node.target))
            say(f"the time of {node.target} is not measured but judged by its bytes and operations: {found}")
        return otherwise

    return cost


def _kept(node: fx.Node, about: str, machine: Machine, cache: Lasting | None) -> float | str:
    """Seconds, or why they are not known."""
    question = f"{node.target}{_spelled((node.args, node.kwargs))} on {about}"
    if question in _KNOWN:
        return _KNOWN[question]
    key = blake2b(question.encode(), digest_size=20).hexdigest()
    kept = None if cache is None else cache.load("cost", key)
    found = kept if isinstance(kept, float) else _run(node, machine)
    if isinstance(found, str):
        return found
    _KNOWN[question] = found
    if cache is not None and kept is None:
        cache.store("cost", key, found, {"cost": question})
    return found


_KNOWN: dict[str, float] = {}  # process-wide, as the machine is


def _spelled(arguments: Any) -> str:
    return str(pytree.tree_map(_form, arguments))


def _form(value: Any) -> Any:
    value = value.meta.get("val") if isinstance(value, fx.Node) else value
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {_numbers(value.shape)} by {_numbers(value.stride())}"
    return likely(value) if isinstance(value, torch.SymInt) else value


def _numbers(sizes: Any) -> list[int]:
    return [likely(size) for size in sizes]


# -- running it ---------------------------------------------------------------------------------
def _run(node: fx.Node, machine: Machine) -> float | str:
    """Seconds of the fastest of some runs, or why there was none."""
    if 2 * bytes_moved(node) > _free(machine) // _SHARE:
        return f"it touches more than one part in {2 * _SHARE} of the memory that is free, too much for a trial"
    try:
        with unset_fake_temporarily(), torch.no_grad(), torch.autocast(machine.device, enabled=False):
            args, kwargs = pytree.tree_map(lambda value: _made(value, machine), (node.args, node.kwargs))
            return _timed(lambda: node.target(*args, **kwargs), machine)  # type: ignore[operator]
    except Exception as error:  # whatever it has against arguments that are made up: the program is not run by this
        return f"a trial raised {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _free(machine: Machine) -> int:
    if not isinstance(machine, GpuTarget):
        return machine.memory_bytes
    if not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
        return 0
    return torch.cuda.mem_get_info()[0]


def _made(value: Any, machine: Machine) -> Any:
    value = value.meta.get("val") if isinstance(value, fx.Node) else value
    if isinstance(value, SYMBOLIC):
        if not isinstance(value, torch.SymInt):
            raise TypeError("a number that only a call tells")
        return likely(value)
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type != machine.device:
        raise TypeError(f"it is on {value.device}")
    made = torch.empty_strided(_numbers(value.shape), _numbers(value.stride()), dtype=value.dtype, device=value.device)
    # Numbers whose products and powers are as ordinary as they are; places that every tensor has.
    return made.fill_(0.5) if made.is_floating_point() or made.is_complex() else made.zero_()


def _timed(run: Callable[[], Any], machine: Machine) -> float:
    if isinstance(machine, GpuTarget):
        return timed(run) / 1e3
    run()
    best = float("inf")
    until = time.perf_counter() + _ENOUGH
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        run()
        end = time.perf_counter()
        best = min(best, end - start)
        if end > until:
            break
    return best


__all__ = ["measured"]
