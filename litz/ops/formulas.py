"""PyTorch's symbolic numbers written as Python.

In: the sympy expression of a `SymInt` or `SymFloat`. Out: a `Formula`; None where some part of it has no spelling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litz.loop.formula import FUNCTIONS, Formula

_INFIX = {
    "Add": "+", "Mul": "*", "Pow": "**", "PowByNatural": "**", "FloatPow": "**", "FloorDiv": "//", "CleanDiv": "//",
    "IntTrueDiv": "/", "FloatTrueDiv": "/", "Mod": "%", "PythonMod": "%", "LShift": "<<", "RShift": ">>",
    "BitwiseFn_bitwise_and": "&", "BitwiseFn_bitwise_or": "|", "BitwiseFn_bitwise_xor": "^", "Equality": "==",
    "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=", "StrictGreaterThan": ">", "GreaterThan": ">=",
    "And": " and ", "Or": " or ",
}  # fmt: skip
_CALLS = {
    "Max": "max", "Min": "min", "ToFloat": "float", "TruncToInt": "trunc", "FloorToInt": "floor", "CeilToInt": "ceil",
    "floor": "floor", "ceiling": "ceil", "RoundToInt": "round", "RoundDecimal": "round", "Abs": "abs",
}  # fmt: skip
_FORMS: dict[str, Callable[..., str]] = {
    "Identity": lambda x: x,
    "Not": lambda x: f"(not {x})",
    "CeilDiv": lambda a, b: f"(-(-{a}//{b}))",
    "ModularIndexing": lambda x, a, b: f"(({x}//{a})%{b})",
    "TruncToFloat": lambda x: f"float(trunc({x}))",
    "Where": lambda c, a, b: f"({a} if {c} else {b})",
}


class _Unwritten(Exception):
    """There is no spelling for this part."""


def formula_of(e: Any) -> Formula | None:
    try:
        return Formula(_written(e))
    except _Unwritten:
        return None


def _written(e: Any) -> str:
    if e.is_Symbol:
        return str(e)
    if e.is_Integer:
        return str(int(e)) if e >= 0 else f"({int(e)})"
    if e.is_Float or e.is_Rational or e.is_NumberSymbol:
        return repr(float(e)) if e >= 0 else f"({float(e)!r})"
    kind = type(e).__name__
    if kind in ("BooleanTrue", "BooleanFalse"):
        return kind.removeprefix("Boolean")
    if kind == "Piecewise":
        return _choice([(_written(value), _written(condition)) for value, condition in e.args])
    parts = [_written(a) for a in e.args]
    if kind in _INFIX and len(parts) > 1:
        return f"({_INFIX[kind].join(parts)})"
    name = _CALLS.get(kind, kind.removeprefix("OpaqueUnaryFn_"))
    if name in FUNCTIONS and parts:
        return f"{name}({', '.join(parts)})"
    if kind in _FORMS:
        return _FORMS[kind](*parts)
    raise _Unwritten(kind)


def _choice(cases: list[tuple[str, str]]) -> str:
    (value, condition), *rest = cases
    if not rest:
        return value
    return f"({value} if {condition} else {_choice(rest)})"


__all__ = ["formula_of"]
