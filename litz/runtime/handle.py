"""Tensors that operators have allocated in native code, as Python's own.

In: addresses of handles of the C shim's. Out: their tensors; the handles are no more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

_CAPSULE = ctypes.pythonapi.PyCapsule_New
_CAPSULE.restype = ctypes.py_object
_CAPSULE.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def taken_over(handles: Sequence[int]) -> list[torch.Tensor]:
    # The function for a single handle, unlike this one, leaves it with a share of the tensor.
    return torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([_CAPSULE(handle, None, None) for handle in handles])


__all__ = ["taken_over"]
