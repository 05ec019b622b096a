"""What a forward value costs: bytes if it is kept, seconds if it is computed again.

In: a node of a joint graph, and for seconds how fast the machine computes and how fast its memory is. Out: numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from litz.graph.alias import COMPUTED_AGAIN, base, is_view
from litz.graph.partition.maxflow import INFINITE
from litz.graph.partition.sides import Sides
from litz.graph.sizes import likely
from litz.target import GpuTarget, Machine

aten = torch.ops.aten
Cost = Callable[[fx.Node], float]  # seconds to compute a node again, by itself


class Ceilings(NamedTuple):
    """What a machine reaches at best, by its data sheet: choices must not depend on what else it is doing."""

    flops: float  # a second, of float32
    bytes: float  # a second

    def seconds(self, flops: float, moved: float) -> float:
        return max(flops / self.flops, moved / self.bytes)


CORE = Ceilings(2e11, 1.6e10)
_CYCLES = 3e9
_PORTS = 2  # fused multiply-adds that a core starts in each cycle
_GPU = Ceilings(4e14, 3e12)


def ceilings(machine: Machine) -> Ceilings:
    if isinstance(machine, GpuTarget):
        return _GPU
    return Ceilings(machine.threads * machine.lanes(4) * 2 * _PORTS * _CYCLES, machine.threads * CORE.bytes)


# -- bytes --------------------------------------------------------------------------------------
def price(node: fx.Node, sides: Sides) -> int:
    """Bytes that keeping the node's value costs; views and tuples cannot be kept themselves, only their bases, nor what
    a rule has written to be computed again."""
    value = node.meta.get("val")
    if node in sides.alive:
        return 1
    if isinstance(value, (torch.SymInt, int, float, bool)):
        return 1
    if not isinstance(value, torch.Tensor) or is_view(node) or COMPUTED_AGAIN in node.meta:
        return INFINITE
    if narrow_type(node, sides) is not None:
        whole = base(node.args[0]).meta["val"]  # type: ignore[arg-type]  # rather this, which is there already
        return 1 + max(likely(whole.numel()), likely(value.numel())) * whole.element_size()
    return max(2, likely(value.numel()) * value.element_size())


_EXACT_IN = {torch.bfloat16: (torch.float32, torch.float64), torch.float16: (torch.float32, torch.float64),
             torch.float32: (torch.float64,)}  # fmt: skip


def narrow_type(node: fx.Node, sides: Sides) -> torch.dtype | None:
    """The type that holds all of a value which was cast from fewer bits. What the caller sees is kept as it is: eager's
    backward reads that memory, whatever is in it by then."""
    if node.op != "call_function" or node.target is not aten._to_copy.default or node in sides.seen:
        return None
    source = node.args[0].meta["val"].dtype  # type: ignore[union-attr]
    return source if node.meta["val"].dtype in _EXACT_IN.get(source, ()) else None


# -- seconds ------------------------------------------------------------------------------------
def seconds(node: fx.Node, machine: Ceilings) -> float:
    """To run the operator by itself, at the ceilings."""
    if node.op != "call_function" or is_view(node) or not isinstance(node.target, torch._ops.OpOverload):
        return 0.0
    return machine.seconds(_flops(node), bytes_moved(node))


def at_ceilings(machine: Ceilings) -> Cost:
    return partial(seconds, machine=machine)


def bytes_moved(node: fx.Node) -> int:
    """That the operator reads and writes."""
    made = sum(map(_bytes, pytree.tree_leaves(node.meta.get("val"))))
    return made + sum(_bytes(n.meta.get("val")) for n in node.all_input_nodes)


def _bytes(value: Any) -> int:
    return likely(value.numel()) * value.element_size() if isinstance(value, torch.Tensor) else 0


def _flops(node: fx.Node) -> float:
    args, kwargs = pytree.tree_map(_shape, (node.args, node.kwargs))
    return flops_of(node.target.overloadpacket, args, kwargs, pytree.tree_map(_shape, node.meta["val"]))  # type: ignore[union-attr]


def flops_of(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> float:
    """Of a call with shapes in the place of tensors; none where no one has counted them."""
    count = _flop_counts().get(operator)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=made))


def _shape(value: Any) -> Any:
    value = value.meta.get("val") if isinstance(value, fx.Node) else value
    return torch.Size(map(likely, value.shape)) if isinstance(value, torch.Tensor) else value


@lru_cache(maxsize=1)
def _flop_counts() -> Any:
    from torch.utils.flop_counter import flop_registry

    return flop_registry


__all__ = [
    "CORE",
    "Ceilings",
    "Cost",
    "at_ceilings",
    "bytes_moved",
    "ceilings",
    "flops_of",
    "narrow_type",
    "price",
    "seconds",
]
