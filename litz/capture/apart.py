"""Compiling, whatever the caller has switched on.

The trace runs where the user's function is called, under his autocast and his grad mode, and writes down what they do.
Every stage after it works on what was written down, and some run much later: a backward is compiled when it is first
needed. So fake tensors and constants are evaluated as if nothing were switched on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


__all__ = ["apart_from_caller"]
