"""Formulas over sizes in native code, against Python."""

from __future__ import annotations

import ctypes

import pytest

from litz.codegen.llvm.build import build
from litz.codegen.llvm.question import ask, why_not_asked
from litz.codegen.llvm.writer import Module, Writer
from litz.loop.formula import Formula
from litz.runtime.link import Code
from litz.target import detect

FORMULAS = [
    "(s0==s1)", "((1+(((-1)+s0)//2))!=1)", "((s0-s1)%4==0)", "((s0-s1)//3<=-1)", "(max(s0, 3)>min(s1, 5)) and s0<9",
    "not (s0*2>=s1+1)", "(-s0)//5==-1 or s1%7==3",
]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_as_python_has_it(text: str) -> None:
    formula, module = Formula(text), Module()
    assert why_not_asked(formula, ("s0", "s1")) is None
    w = Writer(module)
    holds = ask(w, formula, lambda name: {"s0": "%a", "s1": "%b"}[name])
    w.emit(f"ret i32 {w.let(f'zext i1 {holds} to i32')}")
    w.define("asked", "i64 %a, i64 %b", "i32")
    code = Code(build([module.text()], detect(1)), detect(1))
    function = code.function("asked", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64))
    for s0 in range(-3, 12):
        for s1 in range(-3, 12):
            assert bool(function(s0, s1)) == bool(formula.at({"s0": s0, "s1": s1})), (s0, s1)


@pytest.mark.parametrize("text", ["(s2==1)", "(s0/2==1)", "(s0//s1==1)", "(sqrt(s0)<3)", "s0+1", "(s0%0==1)"])
def test_what_has_no_code_is_said(text: str) -> None:
    assert why_not_asked(Formula(text), ("s0", "s1")) is not None
