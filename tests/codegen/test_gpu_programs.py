"""Programs for a GPU as they would be loaded: what Python has to call, and what native code hands to it."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import litz
from litz.codegen.llvm import shim
from litz.codegen.plan import Native
from litz.compat import torch_library
from litz.runtime import executable
from litz.runtime.handle import taken_over
from tests.codegen.gpu_programs import compile_for_gpu, from_python


class Block(torch.nn.Module):
    """A layer of a transformer, and a loss over a vocabulary."""

    def __init__(self, size: int = 64, heads: int = 4, vocabulary: int = 96, activation: str = "tanh"):
        super().__init__()
        self.heads, self.activation = heads, activation
        self.table = torch.nn.Embedding(vocabulary, size)
        self.norm, self.qkv = torch.nn.LayerNorm(size), torch.nn.Linear(size, 3 * size)
        self.out, self.up = torch.nn.Linear(size, size), torch.nn.Linear(size, 4 * size)
        self.down, self.head = torch.nn.Linear(4 * size, size), torch.nn.Linear(size, vocabulary, bias=False)

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.table(ids)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))
        up = self.up(x)
        return x + self.down(F.relu(up) if self.activation == "relu" else F.gelu(up, approximate=self.activation))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None, mask: torch.Tensor | None = None) -> Any:
        logits = self.head(self.hidden(ids, mask))
        return logits if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def ids(rows: int = 8, columns: int = 128) -> torch.Tensor:
    return torch.zeros(rows, columns, dtype=torch.long)


@pytest.mark.parametrize("masked", [False, True], ids=["flash", "efficient"])
def test_attention_is_called_from_native_code(masked: bool) -> None:
    mask = torch.zeros(8, 1, 128, 128, dtype=torch.bfloat16) if masked else None
    given = {"ids": ids(), "labels": ids(), "mask": mask}
    made = compile_for_gpu(Block().bfloat16(), given, training=True)
    forward, backward = made.parts()
    kind = f"aten::_scaled_dot_product_{'efficient' if masked else 'flash'}_attention"
    assert forward.built.calls[kind] == 1 and backward.built.calls[f"{kind}_backward"] == 1
    assert from_python(forward).total() == 0
    python = {"aten::embedding_dense_backward"} | ({f"{kind}_backward"} if masked else set())
    assert from_python(backward).keys() <= python
    handed = {n for item in forward.plan.items if isinstance(item.run, Native) for n in item.run.hands_over}
    assert len(handed) == 4  # the result, the logarithms of the sums, and the two numbers that random ones come from
    assert not any("attention" in fallback.operator for fallback in made.report.fallbacks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_written_out_over_any_size(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.view(x.shape[0], x.shape[1], 4, 64).transpose(1, 2) for x in (q, k, v))
        return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v

    given = {name: torch.randn(3, 40, 256, dtype=dtype) for name in "qkv"}
    made = compile_for_gpu(attention, given, dynamic=True, moved="trace")
    fused = made.forward.built.calls.get("aten::_scaled_dot_product_flash_attention", 0)
    assert fused == int(dtype == torch.bfloat16)
    assert len(made.forward.plan.sizes) >= 2


def test_numbers_of_types() -> None:
    """As the shim itself has them."""
    library = ctypes.CDLL(torch_library())
    names = {
        "u8": "uint8", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "f16": "float16", "f32": "float32",
        "f64": "float64", "b1": "bool", "bf16": "bfloat16", "torch.uint64": "uint64",
    }  # fmt: skip
    found = {dtype: getattr(library, f"aoti_torch_dtype_{name}")() for dtype, name in names.items()}
    assert found == shim.SCALAR_TYPE


def test_functions_of_the_shim_are_named_as_torch_names_them() -> None:
    headers = [path.read_text() for path in Path(torch.__file__).parent.rglob("c_shim_cuda.h")]
    if not headers:
        pytest.skip("this torch comes without its headers")
    for function in shim.DEVICES["cuda"].shims.values():
        assert f" {function}(" in headers[0]


def test_what_native_code_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, by the operators that the CPU has: results of the program, saved tensors, arguments of others."""
    monkeypatch.setitem(shim.DEVICES, "cpu", replace(shim.DEVICES["cpu"], hands_over=True))
    handed: list[int] = []

    def watched(handles: list[int]) -> list[torch.Tensor]:
        handed.extend(handles)
        return taken_over(handles)

    monkeypatch.setattr(executable, "taken_over", watched)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = F.scaled_dot_product_attention(q * 2, k, v)
        image = F.conv2d(q, k[:, :, :3, :3])
        return out, torch.sort(out, -1).values, image

    def inputs() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [torch.randn(4, 4, 33, 16, requires_grad=True) for _ in range(3)]

    results = []
    for run in (function, litz.compile(function)):
        given = inputs()
        out = run(*given)
        sum(o.square().sum() for o in out).backward()
        results.append([*out, *(x.grad for x in given)])
    for got, wanted in zip(*reversed(results), strict=True):
        assert (got.shape, got.stride()) == (wanted.shape, wanted.stride())
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert len(handed) == 3  # of the attention, its result and the logarithms; of the convolution its own
