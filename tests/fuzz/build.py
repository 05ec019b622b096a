"""A program being drawn: names, shapes to choose from, and the statements so far."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from tests.fuzz.eager import Eager, Refused
from tests.fuzz.program import FuzzProgram, Line

T = TypeVar("T")
INPUTS = "abcdefgh"
_SIZED = re.compile(r"\b(\w+)\.shape\[")  # whose size a statement uses
FLOATS = ("float32", "float64", "bfloat16", "float16")
WHOLE = ("int64", "int32", "uint8")
DTYPES = (*FLOATS, *WHOLE, "bool")
# Exact in every floating type, so that comparing with one is no question of rounding.
EXACT_SCALARS = (0.0, 0.5, -0.5, 1.0, -1.25, 2.0)
SCALARS = (*EXACT_SCALARS, 0.1, -3.3)
WHOLE_SCALARS = (0, 1, 2, -1, 3, 7)


@dataclass
class Build:
    """`number(low, high)` is where all choices come from, both ends included. A program over symbolic sizes is drawn
    along several cases at once, of which the first one is asked for shapes and types."""

    number: Callable[[int, int], int]
    sizes: tuple[int, ...] = ()
    states: list[Eager] = field(default_factory=lambda: [Eager()])
    parameters: tuple[str, ...] = ()
    cases: tuple[tuple[Any, ...], ...] = ()
    numbers: tuple[str, ...] = ()  # parameters that the program takes
    inputs: list[Line] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    made: int = 0

    @property
    def state(self) -> Eager:
        return self.states[0]

    @property
    def symbolic(self) -> bool:
        return bool(self.cases)

    # -- choices ------------------------------------------------------------------------------
    def one(self, of: Sequence[T]) -> T:
        return of[self.number(0, len(of) - 1)]

    def maybe(self, out_of: int = 2) -> bool:
        return self.number(0, out_of - 1) == 0

    def pick(self, wanted: Callable[[torch.Tensor], bool] = lambda t: True) -> str:
        """A value that is as wanted, more likely a late one."""
        found = [name for name in self.state.names if wanted(self.state.tensor(name))]
        if not found:
            raise Refused("no such value")
        late = found[-4:]
        return self.one(late if self.maybe() else found)

    def floating(self, wanted: Callable[[torch.Tensor], bool] = lambda t: True) -> str:
        return self.pick(lambda t: t.is_floating_point() and wanted(t))

    def sure(self, wanted: Callable[[torch.Tensor], bool] = lambda t: True) -> str:
        """A value free of roundings."""
        found = [n for n in self.state.names if not self.state.is_rough(n) and wanted(self.state.tensor(n))]
        if not found:
            raise Refused("no such value")
        return self.one(found)

    def like(self, name: str, wanted: Callable[[torch.Tensor], bool] = lambda t: True) -> str:
        """A value that broadcasts with the named one, often another."""
        shape = self[name].shape
        return self.pick(lambda t: _broadcasts(shape, t.shape) and wanted(t))

    def scalar(self, name: str) -> Any:
        return self.one(SCALARS if self[name].is_floating_point() or self.maybe(3) else WHOLE_SCALARS)

    def dim(self, name: str) -> int:
        """A dimension, counted from either end."""
        rank = self[name].dim()
        if not rank:
            return self.one((0, -1))
        return self.number(-rank, rank - 1)

    def extent(self, name: str, dim: int) -> str:
        """The size of a dimension, as code: one that is symbolic must not be named by its value."""
        return f"{name}.shape[{dim}]" if self.symbolic else str(self[name].shape[dim])

    def size(self) -> str:
        """Some size, as code."""
        if not self.symbolic:
            return str(self.one(self.sizes))
        if self.maybe(3):
            return str(self.number(1, 4))
        name = self.pick(lambda t: t.dim() > 0)
        return self.extent(name, self.dim(name))

    def is_fixed(self, name: str, dim: int) -> bool:
        """Whether a dimension has one size in all cases, and a tensor as many dimensions."""
        shapes = [state.tensor(name).shape for state in self.states if name in state.values]
        return len({len(shape) for shape in shapes}) == 1 and len({shape[dim] for shape in shapes}) == 1

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.state.tensor(name)

    # -- statements ---------------------------------------------------------------------------
    def name(self) -> str:
        self.made += 1
        return f"v{self.made - 1}"

    def define(self, code: str, *uses: str, rounds: bool = False, **more: Any) -> str:
        name = self.name()
        sized = [n for n in dict.fromkeys(_SIZED.findall(code)) if n not in uses]
        self.add(Line(f"{name} = {code}", (name,), (*uses, *sized), rounds=rounds, **more))
        return name

    def write(self, target: str, code: str, *uses: str, rounds: bool = False, **more: Any) -> None:
        """`code` follows the target: a method that writes to it, or an assignment to a part of it."""
        uses = (target, *uses)
        if "=" not in code.split("(")[0] and self.maybe(4):  # the result of a method is the target again
            name = self.name()
            self.add(Line(f"{name} = {target}{code}", (name,), uses, target, rounds=rounds, **more))
        else:
            self.add(Line(f"{target}{code}", (), uses, target, rounds=rounds, **more))

    def add(self, line: Line) -> None:
        self._run(line)
        self.lines.append(line)

    def _run(self, line: Line) -> None:
        """In every case, or in none."""
        undone: list[Callable[[], None]] = []
        try:
            for state in self.states:
                undone.append(state.run(line))
        except Refused:
            for undo in reversed(undone):
                undo()
            raise

    def add_input(self, code: str, *uses: str) -> str:
        if len(self.inputs) == len(INPUTS):
            raise Refused("too many inputs")
        name = INPUTS[len(self.inputs)]
        line = Line(f"{name} = {code}", (name,), uses)
        for state in self.states:
            state.give(line)
        self.inputs.append(line)
        return name

    def finish(self) -> FuzzProgram:
        """What may raise is returned (what no one uses is not computed, and so does not raise), all that nothing was
        made of, and some of the rest, inputs among it."""
        used = {name for line in self.lines for name in line.uses}
        outputs = [name for line in self.lines if line.raises for name in line.defines]
        outputs += [n for n in self.state.names if n.startswith("v") and n not in used and n not in outputs][:6]
        for _ in range(self.number(0 if outputs else 1, 3)):
            outputs.append(self.one(self.state.names))
        return FuzzProgram(
            tuple(self.inputs), tuple(self.lines), tuple(outputs), self.parameters, self.cases, self.numbers,
            training=self.state.training,
        )  # fmt: skip


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def is_whole(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype is not torch.bool


def is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point()


__all__ = ["Build", "DTYPES", "EXACT_SCALARS", "FLOATS", "SCALARS", "WHOLE", "WHOLE_SCALARS", "is_float", "is_whole"]
