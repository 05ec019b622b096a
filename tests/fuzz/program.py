"""A random torch-level program as data, and as the Python source it prints itself as.

In: `Line`s, each one statement with what is known of it. Out: source with two functions, `inputs()` and
`program(...)`. The source is complete: whoever runs or judges a program needs nothing else. A trailing `# rounds`
marks a statement whose floating-point result depends on how it was computed.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    def __str__(self) -> str:
        names = [name for line in self.inputs for name in line.defines]
        return "\n".join(
            [
                _HEAD,
                *_function("inputs", [], self.inputs, names),
                *_function("program", names, self.lines, self.outputs),
            ]
        )


def _function(name: str, parameters: list[str], lines: tuple[Line, ...], results: object) -> list[str]:
    assert isinstance(results, (list, tuple))
    body = [f"    {line}" for line in lines]
    return ["", f"def {name}({', '.join(parameters)}):", *body, f"    return [{', '.join(results)}]", ""]


__all__ = ["FuzzProgram", "Line", "ROUNDS"]
