"""What a frozen program is made of besides code: which arguments are constants, and what is computed of them, once.

In: nothing; these are the data that `graph/freeze/hoist.py` writes and `runtime/frozen.py` follows. A recipe names
arguments and operators, never values. So code that was made of one set of weights serves any other of the same form,
in this process or in the next, and cannot be stale: whoever calls it follows the recipe on the weights it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

import torch


@dataclass(frozen=True)
class Argument:
    """An argument of the caller's, by its position."""

    place: int


@dataclass(frozen=True)
class Computed:
    """What a step of the recipe gives, by its number; of several results, the one at `index`."""

    step: int
    index: int | None = None


@dataclass(frozen=True)
class Step:
    """An operator and its arguments, in which `Argument` and `Computed` stand for tensors."""

    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Constant:
    """A tensor that the program reads, and how it expects it to lie."""

    value: Union[Argument, Computed]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """`frozen`: the caller's arguments that are constants; the others, `kept`, are passed at each call. `again`: which
    of the frozen ones are the same tensor as an earlier one."""

    kept: tuple[int, ...]
    frozen: tuple[int, ...]
    again: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]
    constants: tuple[Constant, ...]
    zeros: tuple[int, ...] = ()  # of the frozen ones: what has to be zero throughout, or the program is another one


__all__ = ["Computed", "Constant", "Argument", "Recipe", "Step"]
