"""Statements of arithmetic: pointwise, reductions, products. One function a family of operators.

Each draws one statement and adds it; what `eager.py` refuses is simply not part of the program.
"""

from __future__ import annotations

import torch

from tests.fuzz.build import DTYPES, EXACT_SCALARS, FLOATS, Build, is_float, is_whole
from tests.fuzz.eager import Refused

ROUNDING = (
    *("sigmoid", "tanh", "exp", "expm1", "sin", "cos", "erf", "square", "rsqrt", "sqrt", "log", "log1p", "reciprocal"),
    *("nn.functional.gelu", "nn.functional.silu", "nn.functional.softplus", "nn.functional.elu", "atan", "exp2"),
)
MOVING = ("neg", "abs", "relu", "positive", "nn.functional.relu6")
DECIDING = ("floor", "ceil", "round", "trunc", "sign", "isnan", "isinf", "signbit", "logical_not")


# -- pointwise --------------------------------------------------------------------------------
def unary(b: Build) -> None:
    kind = b.number(0, 4)
    if kind <= 1:
        x = b.pick()
        function = b.one(ROUNDING)
        code = f"torch.{function}({x})"
        if function in ("log", "sqrt", "rsqrt", "reciprocal") and not b.maybe(4):
            code = f"torch.{function}({x}.abs() + 0.5)"
        if function.endswith("gelu"):
            code = f"torch.{function}({x}.clamp(-99, 99))"  # eager makes two things of infinity
        b.define(code, x, rounds=True)
    elif kind == 2:
        x = b.pick()
        b.define(f"torch.{b.one(MOVING)}({x})", x)
    elif kind == 3:
        x = b.sure()
        b.define(f"torch.{b.one(DECIDING)}({x})", x, decides=(x,))
    else:
        x = b.pick(lambda t: not t.is_floating_point())
        b.define(f"~{x}", x)


def binary(b: Build) -> None:
    x = b.pick()
    rounds = True
    kind = b.number(0, 9)
    if kind <= 1:
        y = b.like(x)
        b.define(f"{x} {b.one('+-*/')} {y}", x, y, rounds=rounds)
    elif kind == 2:
        y = b.like(x)
        code = f"torch.{b.one(('maximum', 'minimum'))}({x}, {y})"
        if is_float(b[x]) or is_float(b[y]):
            code += " + 0"  # which of two zeros eager takes depends on the place, within a vector or behind the last
        b.define(code, x, y, rounds=b[x].dtype != b[y].dtype)
    elif kind == 3:
        # Of one shape: fakes lay a scaled sum out as if the scaled operand were there, and with it Dynamo's results.
        y = b.like(x, lambda t: t.shape == b[x].shape and t.stride() == b[x].stride())
        b.define(f"torch.{b.one(('add', 'sub'))}({x}, {y}, alpha={b.one((2, -1, 3))})", x, y, rounds=rounds)
    elif kind == 4:
        x, y = b.floating(), b.floating()
        b.define(f"torch.{b.one(('hypot', 'logaddexp'))}({x}, {y})", x, y, rounds=rounds)
    elif kind == 5:
        x = b.pick(lambda t: not t.is_floating_point())
        y = b.like(x, lambda t: not t.is_floating_point())
        b.define(f"{x} {b.one('&|^')} {y}", x, y)
    elif kind == 6:
        y = b.like(x)
        weight = b.one(("0.25", "0.75"))
        b.define(f"torch.lerp({x}, {y}, {weight})", x, y, rounds=rounds)
    elif kind == 7:
        y, z = b.like(x), b.like(x)
        b.define(f"torch.{b.one(('addcmul', 'addcdiv'))}({x}, {y}, {z}, value=0.5)", x, y, z, rounds=rounds)
    else:
        sign = b.one(("+", "-", "*", "/"))
        scalar = b.scalar(x)
        b.define(f"{x} {sign} {scalar}" if b.maybe() else f"{scalar} {sign} {x}", x, rounds=rounds)


def scalar_only(b: Build) -> None:
    """Operators whose other argument is a number, since a tensor there could hold a zero or a rounding."""
    kind = b.number(0, 4)
    if kind == 0:
        x = b.pick()
        b.define(f"{x} ** {b.one((2, 3, 0, 1))}", x, rounds=True)
    elif kind == 1:
        x = b.sure(is_whole)
        code = b.one((f"{x} // {{}}", f"{x} % {{}}", f"torch.div({x}, {{}}, rounding_mode='trunc')"))
        b.define(code.format(b.one((2, 3, 5))), x)
    elif kind == 2:
        x = b.sure(is_float)
        code = b.one((f"{x} // {{}}", f"{x} % {{}}", f"torch.fmod({x}, {{}})"))
        b.define(code.format(b.one((0.5, -2.0, 4.0))), x, rounds=True, decides=(x,))
    elif kind == 3:
        x = b.pick()
        low = b.one((-1, 0, -0.5)) if b[x].is_floating_point() else b.one((-1, 0, 2))
        code = b.one((f"{x}.clamp({low}, 3)", f"{x}.clamp(min={low})", f"{x}.clamp(max={low})"))
        b.define(code, x)
    else:
        x = b.floating()
        b.define(f"torch.nn.functional.leaky_relu({x}, 0.1)", x, rounds=True)


def compare(b: Build) -> None:
    sign = b.one(("<", "<=", ">", ">=", "==", "!="))
    x = b.sure()
    if b.maybe():
        scalar = b.one(EXACT_SCALARS if b[x].is_floating_point() else (0, 1, 3, -1))
        b.define(f"{x} {sign} {scalar}", x, decides=(x,))
        return
    kind = b[x].dtype
    y = b.like(x, lambda t: t.dtype == kind or not (t.is_floating_point() or kind.is_floating_point))
    b.define(f"{x} {sign} {y}", x, y, decides=(x, y))


def where(b: Build) -> None:
    x = b.pick()
    condition = b.like(x, lambda t: t.dtype is torch.bool)
    if b.maybe(3):
        scalar = b.one(EXACT_SCALARS if b[x].is_floating_point() else (0, 1, 3))
        b.define(f"torch.where({condition}, {x}, {scalar})", condition, x)
        return
    y = b.like(x)
    b.define(f"torch.where({condition}, {x}, {y})", condition, x, y, rounds=b[x].dtype != b[y].dtype)


def cast(b: Build) -> None:
    dtype = b.one(DTYPES)
    if dtype in FLOATS:
        x = b.pick()
        b.define(f"{x}.to(torch.{dtype})", x, rounds=str(b[x].dtype) != f"torch.{dtype}")
        return
    x = b.sure()
    lowest = (0.0 if dtype == "uint8" else -100.0) if dtype != "bool" and b[x].is_floating_point() else None
    b.define(f"{x}.to(torch.{dtype})", x, decides=(x,), lowest=lowest)


# -- reductions, products ---------------------------------------------------------------------
def reduce(b: Build) -> None:
    kind = b.one(("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "var", "std", "any", "all", "logsumexp"))
    decides = kind in ("argmax", "argmin", "any", "all")
    x = b.sure() if decides else b.pick()
    rank = b[x].dim()
    keep = b.one((", keepdim=True", ""))
    dims: tuple[int, ...]
    if kind in ("sum", "mean", "amax", "amin", "var", "std", "logsumexp") and rank > 1 and b.maybe():
        first = b.number(0, rank - 2)
        dims = (first, b.number(first + 1, rank - 1) - (rank if b.maybe() else 0))
        where = str(dims)
    elif kind != "logsumexp" and b.maybe(4):
        dims, where, keep = tuple(range(rank)), "", ""
    else:
        dims = (b.dim(x),)
        where = str(dims[0])
    name = f"torch.{kind}" if b.maybe() else kind
    # Of zeros of both signs, eager takes the first or the last as a column lies in its vectors or behind them.
    of = f"({x} + 0.0)" if kind in ("amax", "amin") and b[x].is_floating_point() else x
    call = f"{name}({of}, {where}{keep})" if name.startswith("torch.") and where else f"{of}.{kind}({where}{keep})"
    rounds = kind not in ("amax", "amin") and not decides
    b.define(call, x, rounds=rounds, decides=(x,) if decides else (), rows=dims if kind in ("var", "std") else None)


def best(b: Build) -> None:
    """Of all elements, which is another operator than along a dimension, with a gradient of its own."""
    x = b.pick()
    of = f"({x} + 0.0)" if b[x].is_floating_point() else x
    b.define(f"{of}.{b.one(('max', 'min', 'median', 'nanmedian'))}()", x)


def row_operator(b: Build) -> None:
    kind = b.number(0, 4)
    x = b.floating() if kind < 4 else b.pick()
    if kind <= 1:
        name = b.one(("softmax", "log_softmax"))
        dim = b.dim(x)
        rows = [state.tensor(x).shape[dim:][:1] for state in b.states if x in state.values]
        if any(row.numel() < 2 for row in rows):
            raise Refused("whether the sum over one number begins with a zero is up to eager's kernels")
        b.define(f"torch.{name}({x}, {dim})", x, rounds=True)
    elif kind <= 3:
        rank = b[x].dim()
        if not rank:
            raise Refused("no row")
        count = b.number(1, min(2, rank))
        own = tuple(b[x].shape[-count:])
        shape = f"{x}.shape[-{count}:]" if b.symbolic else str(own)
        weight = b.floating(lambda t: tuple(t.shape) == own) if b.maybe(3) else None
        more, uses = (f", {weight}", (x, weight)) if weight else ("", (x,))
        rows = tuple(range(-count, 0))
        b.define(f"torch.nn.functional.layer_norm({x}, {shape}{more})", *uses, rounds=True, rows=rows)
    else:
        name = b.one(("cumsum", "cumsum", "cumprod"))
        b.define(f"torch.{name}({x}, {b.dim(x)})", x, rounds=True)


def product(b: Build) -> None:
    x = b.pick(lambda t: t.dim() > 0 and t.dtype is not torch.bool)
    dtype, inner = b[x].dtype, b[x].shape[-1]
    if is_float(b[x]) and b[x].dim() > 1 and b.maybe(4):
        y = b.pick(lambda t: t.dtype == dtype and t.shape == b[x].shape)
        # Rows of queries lie in rows of memory, or across them.
        q, k, v = b.one((("", ".mT", ""), (".mT", "", ".mT")))
        # The fused backward makes the weights again from the logarithm of their sum: it rounds as large scores do.
        of_x = f"torch.tanh({x})" if b.state.training else x
        scores = f"({of_x} * 0.25){q} @ ({y} + 1.0){k}"
        # Some of these leave an attention, some do not. Scores that are moved far are alike, and gradients of such are
        # what rounding leaves of differences.
        after = b.one(("", "", " * 0.5", " / 3.0", " + 3.0", " + 3.0" if b.state.training else " + 1e7", " * 0.0"))
        b.define(f"torch.softmax(({scores}){after}, -1) @ ({y} * 2.0){v}", x, y, rounds=True)
    elif b.maybe(3):
        b.define(f"{x} @ {x}.mT" if b[x].dim() > 1 else f"{x} @ {x}", x, rounds=True)
    elif b.maybe():
        y = b.pick(lambda t: t.dtype == dtype and t.dim() > 0 and t.shape[max(t.dim() - 2, 0)] == inner)
        b.define(f"torch.matmul({x}, {y})", x, y, rounds=True)
    else:
        y = b.pick(lambda t: t.dtype == dtype and t.dim() == 2 and t.shape[1] == inner)
        b.define(f"torch.nn.functional.linear({x}, {y})", x, y, rounds=True)


__all__ = ["best", "binary", "cast", "compare", "product", "reduce", "row_operator", "scalar_only", "unary", "where"]
