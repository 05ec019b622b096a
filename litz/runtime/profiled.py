"""Calls while a profiler is on: native code is told where torch's functions for events are.

In: the frame of a call. Out: its slots say whether a profiler is on. `codegen/llvm/record.py` has what native code does
with them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch.autograd.profiler as profiler

from litz.codegen.llvm.record import EVENT_SLOT, PROFILER_SLOT
from litz.compat import called_libraries

if TYPE_CHECKING:
    from litz.runtime.frame import Frame


def follow_profiler(frame: Frame, slots: Mapping[str, int]) -> None:
    """Have native code begin events from here on, or not any more."""
    frame.profiled = profiler._is_profiler_enabled
    frame.slots[slots[PROFILER_SLOT]] = ctypes.addressof(_functions()) if frame.profiled else 0


def end_event(frame: Frame, slots: Mapping[str, int]) -> None:
    """Of the step at which native code has stopped."""
    event = frame.slots[slots[EVENT_SLOT]]
    if event:
        frame.slots[slots[EVENT_SLOT]] = 0
        _torch("aoti_record_function_end")(ctypes.c_void_p(event))


@lru_cache(maxsize=1)
def _functions() -> Any:
    """The addresses of what begins an event and of what ends one, side by side."""
    found = (_torch(f"aoti_record_function_{name}") for name in ("start", "end"))
    return (ctypes.c_void_p * 2)(*(ctypes.cast(function, ctypes.c_void_p).value for function in found))


def _torch(name: str) -> Any:
    for path in called_libraries():
        try:
            return ctypes.CDLL(path)[name]
        except AttributeError:
            continue
    raise AttributeError(f"torch has no function {name}")


__all__ = ["end_event", "follow_profiler", "profiler"]
