"""Constants: parts of a graph that depend on no input are computed at compile time.

In: a graph module. Out: the same, where such a part became one `full` (if all its elements are equal) or one
stored tensor (if it is small). What feeds only other constants disappears with them. Places counted from `arange` stay
as they are: a formula of the loop's variables is no index to load.
"""

from __future__ import annotations

import torch
from torch import fx

from litz.context import Context
from litz.graph.alias import escapes, is_looked_around
from litz.graph.editor import Editor
from litz.graph.uniform import Constants

aten = torch.ops.aten

MAX_ELEMENTS = 1 << 18  # of a stored constant: beyond that, computing it anew is cheaper than its memory
_CREATORS = {
    aten.full.default, aten.arange.default, aten.arange.start, aten.arange.start_step, aten.zeros.default,
    aten.ones.default, aten.scalar_tensor.default, aten.empty.memory_format,
}  # fmt: skip
# What gives whole numbers that follow from positions, of whole numbers that do.
_POSITIONS = {
    aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar, aten.rsub.Tensor,
    aten.mul.Tensor, aten.mul.Scalar, aten.neg.default, aten.floor_divide.default, aten.floor_divide.Scalar,
    aten.div.Tensor_mode, aten.div.Scalar_mode, aten.remainder.Tensor, aten.remainder.Scalar, aten.fmod.Scalar,
    aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.transpose.int, aten.permute.default, aten.slice.Tensor, aten.select.int,
    aten.clone.default, aten.alias.default, aten.flip.default, aten.roll.default, aten._to_copy.default,
}  # fmt: skip
# Operators with an argument that says where: which one.
_PLACES = {
    aten.index.Tensor: 1, aten._unsafe_index.Tensor: 1, aten.index_put.default: 1, aten._unsafe_index_put.default: 1,
    aten.gather.default: 2, aten.index_select.default: 2, aten.take.default: 1, aten.embedding.default: 1,
    aten.scatter.src: 2, aten.scatter.value: 2, aten.scatter_add.default: 2, aten.index_add.default: 2,
    aten.index_copy.default: 2, aten.index_fill.int_Scalar: 2, aten.embedding_dense_backward.default: 1,
}  # fmt: skip


def fold_constants(graph_module: fx.GraphModule, ctx: Context) -> int:
    """Folds in place; how many nodes were replaced."""
    constants, editor = Constants(graph_module), Editor(graph_module)
    known: dict[fx.Node, bool] = {}
    positions: set[fx.Node] = set()
    for node in graph_module.graph.nodes:
        known[node] = _is_constant(node, constants)
        if known[node] and _is_position(node, positions):
            positions.add(node)
    folded = 0
    for node in list(graph_module.graph.nodes):
        if not known.get(node) or node._erased or node.target in _CREATORS or node.op == "get_attr":
            continue
        if node.users and all(known.get(user) for user in node.users):
            continue
        if escapes(node) or is_looked_around(node):
            # The user would receive the stored tensor itself, or a view of it, and could write to it; and what lies
            # around a part of a constant is not stored with it.
            continue
        if node in positions and any(_is_place_of(node, user) for user in node.users):
            continue
        if not ctx.spend(f"fold_constants at {node.name}"):
            return folded
        _fold(node, constants, editor)
        ctx.fired("fold_constants", __file__, fold_constants.__code__.co_firstlineno)
        folded += 1
    return folded


def _is_constant(node: fx.Node, constants: Constants) -> bool:
    value = node.meta.get("val")
    if node.op not in ("call_function", "get_attr") or not isinstance(value, torch.Tensor):
        return False
    if any(isinstance(size, torch.SymInt) for size in value.shape):
        return False  # asking how many elements it has would tie the program to the answer
    if not all(isinstance(s, int) for s in value.shape) or not 0 < value.numel() <= MAX_ELEMENTS:
        return False
    return constants.compact(node) is not None


def _is_position(node: fx.Node, positions: set[fx.Node]) -> bool:
    value = node.meta["val"]
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype is torch.bool:
        return False
    if node.target in _POSITIONS:
        return all(argument in positions for argument in node.all_input_nodes)
    return node.target in _CREATORS and node.target is not aten.empty.memory_format


def _is_place_of(node: fx.Node, user: fx.Node) -> bool:
    at = _PLACES.get(user.target)  # type: ignore[arg-type]
    if at is None:
        return False
    given = user.args[at]
    return node is given or (isinstance(given, (list, tuple)) and node in given)


def _fold(node: fx.Node, constants: Constants, editor: Editor) -> None:
    value = node.meta["val"]
    whole = constants.whole(node)
    assert whole is not None
    number = constants.uniform(node)
    if number is not None:
        kwargs = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
        new = editor.call(aten.full.default, (list(value.shape), number), kwargs, node, node)
    else:
        # A dimension of stride 0 says the same thing over and over: kept once, and expanded again.
        once = [1 if stride == 0 else size for size, stride in zip(value.shape, value.stride(), strict=True)]
        stored = torch.empty_strided(once, value.stride(), dtype=value.dtype)
        stored.copy_(whole[tuple(slice(0, size) for size in once)])
        new = editor.constant(stored.to(value.device), node, node)
        if once != list(value.shape):
            new = editor.call(aten.expand.default, (new, list(value.shape)), {}, node, node)
    editor.replace(node, new, fresh=True)
