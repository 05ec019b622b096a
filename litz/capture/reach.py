"""What a program reads of its arguments' memory beyond their elements, where it may be given copies.

In: a `Joint`. Out: nothing, or a `CaptureError`. A GPU's kernels are given a copy of an argument that does not lie at
a multiple of what they read at a time, or that moves between captured calls: the copy has the argument's elements and
what lies between them, and nothing around them. A view that is only handed back is made of the argument itself.
"""

from __future__ import annotations

import torch
from torch import fx

from litz.errors import CaptureError
from litz.graph.alias import is_view
from litz.graph.signature import Joint
from litz.graph.sizes import likely

aten = torch.ops.aten


def refuse_reads_around_arguments(joint: Joint) -> None:
    spans: dict[int, list[tuple[int, int]]] = {}  # of each argument's memory, the first and last element
    for node in joint.graph.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or 0 in map(likely, value.shape):
            continue
        storage = value.untyped_storage()._cdata
        if node.op == "placeholder":
            spans.setdefault(storage, []).append(_span(value))
        elif node.target is aten.as_strided.default and storage in spans and _is_read(node):
            first, last = _span(value)
            if not any(low <= first and last <= high for low, high in spans[storage]):
                raise CaptureError("as_strided reads memory around an argument, of which a GPU may be given a copy")


def _span(value: torch.Tensor) -> tuple[int, int]:
    first = likely(value.storage_offset())
    steps = ((likely(size) - 1) * likely(stride) for size, stride in zip(value.shape, value.stride(), strict=True))
    return first, first + sum(steps)


def _is_read(node: fx.Node) -> bool:
    """Whether anything but the program's caller sees what it is a view of."""
    return any(_is_read(user) if is_view(user) else user.op != "output" for user in node.users)


__all__ = ["refuse_reads_around_arguments"]
