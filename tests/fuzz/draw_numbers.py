"""Statements with Python numbers: those that are easily taken for others, and those that change between calls."""

from __future__ import annotations

from tests.fuzz.build import Build, is_float
from tests.fuzz.eager import Refused

SPECIAL = (
    *("0.0", "-0.0", "0", "False", "1", "1.0", "True", "2", "2.0", "-1", "-1.0"),
    *("float('nan')", "float('inf')", "-float('inf')", "1e-40", "0.1"),
)


def special(b: Build) -> None:
    x = b.pick()
    value = b.one(SPECIAL)
    kind = b.number(0, 10)
    if kind <= 2:
        sign = b.one("+-*/*")
        b.define(f"{x} {sign} {value}" if b.maybe() else f"{value} {sign} {x}", x, rounds=True, wild=True)
    elif kind == 3:
        x = b.floating()
        code = b.one((".clamp(min={})", ".clamp(max={})", ".clamp({}, float('inf'))"))
        b.define(f"({x} + 0.0){code.format(value)}", x, rounds=True, wild=True)
    elif kind == 4:
        b.define(f"torch.full_like({x}, {value}, dtype=torch.{b.one(('float32', 'float64'))})", x, wild=True)
    elif kind == 5:
        b.define(f"torch.full((3,), {value})", wild=True)
    elif kind == 6:
        x = b.floating(lambda t: t.dim() > 0)
        b.define(f"torch.nn.functional.pad({x}, (1, 1), value={value})", x, wild=True)
    elif kind == 7:
        x = b.floating()
        mask = b.like(x, lambda t: str(t.dtype) == "torch.bool")
        code = b.one((f"{x}.masked_fill({mask}, {value})", f"torch.where({mask}, {x}, {value})"))
        b.define(code, x, mask, wild=True)
    elif kind == 8:
        x = b.floating()
        b.define(f"torch.copysign({x}, {value})", x, wild=True)
    elif kind == 9:
        x = b.sure(is_float)
        b.define(f"{x} {b.one(('==', '<', '!='))} {value}", x, decides=(x,), wild=True)
    else:
        x = b.floating()
        b.write(x, f".fill_({value})", wild=True)


def changing(b: Build) -> None:
    """With a number that the program takes."""
    if not b.numbers:
        raise Refused("no numbers")
    number = b.one(b.numbers)
    whole = isinstance(b.state.values[number], int)
    if b.maybe(4):
        number = b.one((f"({number} * 2)", f"({number} + 1)", f"(-{number})", f"({number} + {b.size()})"))
    (_whole if whole else _fractional)(b, number)


def _whole(b: Build, n: str) -> None:
    x = b.pick()
    kind = b.number(0, 11)
    if kind <= 1:
        sign = b.one("+-*/")
        b.define(f"{x} {sign} {n}" if b.maybe() else f"{n} {sign} {x}", x, rounds=True)
    elif kind == 2:
        b.define(f"torch.arange({n}, dtype=torch.{b.one(('float32', 'int64'))})")
    elif kind == 3:
        b.define(f"torch.arange({n}, {b.one((-3, 20))}, {b.one((-1, 2, -3, 3))})")
    elif kind == 4 and b[x].dim():
        b.define(f"{x}[..., {b.one((f':{n}', f'{n}:', f'-{n}:', f'::{n}'))}]", x)
    elif kind == 5:
        b.define(f"{x}.roll({n}, {b.dim(x)})", x)
    elif kind == 6:
        y = b.like(x)
        b.define(f"torch.add({x}, {y}, alpha={n})", x, y, rounds=True)
    elif kind == 7 and b[x].dim():
        b.define(f"torch.nn.functional.pad({x}, ({n}, 1))", x)
    elif kind == 8:
        b.define(f"torch.full(({b.size()},), {n})")
    elif kind == 9:
        b.define(f"torch.full_like({x}, {n})", x)
    elif kind == 10:
        x = b.floating()
        b.define(f"{x}.sum() / {n}", x, rounds=True)
    else:
        x = b.floating(lambda t: t.dim() == 2)
        more = b.one((f"beta={n}", f"alpha={n}", f"beta={n}, alpha={n}"))
        b.define(f"torch.addmm({x} @ {x}.mT, {x}, {x}.mT, {more})", x, rounds=True)


def _fractional(b: Build, n: str) -> None:
    x = b.floating()
    kind = b.number(0, 10)
    if kind <= 2:
        sign = b.one("+-*/")
        b.define(f"{x} {sign} {n}" if b.maybe() else f"{n} {sign} {x}", x, rounds=True)
    elif kind == 3:
        b.define(f"{x}.clamp({b.one(('min', 'max'))}={n})", x, rounds=True)
    elif kind == 4:
        b.define(f"torch.full(({b.size()}, 2), {n})", rounds=True)
    elif kind == 5:
        mask = b.like(x, lambda t: str(t.dtype) == "torch.bool")
        b.define(b.one((f"{x}.masked_fill({mask}, {n})", f"torch.where({mask}, {x}, {n})")), x, mask, rounds=True)
    elif kind == 6:
        y = b.like(x)
        # A weight of one leaves a zero the sign that its place gives it, within a vector or behind the last.
        code = b.one((f"torch.lerp({x}, {y}, {n}) + 0", f"torch.addcmul({x}, {y}, {y}, value={n})"))
        b.define(code, x, y, rounds=True)
    elif kind == 7:
        name = b.one(("leaky_relu", "elu", "celu", "softplus", "hardshrink"))
        if name == "hardshrink":
            raise Refused("it decides")
        b.define(f"torch.nn.functional.{name}({x}, {n})", x, rounds=True)
    elif kind == 8 and b[x].dim():
        b.define(f"torch.softmax({x} * {n}, {b.dim(x)})", x, rounds=True)
    elif kind == 9 and b[x].dim():
        b.define(
            f"torch.nn.functional.layer_norm({x}, {x}.shape[-1:], eps=abs({n}) + 1e-3)", x, rounds=True, rows=(-1,)
        )
    else:
        x = b.sure(is_float)
        b.define(f"{x} < {n}", x, decides=(x,))


__all__ = ["changing", "special"]
