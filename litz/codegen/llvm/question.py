"""What must hold of sizes, and what is computed of them, by native code.

In: a `Formula` over sizes, such as `(s0==s1)` or `(s0-1)//2`. Out: `why_not_asked(formula, sizes)`, what of it has no
code; `ask(writer, formula, value_of)`, its value as an `i1`; and so `is_computed` and `compute` for whole numbers.
Division rounds down, as Python's does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection

from litz.codegen.llvm.writer import Writer
from litz.loop.formula import Formula

_ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
_RELATIONS = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge",
}  # fmt: skip
_EXTREMES = {"max": "smax", "min": "smin"}


def why_not_asked(formula: Formula, sizes: Collection[str]) -> str | None:
    unknown = sorted(formula.symbols - set(sizes))
    if unknown:
        return f"no argument tells {unknown[0]}"
    body = ast.parse(formula.text, mode="eval").body
    return None if _is_truth(body) else "it takes more than whole numbers"


def ask(w: Writer, formula: Formula, value_of: Callable[[str], str]) -> str:
    return _truth(w, ast.parse(formula.text, mode="eval").body, value_of)


def is_computed(formula: Formula) -> bool:
    return _is_whole(ast.parse(formula.text, mode="eval").body)


def compute(w: Writer, formula: Formula, value_of: Callable[[str], str]) -> str:
    return _whole(w, ast.parse(formula.text, mode="eval").body, value_of)


# -- what there is code for ------------------------------------------------------------------------
def _is_truth(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):
        return all(map(_is_truth, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _is_truth(node.operand)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _RELATIONS:
        return False
    return _is_whole(node.left) and _is_whole(node.comparators[0])


def _is_whole(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_whole(node.operand)
    if isinstance(node, ast.Call):
        known = isinstance(node.func, ast.Name) and node.func.id in _EXTREMES and len(node.args) == 2
        return known and all(map(_is_whole, node.args))
    if isinstance(node, ast.BinOp):
        divides = isinstance(node.op, (ast.FloorDiv, ast.Mod))
        if divides and not (isinstance(node.right, ast.Constant) and type(node.right.value) is int):
            return False
        if divides and node.right.value <= 0:  # type: ignore[attr-defined]
            return False
        return (divides or type(node.op) in _ARITHMETIC) and _is_whole(node.left) and _is_whole(node.right)
    return isinstance(node, ast.Name)


# -- the code --------------------------------------------------------------------------------------
def _truth(w: Writer, node: ast.expr, value_of: Callable[[str], str]) -> str:
    if isinstance(node, ast.BoolOp):
        word = "and" if isinstance(node.op, ast.And) else "or"
        total, *others = (_truth(w, value, value_of) for value in node.values)
        for other in others:
            total = w.let(f"{word} i1 {total}, {other}")
        return total
    if isinstance(node, ast.UnaryOp):
        return w.let(f"xor i1 {_truth(w, node.operand, value_of)}, true")
    assert isinstance(node, ast.Compare)
    left, right = _whole(w, node.left, value_of), _whole(w, node.comparators[0], value_of)
    return w.let(f"icmp {_RELATIONS[type(node.ops[0])]} i64 {left}, {right}")


def _whole(w: Writer, node: ast.expr, value_of: Callable[[str], str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return value_of(node.id)
    if isinstance(node, ast.UnaryOp):
        return w.let(f"sub i64 0, {_whole(w, node.operand, value_of)}")
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        function = f"@llvm.{_EXTREMES[node.func.id]}.i64"
        w.module.declare(f"declare i64 {function}(i64, i64)")
        left, right = (_whole(w, argument, value_of) for argument in node.args)
        return w.let(f"call i64 {function}(i64 {left}, i64 {right})")
    assert isinstance(node, ast.BinOp)
    left, right = _whole(w, node.left, value_of), _whole(w, node.right, value_of)
    if type(node.op) in _ARITHMETIC:
        return w.let(f"{_ARITHMETIC[type(node.op)]} i64 {left}, {right}")
    rest = w.let(f"srem i64 {left}, {right}")  # with the sign of what is divided; the divisor is positive
    below = w.let(f"icmp slt i64 {rest}, 0")
    if isinstance(node.op, ast.Mod):
        return w.let(f"select i1 {below}, i64 {w.let(f'add i64 {rest}, {right}')}, i64 {rest}")
    quotient = w.let(f"sdiv i64 {left}, {right}")
    return w.let(f"select i1 {below}, i64 {w.let(f'sub i64 {quotient}, 1')}, i64 {quotient}")


__all__ = ["ask", "compute", "is_computed", "why_not_asked"]
