"""Answers about index expressions, remembered while a compile asks for them again and again.

In: a pure function. Out: `remembered(function)`, which computes each answer once; `forget()` drops all of them. What is
remembered keeps expressions alive, and they are to die with their compile: so every compile ends with `forget`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar, cast

_Function = TypeVar("_Function", bound=Callable)
_MOST = 1 << 15  # answers of one function
_REMEMBERED: list[Callable] = []


def remembered(function: _Function) -> _Function:
    with_memory = lru_cache(maxsize=_MOST)(function)
    _REMEMBERED.append(with_memory)
    return cast(_Function, with_memory)


def forget() -> None:
    """Another thread that is compiling computes some answers once more."""
    for function in _REMEMBERED:
        function.cache_clear()  # type: ignore[attr-defined]


__all__ = ["forget", "remembered"]
