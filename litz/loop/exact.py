"""Numbers told apart: `==` calls 0.0 and -0.0 equal, and 1, 1.0 and True, and NaN unlike itself.

In: a number, or any value with numbers in it. Out: `exact(value)`, a key that is equal for the same number of the same
type and for no other. Whatever is shared, cached or compared by numbers (kernels, constants, traces) goes by it.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import fields
from typing import Any


def exact(value: Any) -> Any:
    """Equal and hashed alike for the same number of the same type only. Lists and tuples are taken apart."""
    if isinstance(value, (tuple, list)):
        return (type(value), *map(exact, value))
    if isinstance(value, numbers.Number):
        return (type(value), spelled(value))
    return value


def spelled(value: Any) -> str:
    """The number as Python writes it, with the sign that `repr` leaves out of a NaN."""
    text = repr(value)
    return f"-{text}" if isinstance(value, float) and value != value and math.copysign(1.0, value) < 0 else text


def is_positive_zero(value: float) -> bool:
    """Zero, and not the negative one."""
    return value == 0 and math.copysign(1.0, value) > 0


class Exact:
    """A frozen data type whose numbers are told apart when two of it are compared or hashed."""

    def _exact(self) -> tuple:
        return tuple(exact(getattr(self, f.name)) for f in fields(self) if f.compare)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._exact() == other._exact()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self._exact())


__all__ = ["Exact", "exact", "is_positive_zero", "spelled"]
