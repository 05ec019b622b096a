"""What a trace depends on besides its arguments: what the caller has switched on, in his thread and in the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

DEVICES = ("cpu", "cuda")  # that autocast is asked of
Autocast = tuple[tuple[str, bool, torch.dtype], ...]


class Modes(NamedTuple):
    gradients: bool
    inference: bool
    autocast: Autocast
    forward_mode: int  # the level of forward-mode differentiation that is open
    default_dtype: torch.dtype
    deterministic: bool
    attention: tuple[bool, bool]  # whether it may be computed in one, or must not be in parts
    library: bool  # whether oneDNN may be called
    precision: str  # of products in float32

    @contextmanager
    def again(self) -> Iterator[None]:
        """All as it was, in any thread; afterwards as it was found."""
        found = [(change, ask()) for ask, change in _OF_THE_PROCESS]
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.gradients))
            for device, enabled, dtype in self.autocast:
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            stack.callback(lambda: [change(value) for change, value in found])
            flash, math = self.attention
            values = (self.default_dtype, self.deterministic, flash, math, self.precision)
            for (_, change), value in zip(_OF_THE_PROCESS, values, strict=True):
                change(value)
            yield

    def entries(self) -> dict[str, str]:
        """As entries of a key."""
        autocast = [f"{device} {enabled} {dtype}" for device, enabled, dtype in self.autocast]
        return {
            "mode.gradients": f"{self.gradients}, inference {self.inference}",
            "mode.autocast": ", ".join(autocast),
            "mode.forward": str(self.forward_mode),
            "mode.default": f"{self.default_dtype} {torch.get_default_device()}",
            "mode.deterministic": str(self.deterministic),
            "mode.attention": str(self.attention),
            "mode.library": f"{self.library} {self.precision}",
        }


def autocast_now() -> Autocast:
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICES)


def modes_now() -> Modes:
    """Asked at each call of some functions: each question is one that torch answers at once."""
    return Modes(
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_now(),
        torch.autograd.forward_ad._current_level, torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        (torch._C._get_flash_sdp_enabled(), torch._C._get_math_sdp_enabled()),
        torch._C._get_mkldnn_enabled(), torch._C._get_float32_matmul_precision(),
    )  # fmt: skip


# What tells each, and what changes it.
_OF_THE_PROCESS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)


__all__ = ["DEVICES", "Autocast", "Modes", "autocast_now", "modes_now"]
