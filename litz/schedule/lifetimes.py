"""How long each buffer of a program lives: from the step that writes it first to the last that touches it.

In: a program whose steps are in order. Out: `Lifetimes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.loop.dtype import DTYPES
from litz.loop.ir import Call, Program, View


@dataclass(frozen=True)
class Lifetimes:
    born: dict[str, int]  # buffer -> step that writes it first
    dies: dict[str, int]  # buffer -> step after which it is dead
    owned: frozenset[str]  # buffers that a called operator allocates


def lifetimes(program: Program) -> Lifetimes:
    born: dict[str, int] = {}
    dies: dict[str, int] = {}
    owned: set[str] = set()
    for at, step in enumerate(program.steps):
        for name in (*step.reads, *step.writes):
            dies[name] = at
        for name in step.writes:
            born.setdefault(name, at)
        if isinstance(step, Call) and not writes_in_place(step):
            owned.update(v.buffer for v in step.results if v is not None)
    for output in program.outputs:
        if isinstance(output, View):
            dies[output.buffer] = len(program.steps)
    return Lifetimes(born, dies, frozenset(owned))


def writes_in_place(call: Call) -> bool:
    """Whether the runtime can have the operator write into memory of ours."""
    return call.target in OUT_VARIANTS and all(v is not None and v.dtype in DTYPES for v in call.results)


OUT_VARIANTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


__all__ = ["OUT_VARIANTS", "Lifetimes", "lifetimes", "writes_in_place"]
