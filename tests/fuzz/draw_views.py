"""Statements that move numbers: views, copies, joins and splits; and tensors made from nothing."""

from __future__ import annotations

import math

from tests.fuzz.build import DTYPES, Build
from tests.fuzz.eager import Refused


def view(b: Build) -> None:
    x = b.pick()
    rank, shape = b[x].dim(), b[x].shape
    if not rank:
        code = b.one((".unsqueeze(0)", ".reshape(1)", ".expand(2, 3)", "[None]", ".view(1, 1)", ".view_as({x})"))
        b.define(f"{x}{code.format(x=x)}", x)
        return
    dim, other = b.dim(x), b.dim(x)
    size = shape[dim]
    kind = b.number(0, 12)
    if kind == 0:
        code = f".transpose({dim}, {other})"
    elif kind == 1:
        code = f".permute{tuple(_permutation(b, rank))}"
    elif kind <= 3:
        start, step = b.number(0, max(size - 1, 0)), b.one((1, 1, 2, 3))
        stop = b.one(("", str(b.number(start, size))))
        if b.symbolic:
            extent = b.extent(x, dim)
            start = b.one((0, 0, 1, 2))
            stop = b.one(("", f"{extent} - 1", f"{extent} // 2 + 1", "-1", "3"))
        before = ":, " * (dim % rank)
        code = f"[{before}{start}:{stop}:{step}]"
    elif kind == 4:
        place = b.one((0, -1, 1)) if b.symbolic else b.number(-size, size - 1) if size else _refuse()
        code = f".select({dim}, {place})"
    elif kind == 5:
        code = b.one((f".unsqueeze({b.number(-rank - 1, rank)})", "[None]", "[..., None]", "[:, None]"))
    elif kind == 6:
        code = b.one((".squeeze()", f".squeeze({dim})"))
    elif kind == 7:
        places = [i for i, n in enumerate(shape) if n == 1]
        grown = [b.size() if i in places else -1 for i in range(rank)]
        front = (b.number(1, 3),) if b.maybe() else ()
        code = f".expand({', '.join(map(str, (*front, *grown)))})"
    elif kind <= 9:
        code = f".{b.one(('reshape', 'reshape', 'view'))}({_another_shape(b, x)})"
    elif kind == 10:
        code = f".diagonal({b.one((0, 1, -1))}, {dim}, {other})"
    elif kind == 11:
        code = b.one((".flatten()", ".mT", ".ravel()", ".view_as({x})", ".detach()")).format(x=x)
    else:
        # A copy of it: functionalisation itself forgets what lies between the windows when one is written to.
        code = f".unfold({dim}, {b.number(1, 3 if b.symbolic else max(size, 1))}, {b.number(1, 2)}).clone()"
    b.define(x + code, x)


def _permutation(b: Build, rank: int) -> list[int]:
    rest = list(range(rank))
    return [rest.pop(b.number(0, len(rest) - 1)) for _ in range(rank)]


def _refuse() -> int:
    raise Refused("nothing to select")


def _another_shape(b: Build, x: str) -> str:
    shape = b[x].shape
    count, rank = math.prod(shape), len(shape)
    extents = [b.extent(x, d) for d in range(rank)]
    kind = b.number(0, 3)
    if kind == 0:
        return "-1" if count else "0"
    if kind == 1:
        return ", ".join(("1", *extents))
    if kind == 2 and rank > 1:
        first = f"{extents[0]} * {extents[1]}" if b.symbolic else str(shape[0] * shape[1])
        return ", ".join((first, *extents[2:]))
    if b.symbolic:
        product = " * ".join(extents)
        return b.one((f"{product}, 1", f"1, {product}", ", ".join(("-1", *extents[1:])), f"{product} // 2, 2"))
    parts = [n for n in (2, 3, 4, 5, 7) if count % n == 0 and count]
    if not parts:
        return ", ".join((*extents, "1"))
    part = b.one(parts)
    return f"{part}, {count // part}" if b.maybe() else f"{count // part}, {part}"


def copy(b: Build) -> None:
    x = b.pick()
    rank = b[x].dim()
    dim = b.dim(x)
    kind = b.number(0, 5)
    if kind == 0:
        code = f".flip({dim})" if b.maybe() or rank < 2 else ".flip(0, -1)"
    elif kind == 1:
        code = b.one((".clone()", ".contiguous()"))
    elif kind == 2:
        code = f".roll({b.one((1, -2))}, {dim})"
    elif kind == 3:
        code = f".repeat({', '.join(str(b.number(1, 2)) for _ in range(max(rank, 1)))})"
    elif kind == 4:
        code = b.one((".tril()", ".triu(1)"))
    else:
        code = f".repeat_interleave(2, {dim})"
    b.define(x + code, x)


def join(b: Build) -> None:
    x = b.pick(lambda t: t.dim() > 0)
    shape = b[x].shape
    y = b.pick(lambda t: t.shape == shape)
    rounds = b[x].dtype != b[y].dtype
    if b.maybe(3):
        b.define(f"torch.stack([{x}, {y}], {b.dim(x)})", x, y, rounds=rounds)
    elif b.maybe(3):
        widths = ", ".join(str(b.number(0, 2)) for _ in range(2 if len(shape) < 2 else 4))
        fill = b.one((0, 1, 2))
        b.define(f"torch.nn.functional.pad({x}, ({widths}), value={fill})", x)
    else:
        b.define(f"torch.cat([{x}, {y}, {x}], {b.dim(x)})", x, y, rounds=rounds)


def split(b: Build) -> None:
    from tests.fuzz.program import Line

    x = b.pick(lambda t: t.dim() > 0 and max(t.shape) > 1)
    dim = b.dim(x)
    size = b[x].shape[dim]
    if size < 2:
        raise Refused("nothing to split")
    first, second = b.name(), b.name()
    at = b.number(1, size - 1)
    # Over a symbolic size, a list of parts would tie the program to it.
    rest = f"{b.extent(x, dim)} - {at}" if b.symbolic else size - at
    whole = (f"{x}.chunk(2, {dim})", f"{x}.unbind({dim})[:2]") if b.is_fixed(x, dim) else ()
    code = b.one((f"{x}.split(({at}, {rest}), {dim})", *whole))
    b.add(Line(f"{first}, {second} = {code}", (first, second), (x,)))


def create(b: Build) -> None:
    kind = b.number(0, 4)
    dtype = b.one(DTYPES)
    if kind == 0:
        x = b.pick()
        b.define(f"torch.{b.one(('zeros_like', 'ones_like'))}({x})", x)
    elif kind == 1:
        b.define(f"torch.arange({b.size()}, dtype=torch.{'int64' if dtype == 'bool' else dtype})")
    elif kind == 2:
        shape = "".join(f"{b.size()}, " for _ in range(b.number(0, 3)))
        b.define(f"torch.full(({shape}), {b.one((0, 1, 2))}, dtype=torch.{dtype})")
    elif kind == 3:
        x = b.pick()
        shape = f"{x}.shape" if b.symbolic else str(tuple(b[x].shape))
        b.define(f"{x}.new_full({shape}, {b.one((0, 1, 3))})", x)
    else:
        values = [b.number(0, 3) for _ in range(b.number(1, 4) if b.symbolic else b.one(b.sizes))]
        b.define(f"torch.tensor({values}, dtype=torch.{dtype})")


__all__ = ["copy", "create", "join", "split", "view"]
