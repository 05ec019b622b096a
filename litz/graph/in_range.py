"""Whether indices are within what they point into: then nothing is lost where the read is not made.

In: a node that reads at indices. Out: whether no index of it can fail. Bounds of whole numbers are found by walking
from the index to where its numbers come from; those known only at run time are compared by their form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten

Known = Callable[[fx.Node], "torch.Tensor | None"]
Bounds = tuple[Any, Any]

# Each element of the result is one of the first argument.
_SAME = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.transpose.int, aten.permute.default, aten.t.default,
    aten.slice.Tensor, aten.select.int, aten.clone.default, aten.alias.default, aten.detach.default, aten.flip.default,
    aten.roll.default, aten.repeat.default, aten._to_copy.default, aten.lift_fresh_copy.default,
}  # fmt: skip
_ARANGES = {aten.arange.default, aten.arange.start, aten.arange.start_step}
_REMAINDERS = {aten.remainder.Scalar, aten.remainder.Tensor}
# Where the indices stand, along which dimension they count, and whether they may count from the end.
_READS: dict[Any, tuple[int, int | None, bool]] = {
    aten.index_select.default: (2, 1, False),
    aten.gather.default: (2, 1, False),
    aten.embedding.default: (1, None, False),
}
READS_AT_INDICES = frozenset({*_READS, aten.index.Tensor})


def in_range(node: fx.Node, known: Known) -> bool:
    """Whether all indices that the node reads at are proved to be there. `known`: a node's elements, where they are."""
    source = node.args[0].meta["val"]  # type: ignore[union-attr]
    if node.target is aten.index.Tensor:
        given = node.args[1]
        assert isinstance(given, (list, tuple))
        return all(_fits(index, source.shape[dim], True, known) for dim, index in enumerate(given) if index is not None)
    place, dim_at, from_end = _READS[node.target]
    dim = 0 if dim_at is None else node.args[dim_at]
    size = source.shape[dim] if source.dim() else 1
    return _fits(node.args[place], size, from_end, known)


def _fits(index: Any, size: Any, from_end: bool, known: Known) -> bool:
    if not isinstance(index, fx.Node) or index.meta["val"].dtype in (torch.bool, torch.uint8):
        return False
    found = _bounds(index, known, 16)
    if found is None:
        return False
    low, high = found
    return statically_known_true(low >= (-size if from_end else 0)) and statically_known_true(high < size)


def _bounds(node: Any, known: Known, steps: int) -> Bounds | None:
    """The least and the greatest number of the node, or None."""
    if isinstance(node, (int, torch.SymInt)):
        return node, node
    if not isinstance(node, fx.Node) or steps == 0 or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    if node.meta["val"].is_floating_point():
        return None
    if node.meta["val"].dtype == torch.bool:
        return 0, 1
    elements = known(node)
    if elements is not None:
        return (int(elements.min()), int(elements.max())) if elements.numel() else None
    if node.op != "call_function":
        return None
    if node.target in _SAME:
        return _bounds(node.args[0], known, steps - 1)
    if node.target in _ARANGES:
        return _counted(node)
    if node.target in _REMAINDERS and isinstance(node.args[1], int) and node.args[1] > 0:
        return 0, node.args[1] - 1
    if node.target in (aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar) and not node.kwargs:
        a, b = (_bounds(part, known, steps - 1) for part in node.args[:2])
        if a is None or b is None or len(node.args) > 2:
            return None
        is_sum = node.target in (aten.add.Tensor, aten.add.Scalar)
        return (a[0] + b[0], a[1] + b[1]) if is_sum else (a[0] - b[1], a[1] - b[0])
    return None


def _counted(node: fx.Node) -> Bounds | None:
    """The first and the last of numbers that are counted one by one."""
    numbers = list(node.args) if node.target is not aten.arange.default else [0, node.args[0]]
    start, end = numbers[:2]
    step = numbers[2] if len(numbers) > 2 else 1
    if step != 1 or not isinstance(start, (int, torch.SymInt)) or not isinstance(end, (int, torch.SymInt)):
        return None
    return start, end - 1


__all__ = ["READS_AT_INDICES", "in_range"]
