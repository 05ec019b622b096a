"""Write in place: what is put into a part of an input is written there, and nowhere else.

In: the graph of an inference. A functional graph computes an input that is written to anew, whole, and copies that back
at its end. Out: the same graph, where an input that gets a few new rows, as a cache of keys and values does at each
token, is written to by the operator that puts them there. Whoever read what it made reads the input.

Only where nobody reads what the input was before, once it has been written to.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from litz.context import Context
from litz.graph.alias import is_view
from litz.graph.editor import Editor
from litz.graph.sizes import sizes

aten = torch.ops.aten

_PUTS = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
}
_WINDOWS = {aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int}


def write_in_place(graph_module: fx.GraphModule, ctx: Context) -> fx.GraphModule:
    graph = graph_module.graph
    copies = list(graph.find_nodes(op="call_function", target=aten.copy_.default))
    if not copies:
        return graph_module
    turn = {node: at for at, node in enumerate(graph.nodes)}
    editor = Editor(graph_module)
    for copy in copies:
        written = copy.args[0]
        assert isinstance(written, fx.Node)
        puts = _puts(written, copy)
        if not puts or not _are_read_in_turn(written, puts, copy, turn):
            continue
        if not ctx.spend(f"write_in_place at {copy.name}"):
            break
        for put in puts:
            _put(editor, written, put)
        copy.replace_all_uses_with(written)
        graph.erase_node(copy)
        ctx.fired("write_in_place", __file__, write_in_place.__code__.co_firstlineno)
    graph_module.recompile()
    return graph_module


def _puts(written: fx.Node, copy: fx.Node) -> list[fx.Node]:
    """What is put into the input one after the other, until it is what is copied back; none where it is otherwise."""
    found: list[fx.Node] = []
    node = copy.args[1]
    while written.op == "placeholder" and isinstance(node, fx.Node) and node is not written:
        if not _may_put(node, written):
            return []
        found.insert(0, node)
        node = node.args[0]  # type: ignore[assignment]
    return found


def _may_put(node: fx.Node, written: fx.Node) -> bool:
    if node.target not in _PUTS and node.target not in _WINDOWS:
        return False
    made, there = node.meta["val"], written.meta["val"]
    alike = made.dtype == there.dtype and sizes(made.shape) == sizes(there.shape)
    if not alike or sizes(made.stride()) != sizes(there.stride()) or 0 in sizes(there.stride()):
        return False
    if node.target is not aten.index_put.default:
        return not node.kwargs
    indices, values = node.args[1], (*node.args[3:], *node.kwargs.values())
    whole = all(i is None or i.meta["val"].dtype in (torch.int64, torch.int32) for i in indices)  # type: ignore
    return whole and not any(values)


def _are_read_in_turn(written: fx.Node, puts: list[fx.Node], copy: fx.Node, turn: Mapping[fx.Node, int]) -> bool:
    """Whether what the input was before each of the puts is read before it; and no result is what the last one made."""
    for before, put in zip([written, *puts], [*puts, copy], strict=False):
        if any(turn[user] > turn[put] and user is not copy for user in _readers(before) - {put}):
            return False
    return not any(user.op == "output" for user in _readers(puts[-1]) | set(copy.users))


def _readers(node: fx.Node) -> set[fx.Node]:
    """Of the node, and of views of it."""
    found, todo = set[fx.Node](), [node]
    for each in todo:  # which grows as it is walked
        for user in each.users:
            if user not in found:
                found.add(user)
                if is_view(user):
                    todo.append(user)
    return found


def _put(editor: Editor, written: fx.Node, put: fx.Node) -> None:
    if put.target in _WINDOWS:
        source, *where = put.args[1:]
        window = editor.call(_WINDOWS[put.target], (written, *where), {}, put, put)
        editor.call(aten.copy_.default, (window, source), {}, put, put)
        made = written
    else:
        made = editor.call(_PUTS[put.target], (written, *put.args[1:]), {}, put, put)
    put.replace_all_uses_with(made)
    editor.graph.erase_node(put)


__all__ = ["write_in_place"]
