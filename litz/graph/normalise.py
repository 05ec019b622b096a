"""Normalisation: one spelling for each call of a torch-level graph.

In: a graph as Dynamo wrote it: functions, methods and operators, arguments by place or by name. Out: the same
graph, where the calls that rules look for are functions with all their arguments in place, so that a rule is
written for one spelling. A write in place to a tensor that nobody else sees becomes a plain call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from litz.graph.mutation import is_fresh

NEEDED: Any = object()
# Parameters of each canonical call, with their defaults.
_SOFTMAX = (("input", NEEDED), ("dim", NEEDED), ("dtype", None))
_CONV = (
    ("input", NEEDED), ("weight", NEEDED), ("bias", None),
    ("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1),
)  # fmt: skip
_DROPOUT = (("input", NEEDED), ("p", 0.5), ("training", True), ("inplace", False))
_BATCH_NORM = (
    ("input", NEEDED), ("running_mean", NEEDED), ("running_var", NEEDED), ("weight", None), ("bias", None),
    ("training", False), ("momentum", 0.1), ("eps", 1e-5),
)  # fmt: skip
_TENSORS = (("tensors", NEEDED), ("dim", 0))
_SPLIT = (("tensor", NEEDED), ("split_size_or_sections", NEEDED), ("dim", 0))
_CHUNK = (("input", NEEDED), ("chunks", NEEDED), ("dim", 0))
_UNBIND = (("input", NEEDED), ("dim", 0))
_EXP = (("input", NEEDED),)
_DIV = (("input", NEEDED), ("other", NEEDED))
_REDUCED = (("input", NEEDED), ("dim", NEEDED), ("keepdim", False))
_MATMUL = (("input", NEEDED), ("other", NEEDED))
_BMM = (("input", NEEDED), ("mat2", NEEDED))

Form = tuple[Callable[..., Any], tuple[tuple[str, Any], ...]]
# What is written: the call it becomes, and the parameters in the order in which they were written.
_FORMS: dict[Any, Form] = {
    torch.matmul: (torch.matmul, _MATMUL),
    operator.matmul: (torch.matmul, _MATMUL),
    "matmul": (torch.matmul, _MATMUL),
    "__matmul__": (torch.matmul, _MATMUL),
    torch.bmm: (torch.bmm, _BMM),
    "bmm": (torch.bmm, _BMM),
    torch.exp: (torch.exp, _EXP),
    "exp": (torch.exp, _EXP),
    torch.div: (torch.div, _DIV),
    torch.true_divide: (torch.div, _DIV),
    "div": (torch.div, _DIV),
    "sub": (torch.sub, _DIV),
    torch.sum: (torch.sum, _REDUCED),
    "sum": (torch.sum, _REDUCED),
    torch.amax: (torch.amax, _REDUCED),
    "amax": (torch.amax, _REDUCED),
    torch.max: (torch.max, _REDUCED),
    "max": (torch.max, _REDUCED),
    torch.softmax: (torch.softmax, _SOFTMAX),
    "softmax": (torch.softmax, _SOFTMAX),
    functional.softmax: (torch.softmax, (*_SOFTMAX[:2], ("_stacklevel", 3), _SOFTMAX[2])),
    functional.dropout: (functional.dropout, _DROPOUT),
    torch.dropout: (functional.dropout, (*_DROPOUT[:1], ("p", NEEDED), ("train", NEEDED))),
    torch.cat: (torch.cat, _TENSORS),
    torch.concat: (torch.cat, _TENSORS),
    torch.concatenate: (torch.cat, _TENSORS),
    torch.stack: (torch.stack, _TENSORS),
    torch.split: (torch.split, _SPLIT),
    "split": (torch.split, (_SPLIT[0], ("split_size", NEEDED), _SPLIT[2])),
    torch.chunk: (torch.chunk, _CHUNK),
    "chunk": (torch.chunk, _CHUNK),
    torch.unbind: (torch.unbind, _UNBIND),
    "unbind": (torch.unbind, _UNBIND),
    torch.conv1d: (torch.conv1d, _CONV),
    torch.conv2d: (torch.conv2d, _CONV),
    torch.conv3d: (torch.conv3d, _CONV),
    functional.batch_norm: (functional.batch_norm, _BATCH_NORM),
}
_RENAMED = {"axis": "dim", "train": "training", "split_size": "split_size_or_sections"}
_SIGNATURES = {torch.sub: _DIV} | {
    made: parameters for made, parameters in _FORMS.values() if _FORMS.get(made) == (made, parameters)
}

# Writes in place, and the calls that make a new tensor of the same.
_IN_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    "add_": torch.add,
    "sub_": torch.sub,
    "mul_": torch.mul,
    "div_": torch.div,
    "masked_fill_": torch.masked_fill,
}


def canonical(node: fx.Node) -> Any:
    """What the node's call becomes, if anything."""
    made = _FORMS.get(node.target) if node.op in ("call_function", "call_method") else None
    return node.target if made is None else made[0]


def normalise(graph: fx.Graph) -> None:
    """In place, and only where the new spelling surely means the same."""
    recorded = torch.is_grad_enabled()
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        if node.target is torch._C._set_grad_enabled:
            recorded = bool(node.args[0])
        elif node.target in _IN_PLACE:
            _out_of_place(node, recorded)
        elif node.target in _FORMS:
            _spell(node, recorded)


def _spell(node: fx.Node, recorded: bool) -> None:
    made, written = _FORMS[node.target]
    given: dict[str, Any] = {_RENAMED.get(name, name): value for name, value in node.kwargs.items()}
    for (name, _), value in zip(written, node.args, strict=False):
        given[_RENAMED.get(name, name)] = value
    given.pop("_stacklevel", None)
    wanted = _SIGNATURES[made]
    arguments = {name: given.pop(name, default) for name, default in wanted}
    if given or len(node.args) > len(written) or any(value is NEEDED for value in arguments.values()):
        # `out=`, sizes spread over several arguments, a dimension left to be guessed.
        return
    if "dim" in arguments and not isinstance(arguments["dim"], (int, tuple, list)):
        # Of two tensors the larger, for one.
        return
    if (
        arguments.get("inplace")
        and _sole_owner(arguments["input"], node)
        and (recorded or not _learns(arguments["input"]))
    ):
        arguments["inplace"] = False
    node.op, node.target = "call_function", made
    node.args, node.kwargs = tuple(arguments.values()), {}


def _out_of_place(node: fx.Node, recorded: bool) -> None:
    """`recorded`: whether gradients are, where the node stands."""
    written = node.args[0]
    if not isinstance(written, fx.Node) or not _sole_owner(written, node):
        return
    before, after = written.meta.get("example_value"), node.meta.get("example_value")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return
    if before.requires_grad and not recorded:
        # It stays what it was to autograd; a new tensor would be a constant.
        return
    others = [a.meta.get("example_value") if isinstance(a, fx.Node) else a for a in node.args[1:]]
    if node.target != "masked_fill_" and not all(_keeps_type(before, other) for other in others):
        # In place the result is cast back to the type of what is written to.
        return
    node.op, node.target = "call_function", _IN_PLACE[node.target]


def _learns(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return not isinstance(value, torch.Tensor) or value.requires_grad


def _keeps_type(tensor: torch.Tensor, other: Any) -> bool:
    if isinstance(other, (bool, int, float)):
        return tensor.is_floating_point()
    return isinstance(other, torch.Tensor) and (
        tensor.is_floating_point() and torch.result_type(tensor, other) == tensor.dtype
    )


def _sole_owner(written: Any, by: fx.Node) -> bool:
    """Whether nobody but this call sees the tensor that it writes to."""
    return isinstance(written, fx.Node) and is_fresh(written) and set(written.users) == {by}
