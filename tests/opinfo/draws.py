"""The referee of what draws random numbers: the same program in float64, on what was drawn in the narrower type.

In: a run with `Recorded` around it. Out: with `Replayed` around another run, the same elements are dropped. Run by
itself, the wider type would draw others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

# Random operators, and where among their results stands what was drawn. It is the same in any type: yes or no.
_COINS = {aten.native_dropout.default: 1, aten.bernoulli.p: None, aten.bernoulli_.float: None}


class UnknownDraw(Exception):
    """What an operator has drawn cannot be told from what it gives, or another one draws."""


def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


class Recorded(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _draws(func):
            if func not in _COINS:
                raise UnknownDraw(str(func))
            place = _COINS[func]
            self.drawn.append((result if place is None else result[place]).detach().clone())
        return result


class Replayed(TorchDispatchMode):
    def __init__(self, drawn: Sequence[torch.Tensor]):
        super().__init__()
        self.drawn = list(drawn)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _draws(func):
            return func(*args, **(kwargs or {}))
        if func not in _COINS or not self.drawn or self.drawn[0].shape != args[0].shape:
            raise UnknownDraw(str(func))
        coins = self.drawn.pop(0)
        if func is aten.native_dropout.default:
            p = args[1]
            return args[0] * coins * (0.0 if p == 1 else 1 / (1 - p)), coins
        return args[0].copy_(coins) if func is aten.bernoulli_.float else coins.to(args[0].dtype)


__all__ = ["Recorded", "Replayed", "UnknownDraw"]
