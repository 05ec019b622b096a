"""Freeze: parameters and buffers that the program never writes to become its constants.

In: a `Joint` of an inference. Out: the same one, with those inputs marked; `fold_frozen` computes with them, `hoist`
takes them out of the arguments. Only the trace tells what is written to, so all of them come as inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from litz.context import Context
from litz.errors import OptionError, source_of
from litz.graph.freeze.frozen import FROZEN, ZERO
from litz.graph.signature import Joint, Signature
from litz.loop.operator import is_zero_point
from litz.report import Freezing, Stays

aten = torch.ops.aten

_STATISTICS = 3  # the place of the running mean among the arguments of each of these
# Batch norms, and the place of the flag that says that they learn; one of them always does.
_BATCH_NORMS: dict[object, int | None] = {
    aten._native_batch_norm_legit.default: 5, aten._native_batch_norm_legit_functional.default: 5,
    aten.native_batch_norm.default: 5, aten.cudnn_batch_norm.default: 5,
    aten._batch_norm_with_update.default: None, aten._batch_norm_with_update_functional.default: None,
}  # fmt: skip


def freeze(joint: Joint, ctx: Context) -> Joint:
    if not ctx.options.freeze:
        return joint
    arguments = tuple(range(len(joint.signature.places or joint.signature.inputs)))
    _refuse_live_batch_norm(joint.graph.graph, ctx.state)
    inputs = [node for node in joint.graph.graph.nodes if node.op == "placeholder"]
    stay = []
    for place, name in ctx.state.items():
        at = joint.signature.places[place] if joint.signature.places else place
        why = _why_it_stays(at, inputs, joint.signature) if joint.signature.subclasses is None else _SUBCLASSES
        if why is None:
            inputs[at].meta[FROZEN] = True
            if place in ctx.zeros and is_zero_point(inputs[at]):
                inputs[at].meta[ZERO] = True
        else:
            stay.append(Stays(place, name, why))
    ctx.freezing = Freezing(kept=arguments, stays=tuple(stay))
    return joint


_SUBCLASSES = "arguments are subclasses of tensors, which are taken apart"


def _why_it_stays(at: int, inputs: list[fx.Node], signature: Signature) -> str | None:
    """What keeps an input from being a constant."""
    spec, value = signature.inputs[at], inputs[at].meta.get("val")
    if spec.mutated:
        return "it is written to"
    if any(output.kind in ("input", "view") and output.index == at for output in signature.outputs):
        return "it, or a view of it, is a result"
    if signature.bases:
        return "some arguments share memory, and one of them is written to"
    if spec.lazy or spec.reshaped is not None:
        return "it is conjugated or negated by a bit, or changes its shape"
    if not isinstance(value, torch.Tensor) or any(isinstance(size, torch.SymInt) for size in value.shape):
        return "its sizes vary"
    devices = {n.meta["val"].device for n in inputs if isinstance(n.meta.get("val"), torch.Tensor)}
    if value.device.type == "cpu" and len(devices) > 1:
        return "it is a number of the host's beside tensors of a device"
    return None


def _refuse_live_batch_norm(graph: fx.Graph, state: Mapping[int, str]) -> None:
    for node in graph.nodes:
        if node.target not in _BATCH_NORMS or not isinstance(node.args[_STATISTICS], fx.Node):
            continue
        flag = _BATCH_NORMS[node.target]
        if flag is None or node.args[flag]:
            raise OptionError(
                "freeze: a batch norm is in training mode, so that every call changes its statistics, and they are "
                f"no constants ({len(state)} parameters and buffers were to be frozen)",
                source=source_of(node), hint="call `model.eval()` before the first call, or leave `freeze` out",
            )  # fmt: skip


__all__ = ["freeze"]
