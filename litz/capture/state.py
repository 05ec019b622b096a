"""Which inputs of a graph are parameters and buffers of the user's modules: those that may be frozen.

In: Dynamo's graph and its inputs. Out: the places of such inputs and their names, as `model.state_dict()` has them.
Plain arguments are none of them, whatever their type: another call may bring others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from litz.compat import source_name
from litz.context import Context
from litz.errors import OptionError

_STATE = re.compile(r"\._(parameters|buffers)\[['\"](?P<name>[^'\"]+)['\"]\]$")
_WHOLE = (torch.int8, torch.int32, torch.int64)
_MODULE = re.compile(r"\._modules\[['\"](?P<name>[^'\"]+)['\"]\]|\.(?P<attribute>[A-Za-z]\w*)")


def state_of(graph_module: fx.GraphModule, inputs: Sequence[Any], held: Sequence[str]) -> dict[int, str]:
    """`held`: the names of the last inputs, which the graph itself held. A tensor made in inference mode is left out:
    torch does not count what is written to it."""
    nodes = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    names = [_name_of(source_name(node)) for node in nodes[: len(nodes) - len(held)]]
    found = {place: name for place, name in enumerate([*names, *held]) if name is not None}
    return {place: name for place, name in found.items() if _may_be_watched(inputs[place])}


def zeros_of(inputs: Sequence[Any], state: Collection[int]) -> frozenset[int]:
    """Those of them that hold whole numbers, all of them zero: what they are is part of what is compiled."""
    return frozenset(place for place in state if _is_zero(inputs[place]))


def _is_zero(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.device.type != "cpu":
        return False
    return value.dtype in _WHOLE and not bool(value.any())


def _name_of(source: str | None) -> str | None:
    """`fc.weight` for `L['self']._modules['fc']._parameters['weight']`."""
    found = None if source is None else _STATE.search(source)
    if source is None or found is None:
        return None
    modules = [m["name"] or m["attribute"] for m in _MODULE.finditer(source[: found.start()])]
    return ".".join([*modules, found["name"]])


def _may_be_watched(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_inference()


def refuse_under_gradients(ctx: Context) -> None:
    if ctx.options.freeze and ctx.occasion.training and ctx.state:
        learns = next(iter(ctx.state.values()))
        raise OptionError(
            f"freeze: the program is called where gradients are recorded, and {learns} may be trained; what is frozen "
            "is a constant, and gets no gradient",
            source=ctx.occasion.source,
            hint="call it under `torch.no_grad()` or `torch.inference_mode()`, or leave `freeze` out for training",
        )


__all__ = ["refuse_under_gradients", "state_of", "zeros_of"]
