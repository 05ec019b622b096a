"""Kernels handed to a driver: machine code where the GPU has it, else PTX, and errors that say what is wrong."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import pytest

from litz.codegen.gpu_code import GpuCode, capability
from litz.errors import CompileError, UnsupportedPlatform
from litz.runtime.driver import Kernels

PTX = b"//\n.version 8.0\n.target sm_90\n.visible .entry k_17(\n)\n{ ret; }\n"
CUBIN, NEWER, OTHER = b"\x7fELF ninety", b"\x7fELF hundred and three", b"\x7fELF hundred"


class Driver:
    """What a driver of a GPU of some level would answer; `refuses` are codes by what they are about."""

    def __init__(self, level: int, refuses: dict[bytes, int] | None = None):
        self.level, self.refuses = level, refuses or {}
        self.loaded: list[bytes] = []
        self.modules = 0

    def cuCtxGetDevice(self, device: Any) -> int:
        device._obj.value = 0
        return 0

    def cuDeviceGetAttribute(self, number: Any, what: int, device: Any) -> int:
        number._obj.value = {75: self.level // 10, 76: self.level % 10}[what]
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        if image in self.refuses:
            return self.refuses[image]
        self.loaded.append(image)
        self.modules += 1
        module._obj.value = 1000 + len(self.loaded)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        if name != b"k_17":
            return 500
        function._obj.value = module.value + 1000
        return 0

    def cuModuleUnload(self, module: Any) -> int:
        self.modules -= 1
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"in the driver's words"
        return 0


@pytest.mark.parametrize(
    ("level", "loaded"),
    [(90, CUBIN), (100, OTHER), (103, NEWER), (101, OTHER), (120, PTX + b"\0")],
    ids=["its own", "its own of several", "the nearest", "an earlier one of its generation", "a later generation"],
)
def test_what_is_loaded(level: int, loaded: bytes) -> None:
    driver = Driver(level)
    kernels = Kernels([GpuCode(PTX, ((90, CUBIN), (103, NEWER), (100, OTHER)))], driver)
    assert driver.loaded == [loaded] and kernels.handles == [2001]
    assert kernels.from_ptx == (loaded == PTX + b"\0")


def test_kernels_are_unloaded_with_what_loaded_them() -> None:
    driver = Driver(90)
    kernels = Kernels([GpuCode(PTX, ((90, CUBIN),)), GpuCode(PTX)], driver)
    assert driver.modules == 2 and kernels.handles == [2001, 2002] and kernels.from_ptx == 1
    del kernels
    gc.collect()
    assert driver.modules == 0


def test_machine_code_that_the_driver_does_not_know_is_made_anew() -> None:
    driver = Driver(90, {CUBIN: 209})
    assert Kernels([GpuCode(PTX, ((90, CUBIN),))], driver).from_ptx == 1
    assert driver.loaded == [PTX + b"\0"]


def test_an_older_gpu() -> None:
    code = GpuCode(PTX, ((90, CUBIN), (100, OTHER)))
    with pytest.raises(UnsupportedPlatform, match=r"9\.0 or newer, and this one has 8\.6") as raised:
        Kernels([code], Driver(86))
    assert "compiled for 9.0, 10.0" in str(raised.value)
    Kernels([GpuCode(PTX, ((80, CUBIN),))], Driver(86))  # machine code runs, where PTX could not


def test_a_driver_that_is_too_old() -> None:
    with pytest.raises(UnsupportedPlatform, match=r"in the driver's words \(222\)") as raised:
        Kernels([GpuCode(PTX)], Driver(90, {PTX + b"\0": 222}))
    assert "CUDA 12.0 or newer" in str(raised.value)


def test_code_that_is_wrong() -> None:
    with pytest.raises(CompileError, match=r"refused generated code: in the driver's words \(218\)"):
        Kernels([GpuCode(PTX)], Driver(90, {PTX + b"\0": 218}))
    with pytest.raises(CompileError, match="a kernel is missing"):
        Kernels([GpuCode(PTX.replace(b"k_17", b"k_18"))], Driver(90))


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    from litz.runtime import driver

    driver.cuda.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(UnsupportedPlatform, match="there is no driver of one: libcuda"):
        Kernels([GpuCode(PTX)])


def test_levels_as_nvidia_writes_them() -> None:
    assert [capability(level) for level in (80, 90, 103, 120)] == ["8.0", "9.0", "10.3", "12.0"]
    assert GpuCode(PTX).least_level == 90 and len(GpuCode(PTX, ((90, CUBIN),))) == len(PTX) + len(CUBIN)
