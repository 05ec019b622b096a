"""What is known of a model that was compiled, as plain data: all that the page shows, and nothing of the process.

Texts of stages, kernels and machine code are numbers of texts in one table, in which each line stands once: most of
what a stage makes is what it was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from litz.report import Break, Fallback, Firing, NearMiss, Stays

FORMAT = 1  # of this data; a page of another one cannot be read


class Made(NamedTuple):
    """By what, and on which machine."""

    litz: str
    torch: str
    python: str
    target: str


class Stage(NamedTuple):
    """One run of a stage: of the forward or the backward, and the text of the program afterwards."""

    part: str
    name: str
    seconds: float
    text: int | None


class Step(NamedTuple):
    """What one step of a compiled program does. `microseconds`: its shortest run, None if it never ran; `calls`: how
    often it did. `bytes` are those of what it touches, once each; `flops` its operations on floats."""

    part: str
    name: str
    kind: str  # loops, product, or call
    does: tuple[str, ...]  # operators
    shape: str
    lines: tuple[str, ...]  # the user's, as file:line: code
    bytes: int
    flops: int
    text: int  # its loops, or the call
    microseconds: float | None = None
    calls: int = 0
    function: str | None = None  # of the generated code
    why: str = ""  # a call is one


class Function(NamedTuple):
    """A function of the generated code, which may be that of many steps."""

    name: str
    llvm: int
    machine: int | None


class Tensor(NamedTuple):
    """What is held in memory from one step to another, both counted through the parts."""

    name: str
    bytes: int
    first: int
    last: int
    made_by: str
    line: str | None
    in_arena: bool = False  # among the arena's bytes already


class PartOfStep(NamedTuple):
    """How many steps of the program the forward has, or the backward."""

    name: str
    steps: int


@dataclass(frozen=True)
class Memory:
    """Bytes that a run holds at each of its steps, besides `arguments`; of these `arena` throughout."""

    parts: tuple[PartOfStep, ...]
    held: tuple[int, ...]
    arguments: int
    arena: int
    tensors: tuple[Tensor, ...]  # the largest, largest first

    @property
    def peak_at(self) -> int:
        return max(range(len(self.held)), key=self.held.__getitem__, default=0)

    @property
    def peak(self) -> int:
        return self.held[self.peak_at] if self.held else 0

    @property
    def arena_full_at(self) -> int:
        """The step at which most of the arena is in use, which is why it is as large as it is."""
        used = [0] * (len(self.held) + 1)
        for tensor in self.tensors:
            if tensor.in_arena:
                used[tensor.first] += tensor.bytes
                used[min(tensor.last + 1, len(self.held))] -= tensor.bytes
        found = list(accumulate(used[:-1]))
        return max(range(len(found)), key=found.__getitem__, default=0)

    @property
    def at_peak(self) -> tuple[Tensor, ...]:
        """What sets the peak, largest first: what is held then, and what the arena is as large as it is for."""
        own, arena = self.peak_at, self.arena_full_at
        return tuple(t for t in self.tensors if t.first <= (arena if t.in_arena else own) <= t.last)


class Choice(NamedTuple):
    """One way to spend memory: bytes that a backward is foreseen to hold at most beyond arguments, and the seconds of a
    step that go on computing again. The one that was `compiled` has the bytes of its plan."""

    bytes: int
    again: float | None
    compiled: bool = False


@dataclass(frozen=True)
class Piece:
    """One graph of the model's: a compile, or why there was none."""

    number: int
    source: str | None
    function: str | None
    training: bool
    why: str
    capture: str | None
    ends: Break | None
    left_to_eager: str | None
    stages: tuple[Stage, ...] = ()
    steps: tuple[Step, ...] = ()
    functions: tuple[Function, ...] = ()
    memory: Memory | None = None
    firings: tuple[Firing, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    notes: tuple[str, ...] = ()
    cache: tuple[str, ...] = ()
    stays: tuple[Stays, ...] = ()  # parameters that are no constants of a frozen program
    budget: str | None = None  # as it was asked for
    choices: tuple[Choice, ...] = ()  # where there is a budget: what others would cost, the most memory first
    again: bool = False  # its function was compiled before, for other arguments

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def by_time(self) -> list[tuple[int, Step]]:
        """The steps and their places, dearest first."""
        return sorted(enumerate(self.steps), key=lambda found: -(found[1].microseconds or 0.0) * found[1].calls)

    @property
    def microseconds(self) -> float:
        return sum((step.microseconds or 0.0) * step.calls for step in self.steps)


class Excerpt(NamedTuple):
    """Lines of a file of the user's: those that became kernels, and what stands around them."""

    file: str
    lines: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Explanation:
    title: str
    made: Made
    pieces: tuple[Piece, ...]
    breaks: tuple[Break, ...] = ()  # graph breaks that no piece ends with
    excerpts: tuple[Excerpt, ...] = ()
    lines: tuple[str, ...] = ()  # of all texts
    texts: tuple[tuple[int, ...], ...] = ()  # each as numbers of lines
    attention_rules: tuple[str, ...] = ()  # those that make attention one operator
    first_call: float | None = None  # seconds, compiling included
    step: float | None = None  # seconds: the shortest call after that
    format: int = FORMAT

    def text(self, number: int) -> str:
        return "\n".join(self.lines[line] for line in self.texts[number])


__all__ = [
    "FORMAT", "Choice", "Excerpt", "Explanation", "Function", "Made", "Memory", "PartOfStep", "Piece", "Stage", "Step",
    "Tensor",
]  # fmt: skip
