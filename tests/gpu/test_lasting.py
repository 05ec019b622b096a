"""What is compiled for a GPU lasts: machine code that is loaded as it is, the cache, files. What needs no GPU is in
`tests/test_gpu_lasts.py`, `tests/test_driver.py` and `tests/codegen/test_machine_code.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import litz
from litz.aot.load import Loaded
from litz.codegen.gpu_code import GpuCode
from litz.codegen.machine_code import Assembler, assembler
from litz.errors import CallError
from litz.runtime.artifact import Artifact
from litz.runtime.driver import Kernels
from litz.runtime.executable import Executable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine")


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="litz", **how)


def was_recalled() -> bool:
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
    return "from the cache" in report.cache


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(64, 128), nn.Linear(128, 32), nn.LayerNorm(128)
        self.register_buffer("shift", torch.randn(128)[None].expand(4, 128))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.norm(F.gelu(self.one(x)) + self.shift[0])
        return {"logits": self.two(hidden), "weights": hidden.softmax(-1)}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().cuda().eval()


# -- machine code ---------------------------------------------------------------------------------
def test_torch_brings_what_makes_machine_code() -> None:
    assert isinstance(assembler(), Assembler), assembler()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Kernels]:
    made: list[Kernels] = []
    begin = Kernels.__init__

    def noted(self: Kernels, codes: Any, driver: Any = None) -> None:
        begin(self, codes, driver)
        made.append(self)

    monkeypatch.setattr(Kernels, "__init__", noted)
    return made


def test_machine_code_is_loaded_as_it_is(loads: list[Kernels]) -> None:
    x = torch.randn(64, 1000, device="cuda")
    torch.testing.assert_close(compiled(lambda x: torch.softmax(x, -1))(x), torch.softmax(x, -1))
    assert loads and all(kernels.from_ptx == 0 for kernels in loads)
    report = litz.last_report()
    assert report is not None and not any("driver" in note for note in report.notes)


def test_ptx_alone_is_enough(monkeypatch: pytest.MonkeyPatch, loads: list[Kernels]) -> None:
    begin = Executable.__init__

    def without(self: Executable, artifact: Artifact, *rest: Any) -> None:
        begin(self, replace(artifact, kernels=tuple(GpuCode(kernel.ptx) for kernel in artifact.kernels)), *rest)

    monkeypatch.setattr(Executable, "__init__", without)
    x = torch.randn(64, 999, device="cuda")
    torch.testing.assert_close(compiled(lambda x: torch.softmax(x, -1))(x), torch.softmax(x, -1))
    assert loads and all(kernels.from_ptx == len(kernels.handles) for kernels in loads)
    report = litz.last_report()
    assert report is not None and any("made machine code of 1 kernels while loading" in note for note in report.notes)


# -- the cache ------------------------------------------------------------------------------------
def test_inference_is_recalled(folder: Path, net: Net) -> None:
    x = torch.randn(8, 64, device="cuda")
    with torch.no_grad():
        first = compiled(net)(x)
        assert not was_recalled()
        again = compiled(net)(x)
    assert was_recalled()
    for name, wanted in net(x).items():
        assert torch.equal(first[name], again[name])
        torch.testing.assert_close(again[name], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_is_recalled(folder: Path, net: Net, dynamic: bool) -> None:
    def step(run: Callable[..., Any]) -> list[torch.Tensor]:
        net.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        run(torch.randn(12, 64, device="cuda"))["logits"].square().mean().backward()
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    first = step(compiled(net, dynamic=dynamic))
    assert not was_recalled()
    again = step(compiled(net, dynamic=dynamic))
    assert was_recalled()
    for got, same, wanted in zip(again, first, step(net), strict=True):
        assert torch.equal(got, same)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_results_that_nobody_had_used_are_recalled_with_a_gradient(folder: Path, net: Net) -> None:
    x = torch.randn(8, 64, device="cuda")
    compiled(net)(x)["logits"].sum().backward()
    net.zero_grad(set_to_none=True)
    outputs = compiled(net)(x)
    assert was_recalled()
    (outputs["logits"].sum() + outputs["weights"].square().sum()).backward()
    found = [p.grad.clone() for p in net.parameters()]
    net.zero_grad(set_to_none=True)
    outputs = net(x)
    (outputs["logits"].sum() + outputs["weights"].square().sum()).backward()
    for got, p in zip(found, net.parameters(), strict=True):
        torch.testing.assert_close(got, p.grad, rtol=1e-4, atol=1e-5)


# -- files ----------------------------------------------------------------------------------------
def same(loaded: Loaded, net: Net, rows: int) -> None:
    x = torch.randn(rows, 64, device="cuda")
    with torch.no_grad():
        wanted = net(x)
    found = loaded(x)
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5)


def test_a_file_does_what_the_model_does(net: Net, tmp_path: Path, loads: list[Kernels]) -> None:
    file = litz.aot_compile(net, (torch.randn(8, 64, device="cuda"),), path=tmp_path / "net.litz")
    loaded = litz.load(file)
    same(loaded, net, 8)
    same(loaded, net, 8)
    assert loads[-1].from_ptx == 0


def test_a_file_for_sizes_that_vary(net: Net, tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", min=2, max=1000)
    file = litz.aot_compile(
        net, (torch.randn(8, 64, device="cuda"),), path=tmp_path / "net.litz", dynamic_shapes={"x": {0: rows}}
    )
    loaded = litz.load(file)
    for count in (8, 2, 999):
        same(loaded, net, count)


def test_a_file_that_writes_to_a_buffer(tmp_path: Path) -> None:
    norm = nn.BatchNorm1d(16).cuda().train()
    x = torch.randn(32, 16, device="cuda")
    loaded = litz.load(litz.aot_compile(norm, (x,), path=tmp_path / "norm.litz"))
    for _ in range(3):
        torch.testing.assert_close(loaded(x), norm(x).detach())


def test_arguments_on_another_device_are_refused(net: Net, tmp_path: Path) -> None:
    loaded = litz.load(litz.aot_compile(net, (torch.randn(8, 64, device="cuda"),), path=tmp_path / "net.litz"))
    with pytest.raises(CallError, match="its device is cpu, and cuda is expected"):
        loaded(torch.randn(8, 64))
