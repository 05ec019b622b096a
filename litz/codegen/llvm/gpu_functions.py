"""Functions of a module's own: what there is no library for on a GPU.

In: a formula of numbers. Out: a function in LLVM's language, which is there once, and is called for every lane. LLVM
decides which calls are written out; those of a function that is `long`, which takes it longer than they are worth, not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from litz.codegen.llvm.arithmetic import Arithmetic
from litz.codegen.llvm.functions import joined, part_of
from litz.codegen.llvm.number import Condition, Number
from litz.codegen.llvm.writer import Operand, Writer, llvm_type

Own = Callable[[Arithmetic, Sequence[str]], str]
Formula = Callable[..., Number]
Table = dict[str, tuple[float, ...]]  # coefficients for each type


def called(name: str, formula: Formula, long: bool = False) -> Own:
    def own(m: Arithmetic, args: Sequence[str]) -> str:
        t, function = llvm_type(m.dtype), f"litz.{name}.{m.dtype}"
        if function not in m.w.module.defined:
            m.w.module.defined.add(function)
            _define(Arithmetic(Writer(m.w.module), m.dtype, 1), function, formula, len(args), long)
        given = [Operand(a, m.dtype, m.lanes) for a in args]
        lanes = []
        for lane in range(m.lanes):
            values = ", ".join(f"{t} {part_of(m.w, a, lane, 1).text}" for a in given)
            lanes.append(Operand(m.w.let(f"call {t} @{function}({values})"), m.dtype, 1))
        return joined(m.w, lanes).text

    return own


def _define(m: Arithmetic, name: str, formula: Formula, arity: int, long: bool) -> None:
    names = [f"%a{i}" for i in range(arity)]
    m.w.emit(f"ret {m.t} {formula(*(Number(m, text) for text in names)).text}")
    attributes = "noinline nounwind" if long else "nounwind"
    m.w.define(name, ", ".join(f"{m.t} {text}" for text in names), f"internal {m.t}", attributes)


class Result:
    """A number that branches of a function make."""

    def __init__(self, m: Arithmetic, start: Number):
        self._m, self._slot = m, m.w.slot(m.t, 8)
        self.set(start)

    def set(self, value: Number) -> None:
        self._m.w.emit(f"store {self._m.t} {value.text}, ptr {self._slot}")

    def get(self) -> Number:
        return Number(self._m, self._m.w.let(f"load {self._m.t}, ptr {self._slot}"))


@contextmanager
def when(condition: Condition) -> Iterator[None]:
    with condition.m.w.when(condition.text):
        yield


def inverse(x: Number) -> Number:
    """One divided by a number of middling size, not rounded right: the GPU's own of float32."""
    if x.m.dtype == "f64":
        return 1.0 / x
    function = "@llvm.nvvm.rcp.approx.ftz.f"
    x.m.w.module.declare(f"declare float {function}(float)")
    return Number(x.m, x.m.w.let(f"call float {function}(float {x.text})"))


__all__ = ["Formula", "Own", "Result", "Table", "called", "inverse", "when"]
