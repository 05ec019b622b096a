"""Numbers known only at run time: PyTorch's symbolic integers as index expressions, its symbolic floats as formulas.

In: a `SymInt` or a `SymFloat`. Out: an `Expr` over `Size` atoms named like its symbols, each with its present value as
hint; or a `Formula`. A whole number of a form that no index expression has (a maximum, what was rounded) is a size of
its own, which the host computes by a formula. A number that nothing here can write is asked for its value: Dynamo then
compiles anew where it is another one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor

from litz.loop.expr import Expr, Size, expr
from litz.loop.formula import Formula
from litz.loop.ir import NumberSource, SizeSource
from litz.ops.formulas import formula_of


def symbolic_size(size: torch.SymInt) -> Expr:
    node = size.node
    known = node.maybe_as_int()
    if known is not None:
        return expr(known)
    if _is_one(node):
        return expr(1)
    found = _convert(node.expr, node.shape_env)
    return expr(int(size)) if found is None else found


def size_if_spelled(size: Any) -> Expr | None:
    """The same, or None where there is no spelling: nothing is asked of the size."""
    if isinstance(size, int):
        return expr(int(size))
    if not isinstance(size, torch.SymInt) or size.node.is_nested_int():
        return None
    known = size.node.maybe_as_int()
    return expr(known) if known is not None else _convert(size.node.expr, size.node.shape_env)


def _is_one(node: Any) -> bool:
    """Whether a size that is computed is known to be 1, as where the trace had it broadcast, and Dynamo guards it."""
    if node.expr.is_Symbol or not node.has_hint() or node.hint != 1:
        return False
    # Not by `statically_known_true`, which remembers what it said before there was a guard.
    excess, env = node.expr - 1, node.shape_env
    equations = (guard.expr for guard in env.guards if isinstance(guard.expr, sympy.Eq))
    if any(e.lhs - e.rhs in (excess, -excess) for e in equations):
        return True
    # Guards that are no equations have made the ranges of its symbols narrower: `s0 // 6 + 1 < 2` says that s0 < 6.
    bounds = env.bound_sympy(node.expr)
    return bool(bounds.lower == 1 and bounds.upper == 1)


def ask_what_broadcasts(fake: Any) -> None:
    """For an operator whose trace does not ask which sizes of an argument are 1."""
    for size in fake.shape if isinstance(fake, torch.Tensor) else ():
        if isinstance(size, torch.SymInt) and size.node.has_hint() and size.node.hint == 1:
            bool(size == 1)


def symbolic_float(number: torch.SymFloat) -> float | Formula:
    node = number.node
    known = node.maybe_as_float()
    if known is not None:
        return known
    found = formula_of(node.expr)
    return float(number) if found is None else found


def number_held(value: Any) -> str | None:
    """The symbol of the float that a fake tensor holds: as such Dynamo passes a Python float that changes."""
    held = value.item_memo if isinstance(value, FakeTensor) else None
    if not isinstance(held, torch.SymFloat) or value.dtype is not torch.float64:
        return None
    # Its symbol, though by now its value may have been asked for: what was lowered before that reads it here.
    symbol = held.node._expr
    return str(symbol) if symbol.is_Symbol else None


def known_float(value: Any) -> float | None:
    """The float that a fake tensor holds, where it was asked for its value, and Dynamo guards it."""
    held = value.item_memo if number_held(value) is not None else None
    return None if held is None else held.node.maybe_as_float()


def whole_held(value: Any) -> str | None:
    """The symbol of the whole number that a fake tensor of one element holds, where Dynamo has given it one."""
    held = value.item_memo if isinstance(value, FakeTensor) else None
    return size_name(held) if isinstance(held, torch.SymInt) else None


def size_name(size: torch.SymInt) -> str | None:
    """The symbol's name if the size is just one symbol, and a number: a ragged one is none."""
    if size.node.is_nested_int():
        return None
    found = symbolic_size(size)
    if len(found.terms) == 1 and found.terms[0][1] == 1 and len(found.terms[0][0]) == 1:
        atom = found.terms[0][0][0]
        return atom.name if isinstance(atom, Size) and atom.formula is None else None
    return None


def size_sources(values: Iterable[Any], used: Collection[str] = ()) -> tuple[SizeSource, ...]:
    """Where, among arguments such as these, the value of each size is found: the first place that tells it.

    `used`: names of sizes that were read earlier. A guard may have made another expression of such a size since.
    """
    found: dict[str, SizeSource] = {}
    for position, value in enumerate(values):
        name = None if isinstance(value, torch.SymInt) else whole_held(value)
        if name is not None:
            found.setdefault(name, SizeSource(name, position))
        whole = [(None, value)] if isinstance(value, torch.SymInt) else []
        for dim, size in (*whole, *enumerate(value.shape if isinstance(value, torch.Tensor) else ())):
            for name in _names(size, used) if isinstance(size, torch.SymInt) else ():
                found.setdefault(name, SizeSource(name, position, dim))
    return tuple(found.values())


def _names(size: torch.SymInt, used: Collection[str]) -> Iterator[str]:
    """The name of a size, and the one that it had before a guard told more of it, where that is used."""
    name = size_name(size)
    if name is not None:
        yield name
    first = size.node._expr
    if used and str(first) != name and first.is_Symbol and str(first) in used:
        yield str(first)


def number_sources(values: Iterable[Any]) -> tuple[NumberSource, ...]:
    """Where, among arguments such as these, the value of each float is found."""
    found: dict[str, NumberSource] = {}
    for position, value in enumerate(values):
        name = number_held(value)
        if name is not None:
            found.setdefault(name, NumberSource(name, position))
    return tuple(found.values())


def _convert(e: Any, env: Any) -> Expr | None:
    if not e.is_integer:
        return None
    if e.is_Integer:
        return expr(int(e))
    if e.is_Symbol:
        return expr(_size(e, env))
    kind = type(e).__name__
    parts = [_convert(a, env) for a in e.args] if e.is_Add or e.is_Mul or e.is_Pow or kind in _DIVISIONS else [None]
    if any(part is None for part in parts):
        return _computed(e, env)
    known = [part for part in parts if part is not None]
    if e.is_Add:
        return sum(known, expr(0))
    if e.is_Mul:
        return _product(known)
    if kind in ("FloorDiv", "CleanDiv"):
        return known[0] // known[1]
    if kind in ("Mod", "PythonMod"):
        return known[0] % known[1]
    assert e.is_Pow
    return _product([known[0]] * int(e.args[1])) if e.args[1].is_Integer and e.args[1] > 0 else _computed(e, env)


_DIVISIONS = ("FloorDiv", "CleanDiv", "Mod", "PythonMod")


def _product(factors: list[Expr]) -> Expr:
    total = expr(1)
    for factor in factors:
        total = total * factor
    return total


def _computed(e: Any, env: Any) -> Expr | None:
    """A size that the host computes."""
    formula = formula_of(e)
    if formula is None:
        return None
    if any(not part.is_Integer for part in e.atoms(sympy.Rational)):
        formula = Formula(f"round({formula.text})")  # halves that add up
    return expr(_size(e, env, formula))


def _size(e: Any, env: Any, formula: Formula | None = None) -> Size:
    """The size of that form. What is known about it may grow while a program is made of it, and it must stay one and
    the same: what was known first is kept with the symbols themselves."""
    known: dict[Any, Size] = env.__dict__.setdefault("sizes_of_litz", {})
    if e not in known:
        name = str(e) if formula is None else formula.name
        known[e] = Size(name, likely_at(e, env), least(e, env), formula)
    return known[e]


def likely_at(form: Any, shapes: Any) -> int:
    """A likely value of an expression of Dynamo's. It is told roughly, so that the same code is made for all sizes that
    are about as large as those of the first call."""
    rough = {symbol: sympy.Integer(roughly(n)) for symbol, n in shapes.backed_var_to_val.items() if n.is_Integer}
    rough |= {symbol: sympy.Float(roughly(n)) for symbol, n in shapes.backed_var_to_val.items() if n.is_Float}
    found = form.xreplace(rough)
    return max(1, int(found)) if found.is_number and found.is_finite else 64


def roughly(number: Any) -> int | float:
    """The next power of two, away from zero."""
    size, sign = abs(float(number)), -1 if number < 0 else 1
    if not 0 < size < math.inf:
        return 0
    power = math.ceil(math.log2(size))
    return sign * (1 << max(0, power)) if number.is_Integer else sign * 2.0**power


def least(e: Any, env: Any) -> int | None:
    """The least value that an expression of sizes is known to have, or None."""
    low = env.var_to_range[e].lower if e.is_Symbol and e in env.var_to_range else env.bound_sympy(e).lower
    return int(low) if low.is_Integer else None
