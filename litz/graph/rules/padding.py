"""Matrix products of odd sizes, padded: the units that multiply matrices want rows of memory at multiples of 16 bytes.

In: a functional ATen graph on a GPU, of a whole step: forward and backward in one. Out: the same, where what lies side
by side in a factor or in the result is padded with zeros to such a multiple. The result is a window on the padded one,
and is copied only for those who see how it lies: the user, and operators that are called as they are. What is kept for
the backward is the padded tensor, whose rows are aligned for all who read them.

Whether it pays is tried on the device (`graph/trials.py`), copies included; where nothing can be tried, estimated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from litz.graph.alias import escapes, is_view, read_in_backward
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.rules.gpu import on_gpu, readers
from litz.graph.sizes import likely, size_of
from litz.graph.trials import Matrix, Product, milliseconds, milliseconds_a_byte
from litz.ops.cut_product import cut_product
from litz.ops.layout import why_it_sees_layouts

aten = torch.ops.aten

_MULTIPLE = {torch.float16: 8, torch.bfloat16: 8, torch.float32: 4}  # elements
_LEAST = 4  # multiples: of less, what is added is too great a part
_MARGIN = 1.05  # a gain that is sure
_IN_PIECES = 1 << 29  # bytes of a padded result, beyond which it is computed and copied by parts
# Where nothing can be tried, as on a recent GPU: multiplications a millisecond, how many times longer they take when
# rows are not aligned, and milliseconds a byte.
_WORK_A_MILLISECOND, _TIMES, _A_BYTE = 2.5e11, 4, 1 / 2.5e9


class Padding(NamedTuple):
    """What is added to the rows of the first factor, to its columns, and to the columns of the second."""

    rows: int
    depth: int
    columns: int


@rule(call((aten.mm.default, aten.bmm.default), Arg("a"), Arg("b"), users=ANY), extra_check=on_gpu, any_size=True)
def pad_mm(match: Match) -> Any:
    return _padded_product(match, None)


@rule(call(aten.addmm.default, Arg("bias"), Arg("a"), Arg("b"), users=ANY), extra_check=on_gpu, any_size=True)
def pad_addmm(match: Match) -> Any:
    return _padded_product(match, match["bias"]) if match["bias"].meta["val"].dim() == 1 else None


def _padded_product(match: Match, bias: fx.Node | None) -> Any:
    a, b = match["a"], match["b"]
    padding = padding_for(a.meta["val"], b.meta["val"])
    if not any(padding) or _is_read_as_the_user_left_it(match.root):
        return None
    whole = _is_copied_whole(match.root)
    if not _pays(match, bias, padding, whole):
        return match.miss("padding it takes longer than it saves")
    rows, depth, columns = padding
    a, b = _padded(match, a, rows, depth), _padded(match, b, depth, columns)
    if bias is not None and columns:
        bias = match.call(aten.constant_pad_nd.default, bias, [0, columns], 0)
    if whole and not rows and _in_pieces(match, a, b):
        width = match.root.meta["val"].shape[1]
        return match.call(cut_product(), bias, a, b, width, _rows_at_a_time(a.meta["val"], b.meta["val"]))
    given = (a, b) if bias is None else (bias, a, b)
    product = match.call(match.root.target, *given)
    return _cut(match, product, rows, columns)


def _is_read_as_the_user_left_it(node: fx.Node) -> bool:
    """Whether it is a result that eager reads in the backward, where it notices that the user has written to it: so
    the backward has no other tensor to read."""
    return "in_backward" not in node.meta and escapes(node) and read_in_backward(node)


# -- what is to be padded -----------------------------------------------------------------------------
def padding_for(a: torch.Tensor, b: torch.Tensor) -> Padding:
    """What lies side by side in a factor, or in the result, to multiples. A size known only at run time is left."""
    multiple = _MULTIPLE.get(a.dtype)
    if multiple is None:
        return Padding(0, 0, 0)
    odd = {"rows" if _is_by_columns(a) else "depth", "depth" if _is_by_columns(b) else "columns", "columns"}
    named = {"rows": a.shape[-2], "depth": a.shape[-1], "columns": b.shape[-1]}

    def missing(name: str) -> int:
        size = size_of(named[name])
        if name not in odd or not isinstance(size, int) or size < _LEAST * multiple:
            return 0
        return -size % multiple

    return Padding(missing("rows"), missing("depth"), missing("columns"))


def _is_by_columns(matrix: torch.Tensor) -> bool:
    return size_of(matrix.stride(-1)) != 1 and size_of(matrix.stride(-2)) == 1


# -- whether it pays ----------------------------------------------------------------------------------
def _pays(match: Match, bias: fx.Node | None, padding: Padding, whole: bool) -> bool:
    plain = _described(match["a"].meta["val"], match["b"].meta["val"], bias is not None)
    padded, cache = plain.padded(*padding), match.ctx.cache
    moved = _bytes_moved(match, padding, whole)
    times = [milliseconds(product, cache) for product in (plain, padded)]
    a_byte = milliseconds_a_byte(plain.device, cache)
    if times[0] is not None and times[1] is not None and a_byte is not None:
        return times[0] > _MARGIN * (times[1] + moved * a_byte)
    return plain.work / _WORK_A_MILLISECOND * (_TIMES - 1) > moved * _A_BYTE


def _described(a: torch.Tensor, b: torch.Tensor, bias: bool) -> Product:
    batch = likely(a.shape[0]) if a.dim() == 3 else 1

    def matrix(t: torch.Tensor) -> Matrix:
        by_columns = _is_by_columns(t)
        rows, columns = likely(t.shape[-2]), likely(t.shape[-1])
        step = likely(t.stride(-1) if by_columns else t.stride(-2))
        return Matrix(batch, rows, columns, by_columns, max(step, rows if by_columns else columns))

    return Product(matrix(a), matrix(b), bias, a.dtype, a.device)


def _bytes_moved(match: Match, padding: Padding, whole: bool) -> int:
    """By copies that are made for its sake alone. What a kernel of ours makes is made in padded form."""
    rows, depth, columns = padding
    moved = 0
    for node, is_padded in ((match["a"], rows or depth), (match["b"], depth or columns)):
        if is_padded and not _is_generated(node):
            moved += 2 * _bytes(node)
    seen = (rows or columns) and (whole or any(_sees_layout(reader) for reader in readers(match.root)))
    return moved + (2 * _bytes(match.root) if seen else 0)


def _bytes(node: fx.Node) -> int:
    value = node.meta["val"]
    total = value.element_size()
    for size in value.shape:
        total *= likely(size)
    return total


def _is_generated(node: fx.Node) -> bool:
    while is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.op == "call_function" and node.target not in _CALLED and not _sees_layout(node)


_CALLED = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.convolution.default}


def _sees_layout(reader: fx.Node) -> bool:
    return reader.op == "output" or why_it_sees_layouts(reader.target) is not None


def _is_copied_whole(node: fx.Node) -> bool:
    """Whether the padded result would be copied, and read by nobody else."""
    return all(_sees_layout(reader) for reader in readers(node))


# -- how it is done -----------------------------------------------------------------------------------
_TURNS = (aten.t.default, aten.transpose.int, aten.permute.default)


def _padded(match: Match, node: fx.Node, rows: int, columns: int) -> fx.Node:
    """What is turned is padded first, so that a factor of two products is padded once."""
    if not rows and not columns:
        return node
    source = node.args[0] if node.target in _TURNS else None
    if isinstance(source, fx.Node) and _turns_the_last(node, source):
        last = source.meta["val"].dim() - 1
        return match.call(aten.transpose.int, _padded(match, source, columns, rows), last - 1, last)
    known = _padded_already(node, rows, columns)
    if known is not None:
        return known
    if (rows and columns) or not _is_generated(node) or any(_sees_layout(user) for user in readers(node)):
        return match.call(aten.constant_pad_nd.default, node, [0, columns, 0, rows], 0)
    return _made_padded(match, node, rows, columns)


def _padded_already(node: fx.Node, rows: int, columns: int) -> fx.Node | None:
    """The tensor that was padded as wanted, where the node is what was there before it was."""
    source, rank = node.args[0] if node.target is aten.slice.Tensor else None, node.meta["val"].dim()
    wanted = (rank - 2, rows) if rows else (rank - 1, columns)
    same = isinstance(source, fx.Node) and not (rows and columns) and source.meta.get("padded") == wanted
    whole = same and source.meta["val"].shape[wanted[0]] == node.meta["val"].shape[wanted[0]] + wanted[1]  # type: ignore[union-attr]
    return source if whole else None  # type: ignore[return-value]


def _made_padded(match: Match, node: fx.Node, rows: int, columns: int) -> fx.Node:
    """The kernel that makes it writes to a part of the padded tensor, and whoever reads it reads it there."""
    value, editor, after = node.meta["val"], match.editor, node.next
    dim, extra = (value.dim() - 2, rows) if rows else (value.dim() - 1, columns)
    size = [*value.shape[:dim], extra, *value.shape[dim + 1 :]]
    about = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
    zeros = editor.call(aten.full.default, (size, 0), about, after, node)
    padded = editor.call(aten.cat.default, ([node, zeros], dim), {}, after, node)
    padded.meta["padded"] = dim, extra
    window = editor.call(aten.slice.Tensor, (padded, dim, 0, value.shape[dim]), {}, after, node)
    editor.read_instead(node, window, [user for user in node.users if user is not padded])
    return padded


def _turns_the_last(node: fx.Node, source: fx.Node) -> bool:
    before, after = source.meta["val"], node.meta["val"]
    turned = before.transpose(-1, -2)
    return tuple(map(size_of, turned.shape)) == tuple(map(size_of, after.shape)) and tuple(
        map(size_of, turned.stride())
    ) == tuple(map(size_of, after.stride()))


def _cut(match: Match, node: fx.Node, rows: int, columns: int) -> fx.Node:
    rank = node.meta["val"].dim()
    for dim, extra in ((rank - 2, rows), (rank - 1, columns)):
        if extra:
            node = match.call(aten.slice.Tensor, node, dim, 0, node.meta["val"].shape[dim] - extra)
    return node


def _in_pieces(match: Match, a: fx.Node, b: fx.Node) -> bool:
    if match.root.target is aten.bmm.default or not isinstance(size_of(a.meta["val"].shape[0]), int):
        return False
    return _rows_at_a_time(a.meta["val"], b.meta["val"]) < a.meta["val"].shape[0]


def _rows_at_a_time(a: torch.Tensor, b: torch.Tensor) -> int:
    """As many in each part, in whole tiles."""
    rows, width = a.shape[0], likely(b.shape[1]) * b.element_size()
    parts = -(-rows * width // _IN_PIECES)
    return -(-rows // (parts * 256)) * 256


PADDING: Rules = (pad_mm, pad_addmm)
