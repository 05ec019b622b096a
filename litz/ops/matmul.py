"""Matrix products: generated as `sum(a * b)` where the micro-kernel pays, else called from the library."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, is_float
from litz.loop.expr import ONE, ZERO, Expr, expr
from litz.loop.ir import View
from litz.loop.multiply import WORD, multiply_for
from litz.ops.builder import Body, Builder, Space, Val, broadcast
from litz.ops.norm import over
from litz.ops.registry import lowers

aten = torch.ops.aten

# Below this many multiplications packing is not paid back; fewer rows than a tile leave it half empty.
_LEAST_WORK = 1 << 20
_TYPES = ("f32", "bf16", "f16")
_LEAST_ROWS = 12
_LEAST_ROW = 1 << 12  # elements of the columns that a single row is multiplied with
_LEAST_COLUMNS = 16
FEW_ROWS = 12  # a tile of them reads the columns once


def _is_generated(b: Builder) -> bool:
    return b.ctx.target.generates_products and b.ctx.target.vector_bytes >= 32


def pays(b: Builder, dtype: str, rows: Expr, columns: Expr, depth: Expr) -> bool:
    """Whether the generated product is expected to beat the library's for this shape."""
    if not _may_be_generated(b, dtype, rows, columns, depth):
        return False
    m, n, k = rows.hint, columns.int, depth.int
    is_large = m >= _LEAST_ROWS and n >= _LEAST_COLUMNS and m * n * k >= _LEAST_WORK
    return is_large or b.ctx.options.matmul == "generate"


def pays_in_batch(b: Builder, dtype: str, rows: Expr, columns: Expr, depth: Expr) -> bool:
    """The same of each of many, between which nothing is started."""
    if not _may_be_generated(b, dtype, rows, columns, depth):
        return False
    return (rows.hint >= _LEAST_ROWS and columns.int >= _LEAST_COLUMNS) or b.ctx.options.matmul == "generate"


def _may_be_generated(b: Builder, dtype: str, rows: Expr, columns: Expr, depth: Expr) -> bool:
    if b.ctx.options.matmul == "library" or dtype not in _TYPES or not _is_generated(b):
        return False
    if not (columns.is_int and depth.is_int):
        return False  # the panels of columns are laid out when the program is built
    return min(rows.hint, columns.int, depth.int) > 0


def is_row_along_depth(b: Builder, x: View, y: View) -> bool:
    """Whether the product is one of a single row by columns that each lie in one piece: bound by the memory that they
    are read from, and so a sum for each of them. Libraries pack them, or read them across."""
    if b.ctx.options.matmul == "library" or x.dtype not in _TYPES or not b.ctx.target.generates_products:
        return False
    sizes = (*x.sizes, y.sizes[1])
    if not all(size.is_int for size in sizes) or x.sizes[0] is not ONE or y.strides[0] is not ONE:
        return False
    return x.sizes[1].int * y.sizes[1].int >= _LEAST_ROW


def is_small(b: Builder, dtype: str, rows: Expr, columns: Expr, depth: Expr) -> bool:
    """Whether the product is one of few rows by columns that the second cache holds: fed straight from memory."""
    if b.ctx.options.matmul == "library" or dtype != "f32" or not b.ctx.target.generates_products:
        return False
    if not (rows.is_int and columns.is_int and depth.is_int):
        return False  # what it reads is fixed when the program is built
    return 0 < rows.int <= FEW_ROWS and 0 < 4 * columns.int * depth.int <= b.ctx.target.l2_bytes


def product(b: Builder, fake: torch.Tensor, x: View, y: View, finish: Any = None) -> View:
    """`x @ y` over the last two dimensions, batch dimensions alike; `finish(body, point, sum)` may go on from there."""
    out = b.allocate(fake)
    product_into(b, out, x, y, finish)
    return out


def product_into(b: Builder, out: View, x: View, y: View, finish: Any = None) -> None:
    space, body = Space(), Body()
    point = space.over(out.sizes, out.strides)
    k = space.reduce_over(x.sizes[-1])
    *batch, m, n = point
    packed = None if batch or m is ZERO else packed_columns(b, body, x, y, k, n)  # one row is no product of panels
    column = body.load(y, (*batch, k, n)) if packed is None else packed
    row = wide(body, body.load(x, (*batch, m, k)))
    total = over(space, body, "sum", row * body.cast(column, row.dtype))
    body.store(out, point, total if finish is None else finish(body, point, total))
    b.emit(space, body)


def wide(body: Body, value: Val) -> Val:
    """As products are computed: halves are made float32, and rounded once, when all is added up; bytes are summed in
    32 bits."""
    return body.cast(value, "i32" if value.dtype in ("u8", "i8") else compute_type(value.dtype))


def packed_columns(b: Builder, body: Body, x: View, y: View, step: Expr, column: Expr, line: Expr = ZERO) -> Val | None:
    """An element of a matrix (or of lines of one) of frozen columns, read where the micro-kernel has it: packed when
    the program's constants are made, and not at each call. None where the columns are not frozen."""
    multiply = multiply_for(b.ctx.target, x.dtype, y.dtype, "i32" if x.dtype in ("u8", "i8") else "f32")
    if multiply.columns != y.dtype:
        return None  # what is made float32 to be multiplied is not kept twice as large
    found = b.packed(y, b.ctx.target.lanes(WORD), multiply.group)
    if found is None:
        return None
    panels, name = found
    memory = View(name, y.dtype, (expr(panels.size),), (ONE,))
    return body.load(memory, (panels.at(line, step, column),))


@lowers(aten.mm.default)
def mm(b: Builder, node: fx.Node, x: View, y: View) -> Any:
    if not is_row_along_depth(b, x, y) and not pays(b, x.dtype, x.sizes[0], y.sizes[1], x.sizes[1]):
        return b.library(node, (x, y), {})
    return product(b, node.meta["val"], x, y)


@lowers(aten.addmm.default)
def addmm(b: Builder, node: fx.Node, bias: View, x: View, y: View, beta: float = 1, alpha: float = 1) -> Any:
    is_generated = is_row_along_depth(b, x, y) or pays(b, x.dtype, x.sizes[0], y.sizes[1], x.sizes[1])
    if not is_generated or alpha == 0:
        return b.library(node, (bias, x, y), {"beta": beta, "alpha": alpha})

    def finish(body: Body, point: tuple, total: Val) -> Val:
        total = total if alpha == 1 else total * alpha
        if beta == 0:
            return total
        added = wide(body, body.load(bias, broadcast(bias, point)))
        return total + (added if beta == 1 else added * beta)

    return product(b, node.meta["val"], x, y, finish)


@lowers(aten._int_mm.default)
def int_mm(b: Builder, node: fx.Node, x: View, y: View) -> Any:
    """Whole numbers of 8 bits, summed in 32."""
    return product(b, node.meta["val"], x, y) if _is_generated(b) else b.library(node, (x, y), {})


@lowers(aten.bmm.default)
def bmm(b: Builder, node: fx.Node, x: View, y: View) -> Any:
    if b.ctx.options.matmul != "generate" or not pays(b, x.dtype, x.sizes[1], y.sizes[2], x.sizes[2]):
        return b.library(node, (x, y), {})
    return product(b, node.meta["val"], x, y)


@lowers(aten.baddbmm.default)
def baddbmm(b: Builder, node: fx.Node, bias: View, x: View, y: View, beta: float = 1, alpha: float = 1) -> Any:
    return b.library(node, (bias, x, y), {"beta": beta, "alpha": alpha})


# -- a matrix and a vector: bound by memory, and so one more reduction ----------------------------
@lowers(aten.mv.default)
def mv(b: Builder, node: fx.Node, x: View, y: View) -> Any:
    return _rows_times(b, node, x, y, None, 0, 1)


@lowers(aten.addmv.default)
def addmv(b: Builder, node: fx.Node, bias: View, x: View, y: View, beta: float = 1, alpha: float = 1) -> Any:
    return _rows_times(b, node, x, y, None if beta == 0 else bias, beta, alpha)


def _rows_times(b: Builder, node: fx.Node, x: View, y: View, bias: View | None, beta: float, alpha: float) -> Any:
    dtype = compute_type(x.dtype)
    if not is_float(dtype) or x.sizes[1] is ZERO:
        return NotImplemented
    if alpha == 0 and dtype == x.dtype:
        # The library computes no product then, whatever it is of; of halves, eager does.
        return b.pointwise(node.meta["val"], partial(_scaled, bias, beta, dtype))
    out = b.allocate(node.meta["val"])
    space, body = Space(), Body()
    point = space.over(out.sizes, out.strides)
    k = space.reduce_over(x.sizes[1])
    factors = (body.cast(body.load(x, (*point, k)), dtype), body.cast(body.load(y, (k,)), dtype))
    total = over(space, body, "sum", factors[0] * factors[1])
    total = total if alpha == 1 else total * alpha
    if bias is not None:
        total = total + _scaled(bias, beta, dtype, body, point)
    elif k is ZERO:
        total = total + 0.0  # libraries begin sums with a zero, of one step too: −0.0 comes out as 0.0
    body.store(out, point, total)
    b.emit(space, body)
    return out


def _scaled(bias: View | None, beta: float, dtype: str, body: Body, point: tuple) -> Val:
    if bias is None:
        return body.const(0, dtype)
    added = body.cast(body.load(bias, broadcast(bias, point)), dtype)
    return added if beta == 1 else added * beta
