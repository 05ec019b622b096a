"""Sizes known only at run time: PyTorch's symbolic integers as index expressions.

In: a `SymInt`. Out: an `Expr` over `Size` atoms named like its symbols, each with its present value as hint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from litz.errors import LoweringError
from litz.loop.expr import Expr, Size, expr
from litz.loop.ir import SizeSource


def symbolic_size(size: torch.SymInt) -> Expr:
    node = size.node
    known = node.maybe_as_int()
    if known is not None:
        return expr(known)
    return _convert(node.expr, node.shape_env)


def size_name(size: torch.SymInt) -> str | None:
    """The symbol's name if the size is just one symbol."""
    found = symbolic_size(size)
    if len(found.terms) == 1 and found.terms[0][1] == 1 and len(found.terms[0][0]) == 1:
        atom = found.terms[0][0][0]
        return atom.name if isinstance(atom, Size) else None
    return None


def size_sources(values: Iterable[Any]) -> tuple[SizeSource, ...]:
    """Where, among arguments such as these, the value of each size is found: the first place that tells it."""
    found: dict[str, SizeSource] = {}
    for position, value in enumerate(values):
        if isinstance(value, torch.SymInt):
            name = size_name(value)
            if name is not None:
                found.setdefault(name, SizeSource(name, position))
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            name = size_name(size) if isinstance(size, torch.SymInt) else None
            if name is not None:
                found.setdefault(name, SizeSource(name, position, dim))
    return tuple(found.values())


def _convert(e: Any, env: Any) -> Expr:
    if e.is_Integer:
        return expr(int(e))
    if e.is_Symbol:
        return expr(Size(str(e), _hint(e, env)))
    parts = [_convert(a, env) for a in e.args]
    if e.is_Add:
        total = expr(0)
        for part in parts:
            total = total + part
        return total
    if e.is_Mul:
        product = expr(1)
        for part in parts:
            product = product * part
        return product
    kind = type(e).__name__
    if kind in ("FloorDiv", "CleanDiv"):
        return parts[0] // parts[1]
    if kind in ("Mod", "PythonMod"):
        return parts[0] % parts[1]
    if e.is_Pow and e.args[1].is_Integer and int(e.args[1]) > 0:
        product = expr(1)
        for _ in range(int(e.args[1])):
            product = product * parts[0]
        return product
    raise LoweringError(f"a size of the form {e} ({kind}) has no index expression")


def _hint(symbol: Any, env: Any) -> int:
    values = getattr(env, "backed_var_to_val", None) or getattr(env, "var_to_val", {})
    found = values.get(symbol)
    return int(found) if found is not None else 64
