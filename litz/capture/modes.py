"""What a trace depends on besides its arguments: what the caller has switched on, in his thread and in the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from litz.compat import precision_of_products

DEVICES = ("cpu", "cuda")  # that autocast is asked of
Autocast = tuple[tuple[str, bool, torch.dtype], ...]


class Modes(NamedTuple):
    gradients: bool
    inference: bool
    autocast: Autocast
    casts_once: bool  # what autocast has made of a parameter is used again
    forward_mode: int  # the level of forward-mode differentiation that is open
    default_dtype: torch.dtype
    deterministic: int  # 1: what is not warns, 2: it raises
    fills: bool  # memory that would be undefined, then
    attention: tuple[bool, bool, bool, bool]  # which of torch's ways may compute it
    library: bool  # whether oneDNN may be called
    precision: str  # of products in float32

    @contextmanager
    def again(self) -> Iterator[None]:
        """All as it was, in any thread; afterwards as it was found. Modes that see operators are the caller's of now,
        and see nothing."""
        with ExitStack() as stack:
            stack.enter_context(_disable_current_modes())
            stack.enter_context(torch._C.DisableTorchFunction())
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.gradients))
            for device, enabled, dtype in self.autocast:
                if enabled or torch.is_autocast_enabled(device):
                    cached = self.casts_once
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cached))
            values = (self.default_dtype, self.deterministic, self.fills, *self.attention, self.library, self.precision)
            for (ask, change), value in zip(_OF_THE_PROCESS, values, strict=True):
                found = ask()
                if found != value:
                    stack.callback(change, found)
                    change(value)
            yield

    def entries(self) -> dict[str, str]:
        """As entries of a key."""
        autocast = [f"{device} {enabled} {dtype}" for device, enabled, dtype in self.autocast]
        return {
            "mode.gradients": f"{self.gradients}, inference {self.inference}",
            "mode.autocast": ", ".join((*autocast, f"once {self.casts_once}")),
            "mode.forward": str(self.forward_mode),
            "mode.default": f"{self.default_dtype} {torch.get_default_device()}",
            "mode.deterministic": f"{self.deterministic}, fills {self.fills}",
            "mode.attention": f"{self.attention} in the order {torch._C._get_sdp_priority_order()}",
            "mode.library": f"{self.library} {self.precision}",
        }


def autocast_now() -> Autocast:
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICES)


def modes_now() -> Modes:
    """Asked at each call of some functions: each question is one that torch answers at once."""
    return Modes(
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_now(),
        torch.is_autocast_cache_enabled(), torch.autograd.forward_ad._current_level, torch.get_default_dtype(),
        torch.get_deterministic_debug_mode(), torch._C._get_deterministic_fill_uninitialized_memory(),
        (
            torch._C._get_flash_sdp_enabled(), torch._C._get_math_sdp_enabled(),
            torch._C._get_mem_efficient_sdp_enabled(), torch._C._get_cudnn_sdp_enabled(),
        ),
        torch._C._get_mkldnn_enabled(), precision_of_products(),
    )  # fmt: skip


def _set_precision(precision: str) -> None:
    if "," not in precision:
        torch.set_float32_matmul_precision(precision)


# What tells each, and what changes it.
_OF_THE_PROCESS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (
        torch._C._get_deterministic_fill_uninitialized_memory,
        torch._C._set_deterministic_fill_uninitialized_memory,
    ),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (precision_of_products, _set_precision),
)


__all__ = ["DEVICES", "Autocast", "Modes", "autocast_now", "modes_now"]
