"""Symbolic numbers as Python writes them: each is what Python computes, at values other than those traced with."""

from __future__ import annotations

import math

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from litz.loop.formula import Formula
from litz.ops.sizes import symbolic_float, symbolic_size

FORMS = {
    "ratio": lambda n, m, t: n / m,
    "inverse": lambda n, m, t: 1 / n,
    "root": lambda n, m, t: torch._sym_sqrt(n) * 2.0,
    "float": lambda n, m, t: torch.sym_float(n) * 0.5,
    "rounded down": lambda n, m, t: torch.sym_int(n * 1.5),
    "rounded": lambda n, m, t: torch.sym_int(round(n * 0.37)),
    "ceiling": lambda n, m, t: math.ceil(n / 4),
    "floor": lambda n, m, t: math.floor(n / 4),
    "largest": lambda n, m, t: torch.sym_max(n, m) + 1,
    "smallest": lambda n, m, t: torch.sym_min(n, 2 * m) * 3,
    "power": lambda n, m, t: n**3 + n**-0.5,
    "fraction of a power": lambda n, m, t: torch.sym_float(n) ** 0.25,
    "remainder": lambda n, m, t: (n - m) % 5 + (n - m) // m,
    "sum": lambda n, m, t: torch.sym_sum([n, m, 4]),
    "choice": lambda n, m, t: torch.sym_ite(n < 7, n, m),
    "product with a float": lambda n, m, t: n * t + m,
    "size of a float": lambda n, m, t: torch.sym_int(n * t) + m,
    "a float": lambda n, m, t: t,
    "all at once": lambda n, m, t: torch.sym_max(torch.sym_int(n * t) // 2, m % 3) * 2 - n,
}


def symbols():
    """Two whole numbers and a float, known only at run time."""
    env = ShapeEnv()
    made = []
    for name, value in (("n", 5), ("m", 3), ("t", 0.75)):
        source = ConstantSource(name)
        symbol = env.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
        create = env.create_symfloatnode if isinstance(value, float) else env.create_symintnode
        made.append(create(symbol, hint=value, source=source))
    return env, made


@pytest.mark.parametrize("name", FORMS)
def test_a_formula_is_what_python_computes(name: str) -> None:
    env, given = symbols()
    made = FORMS[name](*given)
    whole, asked = isinstance(made, torch.SymInt), len(env.guards)
    written = symbolic_size(made) if whole else symbolic_float(made)
    assert len(env.guards) == asked and not isinstance(written, float)
    names = [str(x.node.expr) for x in given]
    for n, m, t in ((5, 3, 0.75), (11, 4, 1.9), (1, 7, 0.1), (640, 33, 2.5)):
        found = written.at(dict(zip(names, (n, m, t), strict=True)))
        expected = FORMS[name](n, m, t)
        assert type(found) is type(expected) and found == pytest.approx(expected, rel=1e-15, abs=0)


def test_what_is_known_about_a_size_stays_as_it_was_met() -> None:
    """A question answered in the middle of lowering must not make two sizes of one."""
    _, (n, *_) = symbols()
    before = symbolic_size(n)
    assert n > 3  # from here on PyTorch knows more
    assert symbolic_size(n) is before and before.bounds() == (None, None)


def test_names() -> None:
    assert Formula("zf3").name == "zf3"
    assert Formula("zf3*2").name != Formula("zf3*3").name and Formula("zf3*2").name.isidentifier()
    assert Formula("max(sqrt(s0), zf3)").symbols == {"s0", "zf3"}
