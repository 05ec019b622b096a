"""The driver of NVIDIA's GPUs: kernels in, handles of them out.

The process's own context is used, which torch has made; what is loaded lives as long as the `Kernels` object. Machine
code is loaded as it is; where there is none for the GPU, or the driver is older than it, the driver makes some of PTX,
which takes tens of milliseconds a kernel.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from litz.codegen.gpu_code import GpuCode
from litz.errors import CompileError, UnsupportedPlatform

# What the driver is asked about a device, and how it says that it is older than what it was given.
_MAJOR, _MINOR = 75, 76
_OLDER_THAN_CODE = (209, 222)


class Kernels:
    """Kernels on the current device, in the order of the code that they come from."""

    def __init__(self, codes: Sequence[GpuCode], driver: Any = None):
        self._driver = cuda() if driver is None else driver
        if driver is None:
            make_current()
        self.handles: list[int] = []
        self.from_ptx = 0  # kernels that the driver made machine code of
        level = self._level()
        for code in codes:
            code.check_runs_on(level)
            module, function = self._module(code, level), ctypes.c_void_p()
            weakref.finalize(self, _unload, self._driver, module).atexit = False
            status = self._driver.cuModuleGetFunction(ctypes.byref(function), ctypes.c_void_p(module), code.name)
            self._check(status, "a kernel is missing")
            assert function.value is not None
            self.handles.append(function.value)

    def _level(self) -> int:
        device, number = ctypes.c_int(), ctypes.c_int()
        self._check(self._driver.cuCtxGetDevice(ctypes.byref(device)), "there is no current device")
        found = []
        for what in (_MAJOR, _MINOR):
            status = self._driver.cuDeviceGetAttribute(ctypes.byref(number), what, device)
            self._check(status, "the driver does not tell which GPU this is")
            found.append(number.value)
        return 10 * found[0] + found[1]

    def _module(self, code: GpuCode, level: int) -> int:
        module, cubin = ctypes.c_void_p(), code.cubin_for(level)
        if cubin is None or self._driver.cuModuleLoadData(ctypes.byref(module), cubin):
            self.from_ptx += 1
            status = self._driver.cuModuleLoadData(ctypes.byref(module), code.ptx + b"\0")
            self._check(status, "the driver refused generated code")
        assert module.value is not None
        return module.value

    def _check(self, status: int, what: str) -> None:
        if not status:
            return
        text = ctypes.c_char_p()
        self._driver.cuGetErrorString(status, ctypes.byref(text))
        kind = UnsupportedPlatform if status in _OLDER_THAN_CODE else CompileError
        raise kind(
            f"{what}: {(text.value or b'').decode()} ({status})", stage="load",
            hint="a driver of CUDA 12.0 or newer reads this code; `nvidia-smi` says which one there is",
        )  # fmt: skip


def _unload(driver: Any, module: int) -> None:
    driver.cuModuleUnload(ctypes.c_void_p(module))


_HERE = threading.local()


def make_current() -> None:
    """Have torch's context of its current device be this thread's too. A thread that has not asked CUDA's runtime for
    anything has none, as autograd's have where a backward is the first thing they do."""
    import torch

    index = torch.cuda.current_device()
    if getattr(_HERE, "device", None) == index:
        return
    context, driver = ctypes.c_void_p(), cuda()
    status = driver.cuCtxGetCurrent(ctypes.byref(context))
    if not status and context.value is None:
        status = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), index)
        status = status or driver.cuCtxSetCurrent(context)
    if status:
        raise CompileError(f"the context of GPU {index} cannot be this thread's ({status})", stage="load")
    _HERE.device = index


@lru_cache(maxsize=1)
def cuda() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UnsupportedPlatform(
            f"the code is for a GPU of NVIDIA's, and there is no driver of one: {error}", stage="load",
            hint="run it where `nvidia-smi` shows a GPU",
        ) from error  # fmt: skip


__all__ = ["Kernels", "cuda", "make_current"]
