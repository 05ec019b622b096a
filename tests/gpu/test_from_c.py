"""A model on a GPU as a shared library, called through its C interface; without one, `tests/aot/test_gpu_from_c.py`."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import litz
from litz.compat import called_libraries

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine"),
    pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="a library takes a linker"),
]
TYPES = {torch.float32: 6, torch.bfloat16: 15}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("rank", ctypes.c_int32), ("type", ctypes.c_int32),
    ]  # fmt: skip


class Model:
    """What a C program would do with the library."""

    def __init__(self, file: Path):
        for path in called_libraries():  # that a program is linked with
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self._library, self._name = ctypes.CDLL(str(file)), f"litz_{file.stem}"
        self._function("open").restype = ctypes.c_void_p
        self._function("error").restype = ctypes.c_char_p
        self.model = ctypes.c_void_p(self._function("open")())
        assert self.model.value is not None

    def _function(self, what: str) -> Any:
        return getattr(self._library, f"{self._name}_{what}")

    def run(self, x: torch.Tensor, out: torch.Tensor, stream: torch.cuda.Stream | None = None) -> str:
        self._function("set_stream")(self.model, ctypes.c_void_p(0 if stream is None else stream.cuda_stream))
        sizes = (ctypes.c_int64 * x.dim())(*x.shape)
        given = Tensor(x.data_ptr(), ctypes.addressof(sizes), None, x.dim(), TYPES[x.dtype])
        made, one = Tensor(out.data_ptr(), None, None, 0, 0), ctypes.c_int64(1)
        code = self._function("run")(self.model, ctypes.byref(given), one, ctypes.byref(made), one)
        return self._function("error")(code).decode()

    def close(self) -> None:
        self._function("close")(self.model)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(64, 256), nn.Linear(256, 64), nn.LayerNorm(256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.norm(F.gelu(self.one(x)))).softmax(-1)


@pytest.mark.parametrize("kind", ["all generated", "with products"])
def test_from_c(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    model: Any = Net().cuda().eval() if kind == "with products" else lambda x: F.layer_norm(x, (64,)).softmax(-1)
    x = torch.randn(32, 64, device="cuda")
    file = litz.aot_compile(model, (x,), path=tmp_path / "net.so")
    opened = Model(file)
    with torch.no_grad():
        wanted = model(x)
    for stream in (None, torch.cuda.Stream()):
        out = torch.zeros_like(wanted)
        torch.cuda.synchronize()
        assert opened.run(x, out, stream) == "no error"
        torch.cuda.synchronize()
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
    assert "multiple of 16 bytes" in opened.run(torch.randn(32 * 64 + 1, device="cuda")[1:].view(32, 64), out)
    opened.close()
    torch.testing.assert_close(litz.load(file)(x), wanted, rtol=1e-4, atol=1e-5)  # and from Python
