"""A random torch-level program as data, and as the Python source it prints itself as.

In: `Line`s, each one statement with what is known of it. Out: source with two functions, `inputs()` and
`program(...)`. The source is complete: whoever runs or judges a program needs nothing else. A trailing `# rounds`
marks a statement whose floating-point result depends on how it was computed.

`CASES` in the source says that the program goes through Dynamo under symbolic sizes, and what it is called with, one
call after another; `TRAINING` that its gradients are results as well, and `AROUND` what happens between forward and
backward (`run_program.py`). Of a program with a `transform` the statements
are a function `base`, and the program is what the transform makes of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

ROUNDS = "# rounds"
_HEAD = "import torch\n\nfrom tests.fuzz.numbers import numbers\n"


@dataclass(frozen=True)
class Line:
    """One statement over named tensors."""

    code: str
    defines: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    writes: str | None = None
    rounds: bool = False
    decides: tuple[str, ...] = ()  # of these the exact values matter: a comparison, a cast to a whole number
    rows: tuple[int, ...] | None = None  # dimensions of the first value used along which its numbers must differ
    lowest: float | None = None  # what decides is cast to a type of whole numbers that begins here
    wild: bool = False  # it may make infinities and what is no number
    raises: bool = False  # in some cases it raises, and all behind it is not run

    def __str__(self) -> str:
        return f"{self.code}  {ROUNDS}" if self.rounds else self.code

    @property
    def touched(self) -> tuple[str, ...]:
        return self.defines if self.writes is None else (*self.defines, self.writes)


@dataclass(frozen=True)
class FuzzProgram:
    inputs: tuple[Line, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...] = ()  # of `inputs`: sizes, and Python numbers that the program takes
    cases: tuple[tuple[Any, ...], ...] = ()  # values of the parameters, one tuple a call
    numbers: tuple[str, ...] = ()  # the parameters that the program takes
    training: bool = False
    around: str | None = None
    transform: str | None = None  # an expression over `base` and the program's parameters

    def __str__(self) -> str:
        names = [*(name for line in self.inputs for name in line.defines), *self.numbers]
        marks = [
            *([f"CASES = [{', '.join(map(_tuple, self.cases))}]"] if self.cases else []),
            *(["TRAINING = True"] * self.training),
            *([] if self.around is None else [f"AROUND = {self.around!r}"]),
        ]
        body = _function("program" if self.transform is None else "base", names, self.lines, self._results())
        if self.transform is not None:
            body += _function("program", names, (), f"torch.utils._pytree.tree_leaves({self.transform})")
        given = _function("inputs", list(self.parameters), self.inputs, f"[{', '.join(names)}]")
        return "\n".join([_HEAD, *marks, *given, *body])

    def _results(self) -> str:
        return self.outputs[0] if self.transform is not None else f"[{', '.join(self.outputs)}]"


def _tuple(values: tuple[Any, ...]) -> str:
    return f"({''.join(f'{text(value)}, ' for value in values)})"


def text(number: Any) -> str:
    """A Python number as source."""
    if isinstance(number, float) and not math.isfinite(number):
        return f"float('{number}')"
    return repr(number)


def _function(name: str, parameters: list[str], lines: tuple[Line, ...], result: str) -> list[str]:
    body = [f"    {line}" for line in lines]
    return ["", f"def {name}({', '.join(parameters)}):", *body, f"    return {result}", ""]


__all__ = ["FuzzProgram", "Line", "ROUNDS", "text"]
