"""What a graph's own calls switch in the thread, switched back where one of them raises.

Dynamo writes the entry into a region and the exit from it (a transform's level, autocast, a grad mode) as two calls of
the graph. When a call between them raises, nothing else would run the second: the thread would stay under a transform
that nobody uses, and eager would be wrong from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from litz.capture.modes import Autocast, autocast_now


@dataclass(frozen=True)
class _Thread:
    """The switches that calls of a graph can leave in another position."""

    levels: int  # of transforms: those of `torch.func`, one a grad, vmap or jvp
    requires_grad_in_place: bool
    dual: bool  # a level of forward-mode differentiation is open
    dual_enabled: bool
    hooks_refused: str | None  # why there may be no hooks on saved tensors
    grad: bool
    autocast: Autocast
    autocast_cache: bool
    autocasts: int  # inside one another

    @staticmethod
    def now() -> _Thread:
        return _Thread(
            torch._C._functorch.get_dynamic_layer_stack_depth(),
            torch._C._functorch.get_inplace_requires_grad_allowed(),
            _is_dual_level_open(),
            torch._C._is_fwd_grad_enabled(),
            torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
            torch.is_grad_enabled(),
            autocast_now(),
            torch.is_autocast_cache_enabled(),
            _autocasts(),
        )

    def restore(self) -> None:
        _leave_levels(self.levels)
        torch._C._functorch.set_inplace_requires_grad_allowed(self.requires_grad_in_place)
        if _is_dual_level_open() and not self.dual:
            torch._C._exit_dual_level(level=0)
        torch._C._set_fwd_grad_enabled(self.dual_enabled)
        if self.hooks_refused is None:
            torch._C._autograd._saved_tensors_hooks_enable()
        else:
            torch._C._autograd._saved_tensors_hooks_disable(self.hooks_refused)
        torch._C._set_grad_enabled(self.grad)
        for device, enabled, dtype in self.autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.autocast_cache)
        while _autocasts() > self.autocasts:
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()


def _leave_levels(down_to: int) -> None:
    """Each by the function that undoes its own kind. The one function of torch's for all kinds takes two levels for one
    (2.11)."""
    functorch = torch._C._functorch
    leave = {
        functorch.TransformType.Grad: functorch._grad_decrement_nesting,
        functorch.TransformType.Jvp: functorch._jvp_decrement_nesting,
        functorch.TransformType.Vmap: functorch._vmap_decrement_nesting,
        functorch.TransformType.Functionalize: functorch._func_decrement_nesting,
    }
    while functorch.get_dynamic_layer_stack_depth() > down_to:
        leave[functorch.peek_interpreter_stack().key()]()


def _is_dual_level_open() -> bool:
    """There is at most one, and no other way to ask."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:
        return True
    torch._C._exit_dual_level(level=level)
    return False


def _autocasts() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


class Entered:
    """The inference modes entered on the way: they are left in the order in which they were entered among levels."""

    def __init__(self) -> None:
        self._modes: list[tuple[int, Any]] = []

    def saw(self, value: Any) -> None:
        """What a call gave back."""
        if type(value) is torch._C._InferenceMode:
            self._modes.append((torch._C._functorch.get_dynamic_layer_stack_depth(), value))

    def leave(self) -> None:
        for levels, mode in reversed(self._modes):
            _leave_levels(levels)
            mode.__exit__(None, None, None)


@contextmanager
def left_as_found() -> Iterator[Entered]:
    """Should what runs in here raise, the thread is as it was."""
    before, entered = _Thread.now(), Entered()
    try:
        yield entered
    except BaseException:
        entered.leave()
        before.restore()
        raise


__all__ = ["Entered", "left_as_found"]
