"""Carry numbers: single numbers that lie on the host, in a graph whose tensors are on a device, are read there.

In: a `Joint`. Out: the same one, edited in place: all its tensors are on one device, but for inputs of one element that
are on the CPU. Such an input is an argument of each kernel that reads it, and the host looks it up where it starts the
kernel; a copy to the device stands for that. What is computed of such numbers is computed on the device.

Dynamo passes a Python float that varies in this way, and eager lets a number of the host stand beside tensors of a
device in elementwise operators. A graph in which one stands elsewhere, is written to, or comes from the device is not
compiled.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import fx
from torch.utils import _pytree as pytree

from litz.context import Context
from litz.errors import CaptureError, source_of
from litz.graph.editor import Editor
from litz.graph.signature import Joint
from litz.loop.dtype import from_torch

aten = torch.ops.aten

# Where eager takes numbers of the host, besides elementwise operators of two tensors.
_TAKE_NUMBERS = {
    aten.where.self, aten.masked_fill.Tensor, aten.fill.Tensor, aten.copy.default, aten.copy_.default,
    aten.index.Tensor, aten.index_put.default,
}  # fmt: skip


def carry_numbers(joint: Joint, ctx: Context) -> Joint:
    devices = {t.device for node in joint.graph.graph.nodes for t in _tensors(node)}
    if len(devices) > 1:
        _Pass(joint.graph, devices).run()
        joint.graph.recompile()
    return joint


class _Pass:
    def __init__(self, graph_module: fx.GraphModule, devices: set[torch.device]):
        self.editor = Editor(graph_module)
        self.names = " and ".join(sorted(map(str, devices)))
        others = [device for device in devices if device.type != "cpu"]
        if len(others) > 1:
            raise CaptureError(f"tensors are on {self.names}: a graph is compiled for one device")
        (self.device,) = others
        self.numbers: set[fx.Node] = set()  # what was on the host
        self.copies: dict[tuple[fx.Node, bool], fx.Node] = {}  # of inputs, on the device: for each side of the split

    def run(self) -> None:
        for node in list(self.editor.graph.nodes):
            if _is_on_host(node):
                self._check_is_number(node)
                self.numbers.add(node)
            if node.op == "get_attr" and node in self.numbers:
                # Constants are moved to the device where the program is loaded.
                node.meta["val"] = self.editor.value(aten._to_copy.default, (node,), {"device": self.device})
            elif node.op == "call_function":
                self._carry(node)
            elif node.op == "output":
                self._check_results(node)

    def _check_is_number(self, node: fx.Node) -> None:
        if any(t.dim() != 0 for t in _tensors(node)):
            self._refuse(node, "a graph is compiled for one device")
        if any(from_torch(t.dtype) is None for t in _tensors(node)):
            self._refuse(node, "a number of the host's has a type that no kernel takes")

    def _carry(self, node: fx.Node) -> None:
        """The node as one of the device's."""
        given = [n for n in node.all_input_nodes if n in self.numbers]
        others = [n for n in node.all_input_nodes if n not in self.numbers and _tensors(n)]
        if node in self.numbers:
            if others:
                self._refuse(node, "a number goes from the device to the host")
            if _draws(node.target):
                self._refuse(node, "a number is drawn on the host")
        elif not given:
            return
        elif not _tensors(node):
            self._refuse(node, "the host looks at a number")
        elif others and not _takes_numbers(node.target):
            self._refuse(node, f"{node.target} takes tensors of one device")
        if _writes(node) in self.numbers:
            self._refuse(node, "a number of the host's is written to")
        for number in given:
            if number.op == "placeholder":
                node.replace_input_with(number, self._copied(number, node))
        if node in self.numbers:
            self._move(node)

    def _copied(self, number: fx.Node, reader: fx.Node) -> fx.Node:
        """The backward has a copy of its own, so that what the split keeps is the number itself."""
        key = number, "in_backward" in reader.meta
        if key not in self.copies:
            kwargs = {"device": self.device}
            self.copies[key] = self.editor.call(aten._to_copy.default, (number,), kwargs, reader, reader)
        return self.copies[key]

    def _move(self, node: fx.Node) -> None:
        args, kwargs = pytree.tree_map_only(torch.device, lambda _: self.device, (node.args, node.kwargs))
        makes = isinstance(node.target, torch._ops.OpOverload) and not any(map(_tensors, node.all_input_nodes))
        if makes and any(a.name == "device" for a in node.target._schema.arguments):  # type: ignore[union-attr]
            kwargs = {**kwargs, "device": self.device}
        node.args, node.kwargs = args, kwargs
        node.meta["val"] = self.editor.value(node.target, node.args, node.kwargs)

    def _check_results(self, output: fx.Node) -> None:
        """An input may be a result as it is."""
        for node in output.all_input_nodes:
            if node in self.numbers and node.op != "placeholder":
                self._refuse(node, "a result is a number of the host's")

    def _refuse(self, node: fx.Node, why: str) -> NoReturn:
        raise CaptureError(f"tensors are on {self.names}: {why}", source=source_of(node))


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]


def _is_on_host(node: fx.Node) -> bool:
    return any(t.device.type == "cpu" for t in _tensors(node))


def _takes_numbers(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return False
    tensors = sum(str(argument.type) in ("Tensor", "Optional[Tensor]") for argument in target._schema.arguments)
    return target in _TAKE_NUMBERS or (torch.Tag.pointwise in target.tags and tensors == 2)


def _draws(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _writes(node: fx.Node) -> Any:
    """The argument that a node writes to, if it is one that does."""
    target = node.target
    return node.args[0] if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable else None


__all__ = ["carry_numbers"]
