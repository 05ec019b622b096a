"""Compiling, whatever the caller has switched on.

The trace runs where the user's function is called, under his autocast and his grad mode, and writes down what they do.
Every stage after it works on what was written down, and some run much later: a backward is compiled when it is first
needed. So fake tensors and constants are evaluated as if nothing were switched on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def apart_from_caller() -> Iterator[None]:
    """No autocast, gradients, inference mode, nor modes that see torch's functions or operators."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C._DisableAutocast(),
        torch._C.DisableTorchFunction(),
        _disable_current_modes(),
    ):
        yield


def as_now() -> Callable[[], AbstractContextManager[None]]:
    """What a trace depends on and the caller has switched on now, to be switched on again later, in any thread."""
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    settings = [(change, ask()) for ask, change in _SETTINGS]

    @contextmanager
    def again() -> Iterator[None]:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(gradients),
            torch.autocast("cpu", dtype=dtype, enabled=autocast),
        ):
            found = [(change, ask()) for ask, change in _SETTINGS]
            _set(settings)
            try:
                yield
            finally:
                _set(found)

    return again


def _set(settings: Iterable[tuple[Callable[[Any], object], Any]]) -> None:
    for change, value in settings:
        change(value)


# Of the process: what tells each, and what changes it.
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)


__all__ = ["apart_from_caller", "as_now"]
