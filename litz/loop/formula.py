"""Numbers that are computed on the host at each call, from sizes and from floats that are arguments.

In: a formula, a Python expression over their names such as `trunc(1.5*float(s0))`. Out: its value. It is computed
where eager computes it, by Python, and so in the same way to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from types import CodeType
from typing import Any, Union

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "ceil": math.ceil, "float": float, "floor": math.floor, "max": max, "min": min, "round": round,
    "trunc": math.trunc,
    **{
        name: getattr(math, name)
        for name in (
            "sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "exp", "log", "asinh", "log2",
        )
    },
}  # fmt: skip

Measures = Mapping[str, Union[int, float]]  # the sizes and floats of a call, by name


@dataclass(frozen=True)
class Formula:
    text: str

    @cached_property
    def _code(self) -> CodeType:
        return compile(self.text, "<formula>", "eval")

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(self._code.co_names) - FUNCTIONS.keys()

    @property
    def name(self) -> str:
        """A short name of its own: the symbol's, where it is nothing else."""
        if self.text.isidentifier():
            return self.text
        return "n" + blake2b(self.text.encode(), digest_size=5).hexdigest()

    def at(self, values: Measures) -> Any:
        return eval(self._code, {"__builtins__": {}, **FUNCTIONS}, values)

    def __repr__(self) -> str:
        return f"Formula({self.text!r})"
